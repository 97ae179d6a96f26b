#include "position/encoding.h"

namespace carope {
namespace {

/// No positional encoding: the causal mask alone tells order (NoPE).
class None : public PositionEncoding {
 public:
  std::optional<TokenRotation> token_rotation(const LayerView& /*layer*/) const override {
    return TokenRotation{};
  }
};

}  // namespace

std::unique_ptr<PositionEncoding> make_none(const EncodingSetup& /*setup*/) {
  return std::make_unique<None>();
}

}  // namespace carope
