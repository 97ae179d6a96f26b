#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "core/context.h"
#include "core/tensor.h"
#include "ops/write.h"
#include "support/reference_ops.h"

namespace carope::test {

/// What a tensor of floats is in a model that computes in bf16. In an fp32 model all are fp32.
enum class Precision : std::uint8_t {
  kActivation,  // bf16, and so is its gradient
  kWeight,      // bf16, but its gradient is fp32
  kFull,        // fp32, and so is its gradient
};

inline DType value_type(Precision precision, DType activation) {
  return precision == Precision::kFull ? DType::kF32 : activation;
}
inline DType gradient_type(Precision precision, DType activation) {
  return precision == Precision::kActivation ? activation : DType::kF32;
}

/// A float tensor that an operation reads, filled uniformly from [offset - scale, offset + scale].
struct Input {
  std::string name;
  Shape shape;
  Precision precision = Precision::kActivation;
  double scale = 1.0;
  double offset = 0.0;
  bool differentiable = true;
  Write write = Write::kOverwrite;         // how the backward pass writes its gradient
  bool gradient_follows_rounding = false;  // it is computed from an activation besides the inputs
  /// The output whose gradient this input's gradient holds when the backward pass begins, where the
  /// operation turns the one into the other in place or adds to it.
  std::optional<std::size_t> gradient_starts_as{};
};

/// A float tensor that an operation writes.
struct Output {
  std::string name;
  Shape shape;
  Precision precision = Precision::kActivation;
  bool follows_rounding = false;  // it is computed from an activation besides the inputs
  bool differentiable = true;     // false: checked, but no gradient comes from it
  /// The input whose values it holds when the operation begins, for operations in place.
  std::optional<std::size_t> starts_as{};
  /// Its gradient, where the operation takes one number for all elements; random otherwise.
  std::optional<float> uniform_gradient{};
};

/// A tensor that is no variable of the operation: tokens, document starts, increments, slopes.
struct Constant {
  Shape shape;
  std::variant<std::vector<std::int32_t>, std::vector<std::uint32_t>, std::vector<float>,
               std::vector<double>>
      values;
};

/// What forward leaves for backward, or workspace.
struct Saved {
  TensorSpec spec;
  Precision precision = Precision::kActivation;  // of floats
};

/// The tensors of one run of a case, in the order of its description. Gradients of what is not
/// differentiable are empty.
struct OpTensors {
  std::vector<Tensor> in;
  std::vector<Tensor> constants;
  std::vector<Tensor> out;
  std::vector<Tensor> saved;
  std::vector<Tensor> d_out;
  std::vector<Tensor> d_in;
};

/// One operation at one shape, described once. The description drives the comparison of its results
/// and gradients with the reference, on any device, and its timing.
struct OpCase {
  using Run = std::function<void(Context&, const OpTensors&)>;
  using Reference = std::function<std::vector<reference::Values>(  // inputs to outputs
      const std::vector<reference::Values>&)>;

  std::string op;
  std::string variant;
  std::vector<Input> inputs{};
  std::vector<Constant> constants{};
  std::vector<Output> outputs{};
  std::vector<Saved> saved{};
  Run forward{};
  Run backward{};  // empty: the operation has no gradient
  Reference reference{};
  bool backward_redoes_forward = false;  // the backward pass writes the outputs too
  bool bf16_only = false;                // in an fp32 model it would be another case once more
  /// How many times larger than a rounding of its intermediates the errors of its results may be.
  double condition = 1.0;

  std::int64_t tokens = 0;  // for timing, as are the floating-point operations of matrix products
  double forward_flops = 0.0;
  double backward_flops = 0.0;

  std::string name() const { return op + "_" + variant; }
};

}  // namespace carope::test
