#include "core/error.h"
#include "ops/adamw.h"
#include "ops/attention.h"
#include "ops/classifier_cuda.h"
#include "ops/cross_entropy.h"
#include "ops/embedding.h"
#include "ops/linear.h"
#include "ops/norm.h"
#include "ops/offsets.h"
#include "ops/pick_token.h"
#include "ops/rotation.h"
#include "ops/sinusoid.h"
#include "ops/sum.h"

// In the place of the CUDA kernels where there are none. No context of such a build asks for them.
namespace carope::cuda {
namespace {

[[noreturn]] void refuse() {
  throw DeviceError("built without CUDA: there is no such kernel; use the CPU");
}

}  // namespace

using C = Context;
using T = const Tensor&;
using S = const Sequence&;

void adamw(C&, const Adamw&, std::span<const AdamwSlot>, T) { refuse(); }
void gradient_squares(C&, std::span<const AdamwSlot>, T) { refuse(); }
void attention(C&, const Attention&, S, T, T, T) { refuse(); }
void attention_backward(C&, const Attention&, S, const AttentionBackward&) { refuse(); }
void rotate_and_attend(C&, const Attention&, S, const Rotation&, T, T, T) { refuse(); }
void rotate_and_attend_backward(C&, const Attention&, S, const Rotation&, const AttentionBackward&,
                                const RotateAndAttendGradients&) {
  refuse();
}
bool serves_rotate_and_attend(Device, const RotatingAttention&) { refuse(); }
void attention_cached(C&, const Attention&, S, T, const KeyValueCache&, T) { refuse(); }
void cross_entropy(C&, T, T, T) { refuse(); }
void cross_entropy_in_place(C&, T, T, T, float) { refuse(); }
bool serves_hopper_classifier(C&, const Classifier&, const ClassifierGradient&) { refuse(); }
void hopper_classifier(C&, const Classifier&, const ClassifierGradient&) { refuse(); }
void embedding(C&, T, T, T) { refuse(); }
void embedding_backward(C&, T, T, T) { refuse(); }
void add_positions(C&, S, T, T) { refuse(); }
void add_positions_backward(C&, S, T, T, Write) { refuse(); }
void linear(C&, T, T, T, T, Rounding) { refuse(); }
void linear_add(C&, T, T, T, T, T, Rounding) { refuse(); }
bool prefers_slopes(Device, DType, std::int64_t, std::int64_t, std::int64_t) { refuse(); }
void linear_gelu(C&, T, T, T, const SavedGelu&, T, Rounding) { refuse(); }
void gelu(C&, T, T) { refuse(); }
void linear_backward_input(C&, T, T, T, Write) { refuse(); }
void linear_backward_gelu(C&, T, T, const SavedGelu&, T, T, Write) { refuse(); }
void linear_backward_weight(C&, T, T, T, T, Write) { refuse(); }
void layer_norm(C&, T, const NormWeights&, const Normed&, const NormGate&) { refuse(); }
void norm_backward(C&, const NormBackward&, Tensor&) { refuse(); }
void advance(C&, T, std::int64_t) { refuse(); }
void pick_token(C&, const TokenChoice&, T, TokenPick*) { refuse(); }
void rotate_fixed(C&, const Rotation&, S) { refuse(); }
void rotate_fixed_backward(C&, const Rotation&, S, const RotationGradients&) { refuse(); }
void rotate_gated(C&, const Rotation&, S) { refuse(); }
void rotate_gated_backward(C&, const Rotation&, S, const RotationGradients&) { refuse(); }
void add_sinusoid(C&, S, T, float, T) { refuse(); }
void add_sum(C&, T, double, T) { refuse(); }

}  // namespace carope::cuda
