#pragma once

#include "core/context.h"
#include "ops/rounding.h"
#include "ops/write.h"

// Dense layers. Weights are [out, in]; activations are [..., features].
namespace carope {

/// y = x Wᵀ + b. An empty bias is zero.
void linear(Context& ctx, const Tensor& x, const Tensor& weight, const Tensor& bias,
            const Tensor& y, Rounding rounding = Rounding::kAsFastest);

/// y = x Wᵀ + b + residual: a branch of a block and what it is added to. `y` is not `residual`.
void linear_add(Context& ctx, const Tensor& x, const Tensor& weight, const Tensor& bias,
                const Tensor& residual, const Tensor& y, Rounding rounding = Rounding::kAsFastest);

/// What a GELU leaves for its backward pass: one of these.
struct SavedGelu {
  Tensor input{};  // [N, O]
  Tensor slope{};  // [N, O] its derivative at the input

  const Tensor& kept() const { return slope ? slope : input; }
};

/// Whether saving slopes is faster for such a layer: its forward kernel also stores gelu'(x), and
/// the backward pass only multiplies by it.
bool prefers_slopes(Device device, DType dtype, std::int64_t rows, std::int64_t in,
                    std::int64_t out);

/// y = gelu(x Wᵀ + b). On the CPU `saved` may be empty, where no backward pass follows.
void linear_gelu(Context& ctx, const Tensor& x, const Tensor& weight, const Tensor& bias,
                 const SavedGelu& saved, const Tensor& y, Rounding rounding = Rounding::kAsFastest);

/// y = gelu(x), as linear_gelu() has it.
void gelu(Context& ctx, const Tensor& x, const Tensor& y);

/// dx = dy W, or dx += dy W.
void linear_backward_input(Context& ctx, const Tensor& dy, const Tensor& weight, const Tensor& dx,
                           Write write);

/// dx = (dy W) gelu'(x): through this layer and the GELU before it, whose input x was. dbias = Σ
/// dx, or added to what is there: the gradient of the bias in the layer before the GELU, unless it
/// is empty.
void linear_backward_gelu(Context& ctx, const Tensor& dy, const Tensor& weight,
                          const SavedGelu& saved, const Tensor& dpre, const Tensor& dbias,
                          Write write);

/// dW = dyᵀ x and db = Σ dy, or added to what is there. What is empty is skipped.
void linear_backward_weight(Context& ctx, const Tensor& x, const Tensor& dy, const Tensor& dweight,
                            const Tensor& dbias, Write write);

}  // namespace carope
