#include "ops/attention/attention_cudnn.h"

namespace carope::cuda::cudnn {
namespace {

[[noreturn]] void refuse() {
  throw DeviceError(
      "built without cuDNN: install cuDNN and the headers of cudnn-frontend, configure again and "
      "rebuild");
}

}  // namespace

bool serves(Context&, const Attention&, const Sequence&, const Tensor&) { return false; }
bool serves_backward(Context&, const Attention&, const Sequence&, const Tensor&) { return false; }
void attention(Context&, const Attention&, const Sequence&, const Tensor&, const Tensor&,
               const Tensor&) {
  refuse();
}
void attention_backward(Context&, const Attention&, const Sequence&, const AttentionBackward&) {
  refuse();
}

}  // namespace carope::cuda::cudnn
