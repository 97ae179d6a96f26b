#include <cmath>

#include "core/arena.h"
#include "position/encoding.h"

namespace carope {
namespace {

/// Attention with linear biases: head h of H is penalised by 2^(-8(h+1)/H) a token of distance.
class Alibi : public UnrotatedEncoding {
 public:
  explicit Alibi(const EncodingSetup& setup) {
    const std::int64_t heads = setup.shape.heads;
    std::vector<float> slopes;
    for (std::int64_t h = 0; h < heads; ++h) {
      slopes.push_back(static_cast<float>(
          std::exp2(-8.0 * static_cast<double>(h + 1) / static_cast<double>(heads))));
    }
    slopes_ = upload(setup.device, slopes, memory_);
  }

  Tensor attention_slopes() const override { return slopes_; }

 private:
  Memory memory_;
  Tensor slopes_;  // [H]
};

}  // namespace

std::unique_ptr<PositionEncoding> make_alibi(const EncodingSetup& setup) {
  return std::make_unique<Alibi>(setup);
}

}  // namespace carope
