#include "core/arena.h"
#include "position/rotary_options.h"

namespace carope {
namespace {

/// Rotary position embedding with fixed frequencies base^(-2p/D).
class Rope : public PositionEncoding {
 public:
  explicit Rope(const EncodingSetup& setup) {
    check_rotary(setup.shape);
    const auto increments = rope_increments(setup.shape.pairs(), rotary_base(setup.options));
    rotary_ = {.heads = setup.shape.heads,
               .layout = rotary_layout(setup.options),
               .increments = upload(setup.device, increments, memory_)};
  }

  void rotate(Context& ctx, const Sequence& seq, const LayerView& /*layer*/,
              const Tensor& qkv) const override {
    rotary(ctx, rotary_, seq, Direction::kForward, qkv);
  }

  void rotate_backward(Context& ctx, const Sequence& seq, const LayerView& /*layer*/,
                       const Tensor& /*qkv*/, const Tensor& dqkv,
                       const LayerGradients& /*gradients*/) const override {
    rotary(ctx, rotary_, seq, Direction::kBackward, dqkv);
  }

  std::optional<AttentionInput> attention_input(const LayerView& /*layer*/) const override {
    return AttentionInput{.layout = rotary_.layout, .increments = rotary_.increments};
  }

 private:
  Memory memory_;
  Rotary rotary_;
};

}  // namespace

std::unique_ptr<PositionEncoding> make_rope(const EncodingSetup& setup) {
  return std::make_unique<Rope>(setup);
}

}  // namespace carope
