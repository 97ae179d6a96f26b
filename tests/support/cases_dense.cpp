#include "ops/cross_entropy.h"
#include "ops/embedding.h"
#include "ops/linear.h"
#include "ops/norm.h"
#include "support/cases.h"
#include "support/op_run.h"

namespace carope::test {
namespace {

using reference::Values;

double product_flops(std::int64_t a, std::int64_t b, std::int64_t c) {
  return 2.0 * static_cast<double>(a) * static_cast<double>(b) * static_cast<double>(c);
}

const char* suffix(Rounding rounding) { return rounding == Rounding::kByRow ? "_by_row" : ""; }

const char* name_of(Layer layer) {
  return layer == Layer::kDense ? "linear" : layer == Layer::kGate ? "gate" : "scores";
}

}  // namespace

OpCase linear_case(const LinearCase& c) {
  OpCase op{.op = name_of(c.layer),
            .variant = fmt::format("rows{}_in{}_out{}{}{}{}{}", c.rows, c.in, c.out,
                                   c.bias ? "" : "_no_bias", c.frozen ? "_frozen" : "",
                                   suffix(c.write), suffix(c.rounding)),
            .bf16_only = c.layer != Layer::kDense};
  const Precision weights = c.layer == Layer::kGate ? Precision::kFull : Precision::kWeight;
  op.inputs = {{.name = "x", .shape = {c.rows, c.in}, .write = c.write},
               {.name = "weight",
                .shape = {c.out, c.in},
                .precision = weights,
                .differentiable = !c.frozen,
                .write = c.write}};
  if (c.bias) {
    op.inputs.push_back({.name = "bias", .shape = {c.out}, .precision = weights, .write = c.write});
  }
  op.outputs = {
      {.name = "y",
       .shape = {c.rows, c.out},
       .precision = c.layer == Layer::kDense ? Precision::kActivation : Precision::kFull}};
  op.forward = [c](Context& ctx, const OpTensors& t) {
    linear(ctx, t.in[0], t.in[1], c.bias ? t.in[2] : Tensor{}, t.out[0], c.rounding);
  };
  if (c.layer != Layer::kScores) {
    op.backward = [c](Context& ctx, const OpTensors& t) {
      linear_backward_weight(ctx, t.in[0], t.d_out[0], t.d_in[1], c.bias ? t.d_in[2] : Tensor{},
                             c.write);
      linear_backward_input(ctx, t.d_out[0], t.in[1], t.d_in[0], c.write);
    };
  }
  op.reference = [c](const std::vector<Values>& in) {
    return std::vector<Values>{reference::linear(in[0], in[1], c.bias ? in[2] : Values{}, c.in)};
  };
  op.tokens = c.rows;
  op.forward_flops = product_flops(c.rows, c.in, c.out);
  op.backward_flops = (c.frozen ? 1.0 : 2.0) * op.forward_flops;
  return op;
}

/// What the GELU of a case saves, in this tensor.
static SavedGelu saved_gelu(const MlpCase& c, const Tensor& kept) {
  return c.slopes ? SavedGelu{.slope = kept} : SavedGelu{.input = kept};
}

OpCase mlp_case(const MlpCase& c) {
  OpCase op{.op = "mlp",
            .variant = fmt::format("rows{}_width{}_hidden{}{}{}_scale{}{}{}", c.rows, c.width,
                                   c.hidden, c.bias ? "" : "_no_bias", c.slopes ? "_slopes" : "",
                                   static_cast<int>(c.scale), suffix(c.write), suffix(c.rounding))};
  op.inputs = {
      {.name = "x", .shape = {c.rows, c.width}, .scale = c.scale},
      {.name = "weight_in",
       .shape = {c.hidden, c.width},
       .precision = Precision::kWeight,
       .write = c.write,
       .gradient_follows_rounding = true},
      {.name = "weight_out",
       .shape = {c.width, c.hidden},
       .precision = Precision::kWeight,
       .write = c.write,
       .gradient_follows_rounding = true},
      {.name = "bias_out", .shape = {c.width}, .precision = Precision::kWeight, .write = c.write}};
  if (c.bias) {
    op.inputs.push_back({.name = "bias_in",
                         .shape = {c.hidden},
                         .precision = Precision::kWeight,
                         .write = c.write,
                         .gradient_follows_rounding = true});
  }
  op.outputs = {{.name = "saved", .shape = {c.rows, c.hidden}, .differentiable = false},
                {.name = "hidden", .shape = {c.rows, c.hidden}, .differentiable = false},
                {.name = "y", .shape = {c.rows, c.width}}};
  op.saved = {{.spec = {{c.rows, c.hidden}}}};
  op.forward = [c](Context& ctx, const OpTensors& t) {
    linear_gelu(ctx, t.in[0], t.in[1], c.bias ? t.in[4] : Tensor{}, saved_gelu(c, t.out[0]),
                t.out[1], c.rounding);
    linear(ctx, t.out[1], t.in[2], t.in[3], t.out[2], c.rounding);
  };
  op.backward = [c](Context& ctx, const OpTensors& t) {
    const Tensor& d_pre = t.saved[0];
    linear_backward_weight(ctx, t.out[1], t.d_out[2], t.d_in[2], t.d_in[3], c.write);
    linear_backward_gelu(ctx, t.d_out[2], t.in[2], saved_gelu(c, t.out[0]), d_pre,
                         c.bias ? t.d_in[4] : Tensor{}, c.write);
    linear_backward_weight(ctx, t.in[0], d_pre, t.d_in[1], {}, c.write);
    linear_backward_input(ctx, d_pre, t.in[1], t.d_in[0], Write::kOverwrite);
  };
  op.reference = [c](const std::vector<Values>& in) {
    const Values pre = reference::linear(in[0], in[1], c.bias ? in[4] : Values{}, c.width);
    const Values hidden = reference::gelu(pre);
    return std::vector<Values>{c.slopes ? reference::gelu_derivative(pre) : pre, hidden,
                               reference::linear(hidden, in[2], in[3], c.hidden)};
  };
  op.tokens = c.rows;
  op.forward_flops = 2.0 * product_flops(c.rows, c.width, c.hidden);
  op.backward_flops = 2.0 * op.forward_flops;
  return op;
}

OpCase gelu_case(const GeluCase& c) {
  OpCase op{
      .op = "gelu",
      .variant = fmt::format("rows{}_width{}_scale{}", c.rows, c.width, static_cast<int>(c.scale))};
  op.inputs = {{.name = "x", .shape = {c.rows, c.width}, .scale = c.scale}};
  op.outputs = {{.name = "y", .shape = {c.rows, c.width}}};
  op.forward = [](Context& ctx, const OpTensors& t) { gelu(ctx, t.in[0], t.out[0]); };
  op.reference = [](const std::vector<Values>& in) {
    return std::vector<Values>{reference::gelu(in[0])};
  };
  op.tokens = c.rows;
  return op;
}

OpCase norm_case(const NormCase& c) {
  OpCase op{.op = "layer_norm",
            .variant = fmt::format("rows{}_width{}{}{}", c.rows, c.width,
                                   c.mean != 0.0 ? "_off_centre" : "", suffix(c.write))};
  // A norm's backward pass adds to its input's gradient.
  op.inputs = {
      {.name = "x", .shape = {c.rows, c.width}, .offset = c.mean, .write = Write::kAccumulate},
      {.name = "gain",
       .shape = {c.width},
       .precision = Precision::kFull,
       .scale = 0.5,
       .offset = 1.0,
       .write = c.write},
      {.name = "bias", .shape = {c.width}, .precision = Precision::kFull, .write = c.write}};
  const auto statistic = [&](const char* name) {
    return Output{
        .name = name, .shape = {c.rows}, .precision = Precision::kFull, .differentiable = false};
  };
  op.outputs = {{.name = "y", .shape = {c.rows, c.width}}, statistic("mean"), statistic("rstd")};
  op.forward = [](Context& ctx, const OpTensors& t) {
    layer_norm(ctx, t.in[0], {.gain = t.in[1], .bias = t.in[2]},
               {.y = t.out[0], .mean = t.out[1], .rstd = t.out[2]});
  };
  op.backward = [c](Context& ctx, const OpTensors& t) {
    Tensor dy = t.d_out[0];
    norm_backward(ctx,
                  {.x = t.in[0],
                   .normed = {.y = t.out[0], .mean = t.out[1], .rstd = t.out[2]},
                   .gain = t.in[1],
                   .dx = t.d_in[0],
                   .dweights = {.gain = t.d_in[1], .bias = t.d_in[2]},
                   .write = c.write},
                  dy);
  };
  op.reference = [](const std::vector<Values>& in) {
    const reference::Normed normed = reference::layer_norm(in[0], in[1], in[2]);
    return std::vector<Values>{normed.y, normed.mean, normed.rstd};
  };
  op.tokens = c.rows;
  return op;
}

OpCase residual_norm_case(const ResidualNormCase& c) {
  enum In : std::size_t { kH, kWeight, kX, kGain, kShift, kBias };
  enum Out : std::size_t { kY, kSum };
  OpCase op{.op = "residual_norm",
            .variant = fmt::format("rows{}_in{}_width{}{}{}{}", c.rows, c.in, c.width,
                                   c.bias ? "" : "_no_bias", suffix(c.write), suffix(c.rounding))};
  const auto of_norm = [&](const char* name, double offset) {
    return Input{.name = name,
                 .shape = {c.width},
                 .precision = Precision::kFull,
                 .scale = 0.5,
                 .offset = offset,
                 .write = c.write,
                 .gradient_follows_rounding = true};
  };
  // The gradient of the sum flows past the norm to residual and branch alike: the backward pass of
  // the norm adds to it, and what it makes is the gradient of the layer's result.
  op.inputs = {{.name = "h", .shape = {c.rows, c.in}},
               {.name = "weight",
                .shape = {c.width, c.in},
                .precision = Precision::kWeight,
                .write = c.write,
                .gradient_follows_rounding = true},
               {.name = "x", .shape = {c.rows, c.width}, .gradient_starts_as = kSum},
               of_norm("gain", 1.0),
               of_norm("shift", 0.0)};
  if (c.bias) {
    op.inputs.push_back({.name = "bias",
                         .shape = {c.width},
                         .precision = Precision::kWeight,
                         .write = c.write,
                         .gradient_follows_rounding = true});
  }
  op.outputs = {{.name = "y", .shape = {c.rows, c.width}},
                {.name = "sum", .shape = {c.rows, c.width}}};
  const Saved statistic{.spec = {{c.rows}}, .precision = Precision::kFull};
  op.saved = {statistic, statistic};  // mean and rstd, which layer_norm's own cases check
  op.forward = [c](Context& ctx, const OpTensors& t) {
    linear_add(ctx, t.in[kH], t.in[kWeight], c.bias ? t.in[kBias] : Tensor{}, t.in[kX], t.out[kSum],
               c.rounding);
    layer_norm(ctx, t.out[kSum], {.gain = t.in[kGain], .bias = t.in[kShift]},
               {.y = t.out[kY], .mean = t.saved[0], .rstd = t.saved[1]});
  };
  op.backward = [c](Context& ctx, const OpTensors& t) {
    Tensor dy = t.d_out[kY];
    norm_backward(ctx,
                  {.x = t.out[kSum],
                   .normed = {.y = t.out[kY], .mean = t.saved[0], .rstd = t.saved[1]},
                   .gain = t.in[kGain],
                   .dx = t.d_in[kX],
                   .dweights = {.gain = t.d_in[kGain], .bias = t.d_in[kShift]},
                   .write = c.write,
                   .dbias_before = c.bias ? t.d_in[kBias] : Tensor{}},
                  dy);
    linear_backward_weight(ctx, t.in[kH], t.d_in[kX], t.d_in[kWeight], {}, c.write);
    linear_backward_input(ctx, t.d_in[kX], t.in[kWeight], t.d_in[kH], Write::kOverwrite);
  };
  op.reference = [c](const std::vector<Values>& in) {
    const Values branch =
        reference::linear(in[kH], in[kWeight], c.bias ? in[kBias] : Values{}, c.in);
    const Values sum = reference::add(in[kX], branch);
    const reference::Normed normed = reference::layer_norm(sum, in[kGain], in[kShift]);
    return std::vector<Values>{normed.y, sum};
  };
  op.tokens = c.rows;
  op.forward_flops = product_flops(c.rows, c.in, c.width);
  op.backward_flops = 2.0 * op.forward_flops;
  return op;
}

OpCase gated_norm_case(const GatedNormCase& c) {
  OpCase op{.op = "gated_norm",
            .variant = fmt::format("rows{}_width{}_heads{}{}{}", c.rows, c.width, c.heads,
                                   c.bias ? "" : "_no_bias", suffix(c.write))};
  const auto weight = [&](const char* name) {
    return Input{.name = name,
                 .shape = {c.width},
                 .precision = Precision::kFull,
                 .scale = 0.5,
                 .offset = 1.0,
                 .write = c.write,
                 .gradient_follows_rounding = true};
  };
  const auto of_gate = [](const char* name, const Shape& shape) {
    return Input{
        .name = name, .shape = shape, .precision = Precision::kFull, .differentiable = false};
  };
  op.inputs = {{.name = "x", .shape = {c.rows, c.width}, .write = Write::kAccumulate},
               weight("gain"),
               weight("bias"),
               of_gate("gate's weight", {c.heads, c.width})};
  if (c.bias) {
    op.inputs.push_back(of_gate("gate's bias", {c.heads}));
  }
  const auto statistic = [&](const char* name) {
    return Output{
        .name = name, .shape = {c.rows}, .precision = Precision::kFull, .differentiable = false};
  };
  op.outputs = {{.name = "y", .shape = {c.rows, c.width}},
                statistic("mean"),
                statistic("rstd"),
                {.name = "logits",
                 .shape = {c.rows, c.heads},
                 .precision = Precision::kFull,
                 .follows_rounding = true}};
  op.forward = [c](Context& ctx, const OpTensors& t) {
    layer_norm(ctx, t.in[0], {.gain = t.in[1], .bias = t.in[2]},
               {.y = t.out[0], .mean = t.out[1], .rstd = t.out[2]},
               {.weight = t.in[3], .bias = c.bias ? t.in[4] : Tensor{}, .logits = t.out[3]});
  };
  op.backward = [c](Context& ctx, const OpTensors& t) {
    Tensor dy = t.d_out[0];
    norm_backward(ctx,
                  {.x = t.in[0],
                   .normed = {.y = t.out[0], .mean = t.out[1], .rstd = t.out[2]},
                   .gain = t.in[1],
                   .dx = t.d_in[0],
                   .dweights = {.gain = t.d_in[1], .bias = t.d_in[2]},
                   .write = c.write,
                   .gate_weight = t.in[3],
                   .dlogits = t.d_out[3]},
                  dy);
  };
  op.reference = [c](const std::vector<Values>& in) {
    const reference::Normed normed = reference::layer_norm(in[0], in[1], in[2]);
    return std::vector<Values>{
        normed.y, normed.mean, normed.rstd,
        reference::linear(normed.y, in[3], c.bias ? in[4] : Values{}, c.width)};
  };
  op.tokens = c.rows;
  return op;
}

OpCase embedding_case(const EmbeddingCase& c) {
  OpCase op{.op = "embedding",
            .variant = fmt::format("B{}_T{}_vocabulary{}_width{}", c.batch, c.length, c.vocabulary,
                                   c.width)};
  op.inputs = {{.name = "table",
                .shape = {c.vocabulary, c.width},
                .precision = Precision::kWeight,
                .write = Write::kAccumulate}};
  op.outputs = {{.name = "rows", .shape = {c.batch, c.length, c.width}}};
  const auto tokens = random_ids(op.name(), c.batch * c.length, c.vocabulary);
  op.constants = {{{c.batch, c.length}, tokens}};
  op.forward = [](Context& ctx, const OpTensors& t) {
    embedding(ctx, t.constants[0], t.in[0], t.out[0]);
  };
  op.backward = [](Context& ctx, const OpTensors& t) {
    embedding_backward(ctx, t.constants[0], t.d_out[0], t.d_in[0]);
  };
  op.reference = [=](const std::vector<Values>& in) {
    return std::vector<Values>{reference::embedding(tokens, in[0], c.width)};
  };
  op.tokens = c.batch * c.length;
  return op;
}

OpCase cross_entropy_case(const LossCase& c) {
  constexpr float kScale = 0.375F;
  OpCase op{
      .op = "cross_entropy",
      .variant = fmt::format("rows{}_classes{}_scale{}{}{}", c.rows, c.classes,
                             static_cast<int>(c.scale), c.offset != 0.0 ? "_shifted" : "",
                             c.ignore_every > 0 ? fmt::format("_ignore{}", c.ignore_every) : "")};
  op.inputs = {
      {.name = "logits", .shape = {c.rows, c.classes}, .scale = c.scale, .offset = c.offset}};
  op.outputs = {{.name = "losses",
                 .shape = {c.rows},
                 .precision = Precision::kFull,
                 .uniform_gradient = kScale}};
  const auto targets = random_ids(op.name(), c.rows, c.classes, c.ignore_every);
  op.constants = {{{c.rows}, targets}};
  op.forward = [](Context& ctx, const OpTensors& t) {
    cross_entropy(ctx, t.in[0], t.constants[0], t.out[0]);
  };
  op.backward = [](Context& ctx, const OpTensors& t) {
    const Tensor& logits = t.d_in[0];
    copy(t.in[0], logits);
    cross_entropy_in_place(ctx, logits, t.constants[0], t.out[0], kScale);
  };
  op.backward_redoes_forward = true;
  op.reference = [=](const std::vector<Values>& in) {
    return std::vector<Values>{reference::cross_entropy(in[0], targets)};
  };
  op.tokens = c.rows;
  return op;
}

OpCase classifier_case(const ClassifierCase& c) {
  constexpr float kScale = 0.375F;
  OpCase op{
      .op = "classifier",
      .variant = fmt::format(
          "rows{}_width{}_classes{}_chunk{}{}{}", c.rows, c.width, c.classes, c.chunk_rows,
          c.ignore_every > 0 ? fmt::format("_ignore{}", c.ignore_every) : "", suffix(c.write))};
  op.inputs = {{.name = "hidden", .shape = {c.rows, c.width}},
               {.name = "weight",
                .shape = {c.classes, c.width},
                .precision = Precision::kWeight,
                .scale = c.scale,
                .write = c.write,
                .gradient_follows_rounding = true}};
  op.outputs = {{.name = "losses",
                 .shape = {c.rows},
                 .precision = Precision::kFull,
                 .follows_rounding = true,
                 .uniform_gradient = kScale}};
  const auto targets = random_ids(op.name(), c.rows, c.classes, c.ignore_every);
  op.constants = {{{c.rows}, targets}};
  op.saved = {{.spec = {{c.chunk_rows > 0 ? c.chunk_rows : c.rows, c.classes}}}};
  const auto arguments = [](const OpTensors& t) {
    return Classifier{.hidden = t.in[0],
                      .weight = t.in[1],
                      .targets = t.constants[0],
                      .losses = t.out[0],
                      .logits = t.saved[0]};
  };
  op.forward = [=](Context& ctx, const OpTensors& t) { classifier_loss(ctx, arguments(t)); };
  op.backward = [=](Context& ctx, const OpTensors& t) {
    classifier_loss_backward(
        ctx, arguments(t),
        {.dhidden = t.d_in[0], .dweight = t.d_in[1], .scale = kScale, .write = c.write});
  };
  op.backward_redoes_forward = true;
  op.reference = [=](const std::vector<Values>& in) {
    return std::vector<Values>{
        reference::cross_entropy(reference::linear(in[0], in[1], {}, c.width), targets)};
  };
  op.tokens = c.rows;
  op.forward_flops = product_flops(c.rows, c.width, c.classes);
  op.backward_flops = 3.0 * op.forward_flops;  // the logits again, and two gradients
  return op;
}

}  // namespace carope::test
