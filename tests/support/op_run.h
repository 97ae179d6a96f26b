#pragma once

#include <string_view>
#include <vector>

#include "core/memory.h"
#include "support/op_case.h"

namespace carope::test {

/// Number i of a stream of numbers uniform in [-1, 1), each a function of the stream's name and i.
double uniform(std::string_view stream, std::uint64_t i);

// The values of a case in a model with activations of this type: what is bf16 there is rounded, so
// that a reference that starts from the same values differs by arithmetic alone.

/// What the case's input i holds, and what its gradient holds before it is accumulated to.
std::vector<float> input_values(const OpCase& op, std::size_t input,
                                DType activation = DType::kF32);
std::vector<float> gradient_before(const OpCase& op, std::size_t input,
                                   DType activation = DType::kF32);
/// The gradient that output i hands to the backward pass.
std::vector<float> output_gradient(const OpCase& op, std::size_t output,
                                   DType activation = DType::kF32);

/// A tensor's values, fp32 or bf16, wherever it lives.
std::vector<float> read(const Tensor& tensor);
void write(const std::vector<float>& values, const Tensor& tensor);
/// Copies between two tensors of one device and type.
void copy(const Tensor& from, const Tensor& to);

/// One run of a case: its tensors in memory of their own, so that a sanitizer sees every step
/// outside. What an operation has to write starts as NaN. The CPU computes in fp32 alone: a run in
/// bf16 there has the same values in fp32 tensors.
class OpRun {
 public:
  OpRun(const OpCase& op, Context& ctx, DType activation = DType::kF32);

  void forward() { op_.forward(ctx_, tensors_); }
  void backward() { op_.backward(ctx_, tensors_); }

  /// Sets every output to NaN.
  void spoil_outputs();
  /// Rounds all that is bf16 in the model, as storing it there would.
  void round_results();

  const OpCase& op() const { return op_; }
  DType activation() const { return activation_; }
  const OpTensors& tensors() const { return tensors_; }
  std::vector<std::vector<float>> outputs() const;
  /// Empty for what is not differentiable.
  std::vector<std::vector<float>> gradients() const;

 private:
  /// The type in which this device has what is of type `type` in the model.
  DType stored(DType type) const;
  Tensor allocate(const TensorSpec& spec);
  Tensor place(const Shape& shape, DType type, const std::vector<float>& values);
  Tensor place(const Constant& constant);

  const OpCase& op_;
  Context& ctx_;
  DType activation_;
  std::vector<Memory> memory_;
  OpTensors tensors_;
};

}  // namespace carope::test
