#pragma once

#include <span>

#include "core/context.h"

namespace carope {

struct Adamw {
  float learning_rate;
  float beta1 = 0.9F;
  float beta2 = 0.95F;
  float epsilon = 1e-8F;
  double clip = 0.0;      // largest norm of all gradients together; 0 for no limit
  std::int64_t step = 1;  // from 1, for the bias correction of the moments
};

/// One parameter's tensors, all of the parameter's shape.
struct AdamwSlot {
  Tensor value;
  Tensor gradient;
  Tensor first_moment;
  Tensor second_moment;
  Tensor rounded{};    // bf16: gets a copy of the new value; or empty
  float decay = 0.0F;  // decoupled: value -= learning_rate * decay * value
};

/// squares [1] f64 = Σ gradient² over all slots, summed in fp64 in an order that does not depend on
/// the number of threads. It is the square of their norm, as slots that others hold can be added.
void gradient_squares(Context& ctx, std::span<const AdamwSlot> slots, const Tensor& squares);

/// One AdamW update of every slot, in place, with the gradients scaled down to the clip. `squares`
/// are those of all gradients that are clipped together; if they are not finite, nothing changes.
void adamw(Context& ctx, const Adamw& adamw, std::span<const AdamwSlot> slots,
           const Tensor& squares);

}  // namespace carope
