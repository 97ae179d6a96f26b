#include "ops/rotation.h"
#include "support/cases.h"

namespace carope::test {
namespace {

using reference::Complex;
using reference::index;
using reference::Values;

/// q lies as [B, H, T, D], k as [B, T, K, D].
Heads queries(const RotationCase& c, const Tensor& q) {
  const std::int64_t dim = c.head_dim();
  return {.data = q.raw(),
          .dtype = q.dtype(),
          .count = c.heads,
          .dim = dim,
          .row_stride = c.heads * c.seq.length * dim,
          .token_stride = dim,
          .head_stride = c.seq.length * dim};
}
Heads keys(const RotationCase& c, const Tensor& k, const Sequence& seq) {
  const std::int64_t width = c.key_heads * c.head_dim();
  return Heads::within(k.reshape({seq.tokens(), width}), seq, 0, c.key_heads, c.head_dim());
}

std::vector<double> ratios_of(const RotationCase& c) {
  std::vector<double> ratios;
  for (std::int64_t p = 0; c.gated && p < c.pairs; ++p) {
    ratios.push_back(c.ratios ? 1.0 / static_cast<double>(1 + p % 3) : 1.0);
  }
  return ratios;
}

/// Phases [B, T, K, P].
Values phases_of(const RotationCase& c, const Values& logits) {
  if (!c.gated) {
    return reference::rope_phase(c.seq, c.key_heads, c.pairs, 10000.0);
  }
  Values phases = reference::carope_phase(c.seq, c.key_heads, c.pairs, 0, logits);
  const std::vector<double> ratios = ratios_of(c);
  for (std::size_t i = 0; i < phases.size(); ++i) {
    phases[i] *= ratios[i % ratios.size()];
  }
  return phases;
}

/// Rotates the first 2P elements of a vector of D.
void rotate_vector(const RotationCase& c, const Complex* phase, Complex* vector) {
  const bool half = c.layout == RotaryLayout::kHalf;
  for (std::int64_t p = 0; p < c.pairs; ++p) {
    Complex& x = vector[half ? p : 2 * p];
    Complex& y = vector[half ? p + c.pairs : 2 * p + 1];
    const Complex cosine = static_cast<double>(c.magnitude) * std::cos(phase[p]);
    const Complex sine = static_cast<double>(c.magnitude) * std::sin(phase[p]);
    const Complex turned = x * cosine - y * sine;
    y = x * sine + y * cosine;
    x = turned;
  }
}

std::vector<Values> rotate_all(const RotationCase& c, const Values& logits, Values q, Values k) {
  const Values phases = phases_of(c, logits);
  const std::int64_t group = c.heads / c.key_heads;
  const std::int64_t dim = c.head_dim();
  for (std::int64_t b = 0; b < c.seq.batch; ++b) {
    for (std::int64_t t = 0; t < c.seq.length; ++t) {
      for (std::int64_t h = 0; h < c.heads; ++h) {
        const std::int64_t gate = (b * c.seq.length + t) * c.key_heads + h / group;
        const Complex* phase = phases.data() + gate * c.pairs;
        rotate_vector(c, phase, q.data() + ((b * c.heads + h) * c.seq.length + t) * dim);
        if (h % group == 0) {
          rotate_vector(c, phase, k.data() + gate * dim);
        }
      }
    }
  }
  return {q, k};
}

}  // namespace

OpCase rotation_case(const RotationCase& c) {
  const Shape q{c.seq.batch, c.heads, c.seq.length, c.head_dim()};
  const Shape k{c.seq.batch, c.seq.length, c.key_heads, c.head_dim()};
  const Rotation sizes{.k = {.count = c.key_heads}, .pairs = c.pairs, .chunk = c.chunk};
  OpCase op{.op = "rotation",
            .variant = fmt::format(
                "{}_H{}_K{}_P{}_D{}{}{}{}{}", describe(c.seq), c.heads, c.key_heads, c.pairs,
                c.head_dim(), c.layout == RotaryLayout::kInterleaved ? "_interleaved" : "",
                c.gated ? fmt::format("_chunk{}", c.chunk) : "_fixed", c.ratios ? "_ratios" : "",
                c.magnitude == 1.0F ? "" : "_scaled")};
  op.inputs = {{.name = "q", .shape = q, .gradient_starts_as = 0},
               {.name = "k", .shape = k, .gradient_starts_as = 1}};
  if (c.gated) {
    op.inputs.push_back({.name = "logits",
                         .shape = {c.seq.batch, c.seq.length, c.key_heads},
                         .precision = Precision::kFull,
                         .scale = 2.0,
                         .gradient_follows_rounding = true});
    op.saved = {{.spec = sizes.carry_spec({.batch = c.seq.batch, .length = c.seq.length})}};
    op.constants.push_back({{c.pairs}, ratios_of(c)});
  } else {
    op.constants.push_back({{c.pairs}, rope_increments(c.pairs, 10000.0)});
  }
  op.outputs = {{.name = "rotated q", .shape = q, .starts_as = 0},
                {.name = "rotated k", .shape = k, .starts_as = 1}};
  add_layout(op, c.seq);
  const auto rotation_of = [c](const OpTensors& t, const Sequence& seq) {
    Rotation rotation{.q = queries(c, t.out[0]),
                      .k = keys(c, t.out[1], seq),
                      .layout = c.layout,
                      .pairs = c.pairs,
                      .magnitude = c.magnitude};
    if (c.gated) {
      rotation.logits = t.in[2];
      rotation.ratios = c.ratios ? t.constants[0] : Tensor{};
      rotation.chunk = c.chunk;
      rotation.carry = t.saved[0];
    } else {
      rotation.increments = t.constants[0];
    }
    return rotation;
  };
  op.forward = [=](Context& ctx, const OpTensors& t) {
    const Sequence seq = bind(c.seq, t);
    rotate(ctx, rotation_of(t, seq), seq);
  };
  op.backward = [=](Context& ctx, const OpTensors& t) {
    const Sequence seq = bind(c.seq, t);
    rotate_backward(ctx, rotation_of(t, seq), seq,
                    {.dq = queries(c, t.d_in[0]),
                     .dk = keys(c, t.d_in[1], seq),
                     .dlogits = c.gated ? t.d_in[2] : Tensor{}});
  };
  op.reference = [c](const std::vector<Values>& in) {
    return rotate_all(c, c.gated ? in[2] : Values{}, in[0], in[1]);
  };
  op.tokens = c.seq.tokens();
  return op;
}

}  // namespace carope::test
