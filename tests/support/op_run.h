#pragma once

#include <string_view>
#include <vector>

#include "core/memory.h"
#include "support/op_case.h"

namespace carope::test {

/// Number i of a stream of numbers uniform in [-1, 1), each a function of the stream's name and i.
double uniform(std::string_view stream, std::uint64_t i);

/// What the case's input i holds, and what its gradient holds before it is accumulated to.
std::vector<float> input_values(const OpCase& op, std::size_t input);
std::vector<float> gradient_before(const OpCase& op, std::size_t input);
/// The gradient that output i hands to the backward pass.
std::vector<float> output_gradient(const OpCase& op, std::size_t output);

/// A tensor's values, wherever it lives.
std::vector<float> read(const Tensor& tensor);
/// Copies between two tensors of one device.
void copy(const Tensor& from, const Tensor& to);

/// One run of a case: its tensors in memory of their own, so that a sanitizer sees every step
/// outside. What an operation has to write starts as NaN.
class OpRun {
 public:
  OpRun(const OpCase& op, Context& ctx);

  void forward() { op_.forward(ctx_, tensors_); }
  void backward() { op_.backward(ctx_, tensors_); }

  /// Sets every output to NaN.
  void spoil_outputs();

  const OpTensors& tensors() const { return tensors_; }
  std::vector<std::vector<float>> outputs() const;
  /// Empty for what is not differentiable.
  std::vector<std::vector<float>> gradients() const;

 private:
  Tensor allocate(const TensorSpec& spec);
  Tensor place(const Shape& shape, const std::vector<float>& values);
  Tensor place(const Constant& constant);

  const OpCase& op_;
  Context& ctx_;
  std::vector<Memory> memory_;
  OpTensors tensors_;
};

}  // namespace carope::test
