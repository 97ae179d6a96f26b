#include "ops/sinusoid.h"

#include <numbers>

#include "core/arena.h"
#include "ops/rotary.h"
#include "position/encoding.h"

namespace carope {
namespace {

/// Fixed sines and cosines, added to the embedding. The default scale gives them the root mean
/// square of a fresh embedding; at scale 1 they drown it.
class Sinusoidal : public UnrotatedEncoding {
 public:
  explicit Sinusoidal(const EncodingSetup& setup)
      : scale_(static_cast<float>(setup.options.number("scale", 0.02 * std::numbers::sqrt2, 0.0))) {
    constexpr double kBase = 10000.0;
    check<ConfigError>(setup.shape.width % 2 == 0,
                       "model.width = {} must be even for sinusoidal positions", setup.shape.width);
    increments_ = upload(setup.device, rope_increments(setup.shape.width / 2, kBase), memory_);
  }

  void add_to_embedding(Context& ctx, const Sequence& seq, std::span<const Tensor> /*weights*/,
                        const Tensor& x) const override {
    add_sinusoid(ctx, seq, increments_, scale_, x);
  }

 private:
  float scale_;
  Memory memory_;
  Tensor increments_;  // [C/2] u32
};

}  // namespace

std::unique_ptr<PositionEncoding> make_sinusoidal(const EncodingSetup& setup) {
  return std::make_unique<Sinusoidal>(setup);
}

}  // namespace carope
