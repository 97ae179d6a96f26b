#pragma once

#include "core/context.h"
#include "ops/heads.h"
#include "position/encoding.h"

namespace carope {

/// Applies a map to every vector of q and k in qkv, on the host. Slow, and says so the first time.
void rotate_on_host(Context& ctx, const Sequence& seq, const CustomTurns::Map& map, const Heads& q,
                    const Heads& k, const Tensor& qkv);

}  // namespace carope
