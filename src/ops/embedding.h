#pragma once

#include "core/context.h"
#include "ops/sequence.h"
#include "ops/write.h"

namespace carope {

/// out[n] = table[tokens[n]]. tokens [B, T] i32, table [V, C], out [B, T, C].
void embedding(Context& ctx, const Tensor& tokens, const Tensor& table, const Tensor& out);

/// dtable[tokens[n]] += dout[n].
void embedding_backward(Context& ctx, const Tensor& tokens, const Tensor& dout,
                        const Tensor& dtable);

/// x[b, t] += table[position of (b, t)]. table [positions, C], x [B, T, C].
void add_positions(Context& ctx, const Sequence& seq, const Tensor& table, const Tensor& x);

/// dtable[position] = (or +=) the sum of dx over the tokens at that position.
void add_positions_backward(Context& ctx, const Sequence& seq, const Tensor& dx,
                            const Tensor& dtable, Write write);

}  // namespace carope
