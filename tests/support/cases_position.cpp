#include "ops/rotation.h"

#include <fmt/ranges.h>

#include "ops/embedding.h"
#include "ops/sinusoid.h"
#include "support/cases.h"

namespace carope::test {
namespace {

using reference::Values;

std::string label(std::int64_t heads, std::int64_t pairs, RotaryLayout layout) {
  return fmt::format("_H{}_P{}{}", heads, pairs,
                     layout == RotaryLayout::kInterleaved ? "_interleaved" : "");
}

/// The rotation of a case, of q and k in qkv.
Rotation rotation_of(const CaropeCase& c, const Sequence& seq, const Tensor& qkv) {
  const QkvHeads parts = split_qkv(qkv, seq, c.heads, c.heads);
  return {.q = parts.q,
          .k = parts.k,
          .layout = c.layout,
          .pairs = c.pairs,
          .exponent_start = c.exponent_start,
          .chunk = c.chunk};
}

TensorSpec carry_spec(const CaropeCase& c, const Sequence& seq) {
  const Rotation rotation{.k = {.count = c.heads}, .pairs = c.pairs, .chunk = c.chunk};
  return rotation.carry_spec(seq);
}

std::string label(const CaropeCase& c) {
  const std::string gates = c.gate_offset < 0.0   ? "_gates_low"
                            : c.gate_offset > 0.0 ? "_gates_high"
                            : c.gate_scale > 2.0  ? "_gates_wide"
                                                  : "";
  return describe(c.seq) + label(c.heads, c.pairs, c.layout) +
         fmt::format("_chunk{}_exponent{}{}", c.chunk, c.exponent_start, gates);
}

Values reference_carope(const CaropeCase& c, const Values& logits, const Values& qkv) {
  const Values phase = reference::carope_phase(c.seq, c.heads, c.pairs, c.exponent_start, logits);
  return reference::rotate(c.heads, c.pairs, c.layout, phase, qkv);
}

}  // namespace

OpCase add_positions_case(const PositionsCase& c) {
  OpCase op{.op = "add_positions",
            .variant = fmt::format("{}_width{}_positions{}{}", describe(c.seq), c.width,
                                   c.positions, suffix(c.write))};
  op.inputs = {
      {.name = "table",
       .shape = {c.positions, c.width},
       .precision = Precision::kFull,
       .write = c.write},
      {.name = "x", .shape = {c.seq.batch, c.seq.length, c.width}, .gradient_starts_as = 0}};
  op.outputs = {{.name = "y", .shape = {c.seq.batch, c.seq.length, c.width}, .starts_as = 1}};
  add_layout(op, c.seq);
  op.forward = [c](Context& ctx, const OpTensors& t) {
    add_positions(ctx, bind(c.seq, t), t.in[0], t.out[0]);
  };
  op.backward = [c](Context& ctx, const OpTensors& t) {
    add_positions_backward(ctx, bind(c.seq, t), t.d_out[0], t.d_in[0], c.write);
  };
  op.reference = [c](const std::vector<Values>& in) {
    return std::vector<Values>{reference::add_positions(c.seq, in[0], in[1])};
  };
  op.tokens = c.seq.tokens();
  return op;
}

OpCase sinusoid_case(const SinusoidCase& c) {
  OpCase op{.op = "add_sinusoid",
            .variant = fmt::format("{}_width{}{}", describe(c.seq), c.width,
                                   c.scale == 1.0F ? "" : "_scaled")};
  op.inputs = {{.name = "x", .shape = {c.seq.batch, c.seq.length, c.width}, .scale = c.scale}};
  op.outputs = {{.name = "y", .shape = {c.seq.batch, c.seq.length, c.width}, .starts_as = 0}};
  op.constants = {{{c.width / 2}, rope_increments(c.width / 2, 10000.0)}};
  add_layout(op, c.seq);
  op.forward = [c](Context& ctx, const OpTensors& t) {
    add_sinusoid(ctx, bind(c.seq, t), t.constants[0], c.scale, t.out[0]);
  };
  op.reference = [c](const std::vector<Values>& in) {
    return std::vector<Values>{reference::add_sinusoid(c.seq, static_cast<double>(c.scale), in[0])};
  };
  op.tokens = c.seq.tokens();
  return op;
}

OpCase rotary_case(const RotaryCase& c) {
  const std::int64_t width = c.heads * 2 * c.pairs;
  OpCase op{.op = "rotary",
            .variant = fmt::format("{}{}_base{}", describe(c.seq),
                                   label(c.heads, c.pairs, c.layout), static_cast<int>(c.base))};
  op.inputs = {
      {.name = "qkv", .shape = {c.seq.batch, c.seq.length, 3 * width}, .gradient_starts_as = 0}};
  op.outputs = {
      {.name = "rotated", .shape = {c.seq.batch, c.seq.length, 3 * width}, .starts_as = 0}};
  op.constants = {{{c.pairs}, rope_increments(c.pairs, c.base)}};
  add_layout(op, c.seq);
  const auto rotation_of = [c](const OpTensors& t, const Tensor& qkv) {
    const QkvHeads parts = split_qkv(qkv, bind(c.seq, t), c.heads, c.heads);
    return Rotation{.q = parts.q,
                    .k = parts.k,
                    .layout = c.layout,
                    .pairs = c.pairs,
                    .increments = t.constants[0]};
  };
  op.forward = [=](Context& ctx, const OpTensors& t) {
    rotate(ctx, rotation_of(t, t.out[0]), bind(c.seq, t));
  };
  op.backward = [=](Context& ctx, const OpTensors& t) {
    const Rotation gradients = rotation_of(t, t.d_in[0]);
    rotate_backward(ctx, rotation_of(t, t.out[0]), bind(c.seq, t),
                    {.dq = gradients.q, .dk = gradients.k});
  };
  op.reference = [c](const std::vector<Values>& in) {
    const Values phase = reference::rope_phase(c.seq, c.heads, c.pairs, c.base);
    return std::vector<Values>{reference::rotate(c.heads, c.pairs, c.layout, phase, in[0])};
  };
  op.tokens = c.seq.tokens();
  return op;
}

OpCase carope_case(const CaropeCase& c) {
  const Shape qkv{c.seq.batch, c.seq.length, 6 * c.heads * c.pairs};
  const Shape gates{c.seq.batch, c.seq.length, c.heads};
  const Sequence seq{.batch = c.seq.batch, .length = c.seq.length};
  OpCase op{.op = "carope", .variant = label(c)};
  op.inputs = {{.name = "logits",
                .shape = gates,
                .precision = Precision::kFull,
                .scale = c.gate_scale,
                .offset = c.gate_offset,
                .gradient_follows_rounding = true},
               {.name = "qkv", .shape = qkv, .gradient_starts_as = 0}};
  op.outputs = {{.name = "rotated", .shape = qkv, .starts_as = 1}};
  op.saved = {{.spec = carry_spec(c, seq)}};
  add_layout(op, c.seq);
  op.forward = [c](Context& ctx, const OpTensors& t) {
    const Sequence seq = bind(c.seq, t);
    Rotation rotation = rotation_of(c, seq, t.out[0]);
    rotation.logits = t.in[0];
    rotation.carry = t.saved[0];
    rotate(ctx, rotation, seq);
  };
  op.backward = [c](Context& ctx, const OpTensors& t) {
    const Sequence seq = bind(c.seq, t);
    Rotation rotation = rotation_of(c, seq, t.out[0]);
    rotation.logits = t.in[0];
    rotation.carry = t.saved[0];
    const QkvHeads gradients = split_qkv(t.d_in[1], seq, c.heads, c.heads);
    rotate_backward(ctx, rotation, seq,
                    {.dq = gradients.q, .dk = gradients.k, .dlogits = t.d_in[0]});
  };
  op.reference = [c](const std::vector<Values>& in) {
    return std::vector<Values>{reference_carope(c, in[0], in[1])};
  };
  op.tokens = c.seq.tokens();
  return op;
}

OpCase carope_pieces_case(const CaropeCase& c, const std::vector<std::int64_t>& pieces) {
  OpCase op{.op = "carope_pieces",
            .variant = label(c) + fmt::format("_pieces_{}", fmt::join(pieces, "_"))};
  for (const std::int64_t length : pieces) {
    const Shape qkv{c.seq.batch, length, 6 * c.heads * c.pairs};
    const Sequence seq{.batch = c.seq.batch, .length = length};
    const std::size_t number = op.outputs.size();
    op.inputs.push_back({.name = fmt::format("logits{}", number),
                         .shape = {c.seq.batch, length, c.heads},
                         .precision = Precision::kFull,
                         .scale = c.gate_scale,
                         .offset = c.gate_offset});
    op.inputs.push_back({.name = fmt::format("qkv{}", number), .shape = qkv});
    op.outputs.push_back({.name = fmt::format("rotated{}", number),
                          .shape = qkv,
                          .starts_as = op.inputs.size() - 1});
    op.saved.push_back({.spec = carry_spec(c, seq)});
  }
  op.saved.push_back({.spec = {{c.seq.batch, c.heads, c.pairs}, DType::kU32}});
  add_piece_offsets(op, pieces, c.seq.batch);
  op.forward = [=](Context& ctx, const OpTensors& t) {
    const Tensor& state = t.saved.back();
    clear(state.data<std::uint32_t>(), state.bytes(), state.device());
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      const Sequence seq{.batch = c.seq.batch, .length = pieces[i], .offsets = t.constants[i]};
      Rotation rotation = rotation_of(c, seq, t.out[i]);
      rotation.logits = t.in[2 * i];
      rotation.carry = t.saved[i];
      rotation.state = state;
      rotate(ctx, rotation, seq);
    }
  };
  op.reference = [=](const std::vector<Values>& in) {
    std::vector<Values> logits;
    std::vector<Values> qkv;
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      logits.push_back(in[2 * i]);
      qkv.push_back(in[2 * i + 1]);
    }
    return split_pieces(reference_carope(c, join_pieces(logits, pieces, c.seq.batch),
                                         join_pieces(qkv, pieces, c.seq.batch)),
                        pieces, c.seq.batch);
  };
  op.tokens = c.seq.tokens();
  return op;
}

}  // namespace carope::test
