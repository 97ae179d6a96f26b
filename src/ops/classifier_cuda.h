#pragma once

#include "ops/cross_entropy.h"

namespace carope::cuda {

/// classifier_loss_backward() of one chunk of rows in bf16 on Hopper, where no logits are stored;
/// and whether it is served. A loss above 69 may be too low.
bool serves_hopper_classifier(Context& ctx, const Classifier& chunk,
                              const ClassifierGradient& gradient);
void hopper_classifier(Context& ctx, const Classifier& chunk, const ClassifierGradient& gradient);

}  // namespace carope::cuda
