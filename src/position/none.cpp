#include "position/encoding.h"

namespace carope::encodings {

/// No positional encoding: the causal mask alone tells order (NoPE).
Encoding none(const ModelShape& /*shape*/, OptionReader& /*options*/) { return {}; }

}  // namespace carope::encodings
