#include "core/tensor.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <span>

namespace carope {

std::size_t size_of(DType dtype) {
  switch (dtype) {
    case DType::kF64:
      return 8;
    case DType::kF32:
    case DType::kI32:
    case DType::kU32:
      return 4;
    case DType::kBF16:
    case DType::kU16:
      return 2;
  }
  throw ShapeError("a tensor has no dtype");
}

const char* to_string(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "f32";
    case DType::kF64:
      return "f64";
    case DType::kBF16:
      return "bf16";
    case DType::kI32:
      return "i32";
    case DType::kU32:
      return "u32";
    case DType::kU16:
      return "u16";
  }
  return "?";
}

Bf16 to_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if (value != value) {
    return {static_cast<std::uint16_t>((bits >> 16) | 0x40)};  // quiet, whatever the low half was
  }
  return {static_cast<std::uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16)};
}

float to_float(Bf16 value) { return std::bit_cast<float>(std::uint32_t{value.bits} << 16); }

Shape::Shape(std::span<const std::int64_t> extents) : rank_(static_cast<int>(extents.size())) {
  check<ShapeError>(extents.size() <= kMaxRank, "a shape has at most {} axes, {} were given",
                    kMaxRank, extents.size());
  std::copy(extents.begin(), extents.end(), extents_.begin());
}

std::int64_t Shape::size() const {
  std::int64_t product = 1;
  for (int axis = 0; axis < rank_; ++axis) {
    check<ShapeError>(
        (*this)[axis] >= 0 && !__builtin_mul_overflow(product, (*this)[axis], &product),
        "a tensor of shape {} is not possible", *this);
  }
  return product;
}

std::string to_string(const Shape& shape) {
  std::array<std::int64_t, Shape::kMaxRank> extents{};
  for (int axis = 0; axis < shape.rank(); ++axis) {
    extents[static_cast<std::size_t>(axis)] = shape[axis];
  }
  return fmt::format("[{}]", fmt::join(std::span(extents.data(), shape.rank()), ", "));
}

Tensor Tensor::slice_rows(std::int64_t begin, std::int64_t end) const {
  check<ShapeError>(0 <= begin && begin <= end && end <= rows(),
                    "rows {} to {} are not within the {} rows", begin, end, rows());
  const auto offset = static_cast<std::size_t>(begin * cols()) * size_of(dtype());
  return {static_cast<std::byte*>(data_) + offset, {{end - begin, cols()}, dtype()}, device_};
}

Tensor Tensor::reshape(Shape shape) const {
  check<ShapeError>(shape.size() == size(), "{} cannot be reshaped to {}", spec_.shape, shape);
  return {data_, {shape, dtype()}, device_};
}

void Tensor::refuse_dtype(DType asked) const {
  throw ShapeError(fmt::format("a {} tensor was read as {}", to_string(dtype()), to_string(asked)));
}

void check_shape(const Tensor& tensor, const Shape& shape, const char* name) {
  check<ShapeError>(static_cast<bool>(tensor), "{} of shape {} is missing", name, shape);
  check<ShapeError>(tensor.shape() == shape, "{} has shape {}, expected {}", name, tensor.shape(),
                    shape);
}

}  // namespace carope
