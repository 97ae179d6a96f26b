#pragma once

#include <cstdint>

#include "core/device.h"
#include "core/error.h"
#include "core/shape.h"

namespace carope {

enum class DType : std::uint8_t { kF32, kF64, kBF16, kI32, kU32, kU16 };

/// A bfloat16 number as the CPU sees it: bits to be stored, copied and converted.
struct Bf16 {
  std::uint16_t bits;
};
/// Rounds to the nearest, ties to even; a NaN stays one.
Bf16 to_bf16(float value);
float to_float(Bf16 value);

std::size_t size_of(DType dtype);
const char* to_string(DType dtype);

template <class T>
extern const DType kDTypeOf;  // for the types below only
template <>
inline constexpr DType kDTypeOf<float> = DType::kF32;
template <>
inline constexpr DType kDTypeOf<double> = DType::kF64;
template <>
inline constexpr DType kDTypeOf<Bf16> = DType::kBF16;
template <>
inline constexpr DType kDTypeOf<std::int32_t> = DType::kI32;
template <>
inline constexpr DType kDTypeOf<std::uint32_t> = DType::kU32;
template <>
inline constexpr DType kDTypeOf<std::uint16_t> = DType::kU16;

/// What must be known to make room for a tensor.
struct TensorSpec {
  Shape shape;
  DType dtype = DType::kF32;

  std::size_t bytes() const { return static_cast<std::size_t>(shape.size()) * size_of(dtype); }
};

/// A dense row-major view of memory that somebody else owns. Copying a Tensor copies the view; a
/// const Tensor is a view that cannot be re-pointed, its elements stay writable. A default Tensor
/// is empty and stands for "not given".
class Tensor {
 public:
  Tensor() = default;
  Tensor(void* data, TensorSpec spec, Device device = {})
      : data_(data), spec_(spec), device_(device) {}

  /// A CPU view of a contiguous container.
  template <class Container>
  static Tensor of(Container& values, Shape shape) {
    using T = typename Container::value_type;
    check<ShapeError>(static_cast<std::int64_t>(values.size()) == shape.size(),
                      "{} values cannot be viewed as {}", values.size(), shape);
    return Tensor(values.data(), {shape, kDTypeOf<T>});
  }

  explicit operator bool() const { return data_ != nullptr; }
  const Shape& shape() const { return spec_.shape; }
  DType dtype() const { return spec_.dtype; }
  Device device() const { return device_; }
  std::int64_t size() const { return spec_.shape.size(); }
  std::size_t bytes() const { return spec_.bytes(); }
  std::int64_t dim(int axis) const { return spec_.shape[axis]; }

  /// The extent of the last axis.
  std::int64_t cols() const { return spec_.shape[spec_.shape.rank() - 1]; }
  /// The product of all axes but the last.
  std::int64_t rows() const { return size() / cols(); }

  template <class T>
  T* data() const {
    if (spec_.dtype != kDTypeOf<T>) [[unlikely]] {
      refuse_dtype(kDTypeOf<T>);
    }
    return static_cast<T*>(data_);
  }
  float* f32() const { return data<float>(); }
  /// The elements, whatever their type.
  void* raw() const { return data_; }

  /// Rows [begin, end) of the tensor seen as [rows, cols].
  Tensor slice_rows(std::int64_t begin, std::int64_t end) const;
  /// The same elements in another shape.
  Tensor reshape(Shape shape) const;

 private:
  [[noreturn]] void refuse_dtype(DType asked) const;

  void* data_ = nullptr;
  TensorSpec spec_;
  Device device_;
};

/// Throws a ShapeError that names the tensor unless it is given and has this shape.
void check_shape(const Tensor& tensor, const Shape& shape, const char* name);

}  // namespace carope
