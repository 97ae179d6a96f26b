#pragma once

#include "core/context.h"

namespace carope {

/// Floating-point operations a second that dense layers reach on this device at best, measured with
/// one large matrix product; what a training step is to be compared with.
double peak_flops(Context& ctx);

}  // namespace carope
