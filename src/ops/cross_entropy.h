#pragma once

#include "core/context.h"
#include "ops/rounding.h"
#include "ops/write.h"

namespace carope {

/// losses[n] = -log softmax(logits[n])[targets[n]]. logits [N, V], targets [N] i32, losses [N]. A
/// negative target is not counted: its loss and gradient are zero.
void cross_entropy(Context& ctx, const Tensor& logits, const Tensor& targets, const Tensor& losses);

/// As above, and replaces the logits by `scale` times the gradient of the losses' sum.
void cross_entropy_in_place(Context& ctx, const Tensor& logits, const Tensor& targets,
                            const Tensor& losses, float scale);

/// The last layer and the loss together, in chunks of rows: only as many rows of logits exist at
/// once as `logits` has room for.
struct Classifier {
  Tensor hidden;   // [N, C]
  Tensor weight;   // [V, C]
  Tensor targets;  // [N] i32
  Tensor losses;   // [N] result
  Tensor logits;   // [rows of a chunk, V] workspace
  Rounding rounding = Rounding::kAsFastest;
};

void classifier_loss(Context& ctx, const Classifier& args);

struct ClassifierGradient {
  Tensor dhidden;  // [N, C]
  Tensor dweight;  // [V, C]
  float scale;     // of the losses' sum
  Write write;     // of dweight
};

/// The losses and, in the same pass, the gradients.
void classifier_loss_backward(Context& ctx, const Classifier& args,
                              const ClassifierGradient& gradient);

}  // namespace carope
