#include <fmt/ranges.h>

#include <cmath>

#include "ops/attention.h"
#include "support/cases.h"

namespace carope::test {
namespace {

using reference::Values;

/// A slope for each head, as ALiBi has them; none where the case has none.
std::vector<float> slopes_of(const AttentionCase& c) {
  std::vector<float> slopes;
  for (std::int64_t h = 0; c.slopes && h < c.heads; ++h) {
    slopes.push_back(std::exp2(-8.0F * static_cast<float>(h + 1) / static_cast<float>(c.heads)));
  }
  return slopes;
}

std::string label(const AttentionCase& c) {
  return describe(c.seq) +
         fmt::format("_H{}_D{}{}{}", c.heads, c.dim, c.slopes ? "_slopes" : "",
                     c.scale == 1.0 ? "" : fmt::format("_scale{}", static_cast<int>(c.scale)));
}

/// The slopes of a case are its first constant.
Attention attention_of(const AttentionCase& c, const OpTensors& t) {
  return {.heads = c.heads, .slopes = c.slopes ? t.constants[0] : Tensor{}};
}

void add_slopes(OpCase& op, const AttentionCase& c) {
  if (c.slopes) {
    op.constants.push_back({{c.heads}, slopes_of(c)});
  }
}

reference::Attended reference_attention(const AttentionCase& c, const Values& qkv) {
  const auto slopes = slopes_of(c);
  return reference::attention(c.seq, c.heads, {slopes.begin(), slopes.end()}, qkv);
}

/// Floating-point operations of one product between all queries and the keys they see.
double score_flops(const AttentionCase& c) {
  const auto length = static_cast<double>(c.seq.length);
  return static_cast<double>(c.seq.batch * c.heads * c.dim) * length * (length + 1.0);
}

}  // namespace

OpCase attention_case(const AttentionCase& c) {
  const std::int64_t width = c.heads * c.dim;
  OpCase op{.op = "attention", .variant = label(c)};
  // Where almost all weight is on one key, the score's gradient is a small difference of numbers
  // one of which comes from a rounded result.
  op.condition = c.scale > 1.0 ? 2.0 : 1.0;
  op.inputs = {{.name = "qkv", .shape = {c.seq.batch, c.seq.length, 3 * width}, .scale = c.scale}};
  op.outputs = {{.name = "out", .shape = {c.seq.batch, c.seq.length, width}},
                {.name = "logsumexp",
                 .shape = {c.seq.batch, c.heads, c.seq.length},
                 .precision = Precision::kFull,
                 .differentiable = false}};
  add_slopes(op, c);
  add_layout(op, c.seq);
  op.forward = [c](Context& ctx, const OpTensors& t) {
    attention(ctx, attention_of(c, t), bind(c.seq, t), t.in[0], t.out[0], t.out[1]);
  };
  op.backward = [c](Context& ctx, const OpTensors& t) {
    attention_backward(ctx, attention_of(c, t), bind(c.seq, t),
                       {.qkv = t.in[0],
                        .out = t.out[0],
                        .logsumexp = t.out[1],
                        .dout = t.d_out[0],
                        .dqkv = t.d_in[0]});
  };
  op.reference = [c](const std::vector<Values>& in) {
    const reference::Attended attended = reference_attention(c, in[0]);
    return std::vector<Values>{attended.out, attended.logsumexp};
  };
  op.tokens = c.seq.tokens();
  op.forward_flops = 2.0 * score_flops(c);
  op.backward_flops = 5.0 * score_flops(c);
  return op;
}

OpCase attention_cached_case(const AttentionCase& c, const std::vector<std::int64_t>& pieces) {
  constexpr std::int64_t kSpare = 5;  // the cache is longer than the sequence
  const std::int64_t width = c.heads * c.dim;
  OpCase op{.op = "attention_cached",
            .variant = label(c) + fmt::format("_pieces_{}", fmt::join(pieces, "_"))};
  for (const std::int64_t length : pieces) {
    const std::size_t number = op.outputs.size();
    op.inputs.push_back({.name = fmt::format("qkv{}", number),
                         .shape = {c.seq.batch, length, 3 * width},
                         .scale = c.scale});
    op.outputs.push_back(
        {.name = fmt::format("out{}", number), .shape = {c.seq.batch, length, width}});
  }
  const Shape cache{c.seq.batch, c.seq.length + kSpare, width};
  op.saved = {{.spec = {cache}}, {.spec = {cache}}};
  add_slopes(op, c);
  add_piece_offsets(op, pieces, c.seq.batch);
  op.forward = [=](Context& ctx, const OpTensors& t) {
    const std::size_t first = t.constants.size() - pieces.size();
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      attention_cached(
          ctx, attention_of(c, t),
          {.batch = c.seq.batch, .length = pieces[i], .offsets = t.constants[first + i]}, t.in[i],
          {.keys = t.saved[0], .values = t.saved[1]}, t.out[i]);
    }
  };
  op.reference = [=](const std::vector<Values>& in) {
    const Values whole = join_pieces(in, pieces, c.seq.batch);
    return split_pieces(reference_attention(c, whole).out, pieces, c.seq.batch);
  };
  op.tokens = c.seq.tokens();
  op.forward_flops = 2.0 * score_flops(c);
  return op;
}

}  // namespace carope::test
