#pragma once

#include <utility>
#include <vector>

#include "model/gpt.h"
#include "support/op_run.h"

namespace carope::test {

/// A model on a device, with batches and results that the CPU can read. What differs between
/// devices in using a model is here and nowhere else in the tests.
class DeviceModel {
 public:
  DeviceModel(const GptConfig& config, Context ctx, DType compute = DType::kF32)
      : ctx_(std::move(ctx)), gpt_(config, ctx_.device(), compute) {}

  Context& ctx() { return ctx_; }
  Gpt& gpt() { return gpt_; }
  std::span<const Parameter> parameters() const { return gpt_.parameters(); }

  /// Calls change(parameter, values) with each parameter's values, and keeps what it makes of them.
  template <class Change>
  void change_parameters(const Change& change) {
    for (std::size_t number = 0; number < parameters().size(); ++number) {
      std::vector<float> values = read(parameters()[number].value);
      change(parameters()[number], values);
      gpt_.memory().set(number, values);
    }
  }

  double loss(const Batch& batch, Activations& a) { return gpt_.loss(ctx_, uploaded(batch), a); }
  double loss_and_gradients(const Batch& batch, Activations& a) {
    return gpt_.loss_and_gradients(ctx_, uploaded(batch), a, Write::kOverwrite);
  }
  /// Logits [N, V] of a batch's tokens.
  std::vector<float> logits(const Batch& batch, Activations& a, DecodeState* state = nullptr) {
    const Batch here = uploaded(batch);
    gpt_.forward(ctx_, here.seq, here.tokens, a, state);
    const TensorSpec spec{{here.seq.tokens(), gpt_.config().vocabulary}};
    const Memory memory(ctx_.device(), spec.bytes());
    const Tensor logits(memory.data(), spec, ctx_.device());
    gpt_.logits(ctx_, a, logits);
    return read(logits);
  }

 private:
  Batch uploaded(const Batch& batch) {
    return batch_.upload(ctx_, batch, gpt_.config().vocabulary);
  }

  Context ctx_;
  Gpt gpt_;
  DeviceBatch batch_;
};

}  // namespace carope::test
