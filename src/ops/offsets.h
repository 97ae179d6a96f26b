#pragma once

#include "core/context.h"

namespace carope {

/// Adds so many tokens to every row's offset: offsets [B] i32.
void advance(Context& ctx, const Tensor& offsets, std::int64_t tokens);

}  // namespace carope
