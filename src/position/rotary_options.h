#pragma once

#include "position/encoding.h"

// Options that rotary encodings share.
namespace carope {

RotaryLayout rotary_layout(OptionReader& options);
double rotary_base(OptionReader& options);

/// Refuses heads that cannot be cut into rotary pairs.
void check_rotary(const ModelShape& shape);

}  // namespace carope
