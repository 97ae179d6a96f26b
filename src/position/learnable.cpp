#include "ops/embedding.h"
#include "position/encoding.h"

namespace carope {
namespace {

/// One trained vector a position, added to the embedding.
class Learnable : public UnrotatedEncoding {
 public:
  explicit Learnable(const EncodingSetup& setup)
      : positions_(setup.options.integer("positions", setup.shape.length, 1)),
        width_(setup.shape.width) {}

  std::optional<std::int64_t> max_length() const override { return positions_; }

  std::vector<ParameterSpec> parameters() const override {
    return {{.name = "table",
             .shape = {positions_, width_},
             .init = {.deviation = 0.02},
             .decay = true}};
  }

  void add_to_embedding(Context& ctx, const Sequence& seq, std::span<const Tensor> weights,
                        const Tensor& x) const override {
    add_positions(ctx, seq, weights[0], x);
  }

  void add_to_embedding_backward(Context& ctx, const Sequence& seq, const Tensor& dx,
                                 std::span<const Tensor> gradients, Write write) const override {
    add_positions_backward(ctx, seq, dx, gradients[0], write);
  }

 private:
  std::int64_t positions_;
  std::int64_t width_;
};

}  // namespace

std::unique_ptr<PositionEncoding> make_learnable(const EncodingSetup& setup) {
  return std::make_unique<Learnable>(setup);
}

}  // namespace carope
