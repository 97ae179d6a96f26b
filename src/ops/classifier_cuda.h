#pragma once

#include "ops/cross_entropy.h"

namespace carope::cuda {

/// classifier_loss_backward() of one chunk of rows in bf16 on Hopper, where no logits are stored.
/// Returns false, having done nothing, where it does not serve. A loss above 69 may be too low.
bool hopper_classifier(Context& ctx, const Classifier& chunk, const ClassifierGradient& gradient);

}  // namespace carope::cuda
