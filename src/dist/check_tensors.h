#pragma once

#include "core/tensor.h"

// What all communicators ask of the tensors they are given.
namespace carope {

inline void check_device(const Tensor& values, Device device) {
  check<ShapeError>(values.device() == device, "the ranks share tensors on {}, not on {}",
                    to_string(device), to_string(values.device()));
}

inline void check_summable(const Tensor& values) {
  check<ShapeError>(values.dtype() == DType::kF32 || values.dtype() == DType::kF64,
                    "ranks sum f32 and f64, not {}", to_string(values.dtype()));
}

inline void check_parts(const Tensor& values, const Tensor& own, int size) {
  check<ShapeError>(values.dtype() == own.dtype() && values.size() == own.size() * size,
                    "a part of {} {} is not one of the {} equal parts of {} {}", own.size(),
                    to_string(own.dtype()), size, values.size(), to_string(values.dtype()));
}

inline void check_root(int root, int size) {
  check<ShapeError>(0 <= root && root < size, "rank {} of {} cannot be the root", root, size);
}

}  // namespace carope
