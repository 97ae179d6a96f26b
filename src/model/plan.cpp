#include "model/plan.h"

#include <algorithm>

#include "ops/linear.h"

namespace carope {
namespace {

/// How many rows of logits exist at once. On the CPU, few enough to stay in the cache where the
/// vocabulary is small, and enough to keep a matrix product busy where it is large. On a GPU about
/// as many as 4 GiB of bf16 hold in training, where each part adds to the gradient of the whole
/// table, and otherwise 1 GiB of fp32: in equal parts, but for what makes them whole tiles of a
/// product.
std::int64_t logit_rows(std::int64_t rows, std::int64_t vocabulary, bool training, Device device) {
  if (device.kind == DeviceKind::kCuda) {
    const std::int64_t most = std::int64_t{1} << (training ? 31 : 28);
    const std::int64_t parts = (rows * vocabulary + most - 1) / most;
    constexpr std::int64_t kTile = 256;
    return std::min(rows, (rows + parts * kTile - 1) / (parts * kTile) * kTile);
  }
  constexpr std::int64_t kElements = std::int64_t{2} << 20;
  constexpr std::int64_t kFewest = 256;
  return std::min(rows, std::max(kFewest, kElements / vocabulary));
}

/// The encoding, as the kernel sees it that rotates and attends.
RotatingAttention rotating_attention(const ModelShape& shape, const Encoding& encoding,
                                     DType compute, const Pass& pass) {
  RotatingAttention rotating{.dtype = compute,
                             .heads = shape.heads,
                             .key_heads = shape.key_heads,
                             .head_dim = shape.head_dim,
                             .length = pass.length,
                             .documents = pass.documents,
                             .slopes = encoding.bias.has_value()};
  if (encoding.rotation) {
    rotating.rotary_dim = 2 * encoding.rotation->pairs;
    const auto* power = std::get_if<PowerTurns>(&encoding.rotation->turns);
    rotating.ratios = power != nullptr && !power->ratios.empty();
  }
  return rotating;
}

RotatedBy rotated_by(const Encoding& encoding, bool fused) {
  if (!encoding.rotation) {
    return RotatedBy::kNothing;
  }
  if (std::holds_alternative<CustomTurns>(encoding.rotation->turns)) {
    return RotatedBy::kHostFunctions;
  }
  return fused ? RotatedBy::kAttention : RotatedBy::kOwnKernel;
}

KeptOfGelu kept_of_gelu(const GptConfig& config, Device device, DType compute, const Pass& pass) {
  if (!pass.trains()) {
    // A GPU's product with a GELU behind it stores the GELU's input in any case.
    return device.kind == DeviceKind::kCuda ? KeptOfGelu::kInput : KeptOfGelu::kNothing;
  }
  // The GELU's result, which is then made again, cannot be made from a slope.
  return pass.purpose == Purpose::kTraining &&
                 prefers_slopes(device, compute, pass.tokens(), config.width, config.mlp_width())
             ? KeptOfGelu::kSlope
             : KeptOfGelu::kInput;
}

}  // namespace

const char* to_string(Purpose purpose) {
  switch (purpose) {
    case Purpose::kTraining:
      return "training";
    case Purpose::kRecomputing:
      return "training, recomputing";
    case Purpose::kEvaluation:
      return "evaluation";
    case Purpose::kPrefill:
      return "prefill";
    case Purpose::kDecoding:
      return "decoding";
  }
  return "";
}

Plan make_plan(const GptConfig& config, const Encoding& encoding, Device device, DType compute,
               const Pass& pass) {
  check<ConfigError>(pass.batch >= 1 && pass.length >= 1,
                     "a batch of {} x {} tokens is not possible", pass.batch, pass.length);
  check<ConfigError>(!pass.documents || !pass.continues(), "packed documents cannot be decoded");
  check<ConfigError>(pass.purpose != Purpose::kDecoding || pass.length == 1,
                     "decoding takes one token a row, not {}", pass.length);
  const bool custom =
      encoding.rotation && std::holds_alternative<CustomTurns>(encoding.rotation->turns);
  const bool fused =
      !pass.continues() && !custom &&
      serves_rotate_and_attend(device, rotating_attention(config.shape(), encoding, compute, pass));
  return {.pass = pass,
          .device = device,
          .compute = compute,
          .head_dim = config.head_dim(),
          .rotated_by = rotated_by(encoding, fused),
          .fused_attention = fused,
          .keeps_phases = fused && pass.trains() && gate_of(encoding) != nullptr,
          .gelu = kept_of_gelu(config, device, compute, pass),
          .shares_activations = pass.purpose == Purpose::kRecomputing,
          // A sequence that comes in pieces must not show where it was cut.
          .rounding = pass.continues() ? Rounding::kByRow : Rounding::kAsFastest,
          .logit_rows = logit_rows(pass.tokens(), config.vocabulary, pass.trains(), device)};
}

std::string rotation_kernels(const Plan& plan) {
  switch (plan.rotated_by) {
    case RotatedBy::kNothing:
      return "none";
    case RotatedBy::kAttention:
      return "inside attention's kernel";
    case RotatedBy::kOwnKernel:
      return "a kernel before attention";
    case RotatedBy::kHostFunctions:
      return "functions on the host, vector by vector: slow";
  }
  return "";
}

std::string attention_kernels(const Plan& plan) {
  if (plan.device.kind == DeviceKind::kCpu) {
    return plan.pass.continues() ? "tiles on the CPU, over the cache" : "tiles on the CPU";
  }
  if (plan.fused_attention) {
    return "Hopper's rotate_and_attend";
  }
  if (plan.pass.continues() && plan.pass.length <= kMostDecoded) {
    return "parts of the cache, joined";
  }
  const bool on_tensor_cores = plan.compute == DType::kBF16 &&
                               (plan.head_dim == 32 || plan.head_dim == 64 || plan.head_dim == 128);
  const std::string own = on_tensor_cores ? "tiles on tensor cores" : "tiles in fp32 arithmetic";
  return plan.pass.continues() || plan.compute != DType::kBF16
             ? own
             : own + ", or cuDNN where it serves and is measured to be faster";
}

std::string describe(const Plan& plan) {
  const char* const gelu = plan.gelu == KeptOfGelu::kSlope   ? "its derivative"
                           : plan.gelu == KeptOfGelu::kInput ? "its input"
                                                             : "nothing";
  return fmt::format(
      "pass        {}: {} x {} tokens{}, {} on {}\n"
      "rotation    {}{}\n"
      "attention   {}\n"
      "GELU        keeps {}\n"
      "blocks      {}\n"
      "logits      {} rows at a time\n",
      to_string(plan.pass.purpose), plan.pass.batch, plan.pass.length,
      plan.pass.documents ? " of packed documents" : "", to_string(plan.compute),
      plan.device.kind == DeviceKind::kCpu ? "the CPU" : fmt::format("GPU {}", plan.device.index),
      rotation_kernels(plan), plan.keeps_phases ? ", which keeps each token's phases" : "",
      attention_kernels(plan), gelu,
      plan.shares_activations ? "share the results of norms and GELUs, which are computed again"
      : plan.pass.trains()    ? "keep their activations"
                              : "share one set of activations",
      plan.logit_rows);
}

}  // namespace carope
