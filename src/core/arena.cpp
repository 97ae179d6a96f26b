#include "core/arena.h"

namespace carope {

Tensor Arena::take(const TensorSpec& spec) {
  const std::size_t begin = used_;
  used_ += (spec.bytes() + Memory::kAlignment - 1) / Memory::kAlignment * Memory::kAlignment;
  if (memory_.data() == nullptr) {
    return {nullptr, spec, device_};
  }
  check<Error>(used_ <= memory_.bytes(), "a layout took {} bytes but had measured only {}", used_,
               memory_.bytes());
  return {static_cast<std::byte*>(memory_.data()) + begin, spec, device_};
}

void Arena::commit() {
  memory_ = Memory(device_, used_);
  used_ = 0;
}

}  // namespace carope
