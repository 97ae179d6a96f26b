#pragma once

#include <vector>

#include "core/memory.h"
#include "core/tensor.h"

namespace carope {

/// Places tensors one after another in a single block of memory. A layout is a function that takes
/// its tensors from the arena; `plan` runs it twice, first to measure and then to place, so a
/// layout is written once and nothing is allocated after it.
class Arena {
 public:
  Arena() = default;

  template <class Layout>
  static Arena plan(Device device, Layout&& layout) {
    Arena arena(device);
    layout(arena);
    arena.commit();
    layout(arena);
    return arena;
  }

  /// While measuring, the tensor has its shape but no memory yet.
  Tensor take(const TensorSpec& spec);
  Tensor take(const Shape& shape) { return take({shape, DType::kF32}); }

  std::size_t bytes() const { return memory_.bytes(); }

  /// Sets every byte to zero.
  void clear() {
    if (bytes() > 0) {
      carope::clear(memory_.data(), bytes(), memory_.device());
    }
  }

 private:
  explicit Arena(Device device) : device_(device) {}
  void commit();

  Device device_;
  Memory memory_;
  std::size_t used_ = 0;
};

/// A vector's values on a device, in memory that `memory` will own.
template <class T>
Tensor upload(Device device, const std::vector<T>& values, Memory& memory) {
  const TensorSpec spec{{static_cast<std::int64_t>(values.size())}, kDTypeOf<T>};
  memory = Memory(device, spec.bytes());
  copy_from_host(memory.data(), values.data(), spec.bytes(), device);
  return {memory.data(), spec, device};
}

}  // namespace carope
