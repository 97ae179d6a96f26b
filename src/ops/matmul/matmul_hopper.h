#pragma once

#include "ops/linear.h"

// Matrix products that make more of their sums, in bf16 on Hopper. They serve no other GPUs and
// types, and only shapes that are whole tiles.
namespace carope::cuda {

/// linear_gelu(), and whether it is served.
bool hopper_serves_gelu(Context& ctx, const Tensor& x, const Tensor& weight, const Tensor& bias,
                        const SavedGelu& saved, const Tensor& y);
void hopper_linear_gelu(Context& ctx, const Tensor& x, const Tensor& weight, const Tensor& bias,
                        const SavedGelu& saved, const Tensor& y);

/// linear_backward_gelu(), and whether it is served.
bool hopper_serves_backward_gelu(Context& ctx, const Tensor& dy, const Tensor& weight,
                                 const SavedGelu& saved, const Tensor& dpre);
void hopper_backward_gelu(Context& ctx, const Tensor& dy, const Tensor& weight,
                          const SavedGelu& saved, const Tensor& dpre, const Tensor& dbias,
                          Write write);

/// So many columns of powers have one share in the sum of a row.
inline constexpr int kColumnsOfShare = 256;

/// y = 2^(log2(e) x Wᵀ - shifts), and the sums of its rows before they are rounded, in shares to be
/// added up. A power is at most 2^100.
struct PowerProduct {
  Tensor x;       // [N, K]
  Tensor weight;  // [V, K]
  Tensor shifts;  // [N] f32
  Tensor y;       // [N, V]
  Tensor shares;  // [V / kColumnsOfShare, rounded up, N] f32
};

/// Whether hopper_powers() serves.
bool hopper_makes_powers(Context& ctx, const Tensor& x, const Tensor& weight, const Tensor& y);
void hopper_powers(Context& ctx, const PowerProduct& args);

}  // namespace carope::cuda
