#include "position/encoding.h"

namespace carope {

/// No positional encoding: the causal mask alone tells order (NoPE).
std::unique_ptr<PositionEncoding> make_none(const EncodingSetup& /*setup*/) {
  return std::make_unique<UnrotatedEncoding>();
}

}  // namespace carope
