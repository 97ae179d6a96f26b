#pragma once

#include <fmt/format.h>

#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>

namespace carope {

/// Up to four extents, kept inline so that making a view allocates nothing.
class Shape {
 public:
  static constexpr int kMaxRank = 4;

  Shape() = default;
  Shape(std::initializer_list<std::int64_t> extents)
      : Shape(std::span(extents.begin(), extents.size())) {}
  explicit Shape(std::span<const std::int64_t> extents);

  int rank() const { return rank_; }
  std::int64_t operator[](int axis) const { return extents_[static_cast<std::size_t>(axis)]; }
  std::int64_t size() const;

  friend bool operator==(const Shape&, const Shape&) = default;

 private:
  std::array<std::int64_t, kMaxRank> extents_{};
  int rank_ = 0;
};

std::string to_string(const Shape& shape);

}  // namespace carope

/// Lets a check name a shape without making a string of it unless the check fails.
template <>
struct fmt::formatter<carope::Shape> : fmt::formatter<std::string> {
  template <class FormatContext>
  auto format(const carope::Shape& shape, FormatContext& context) const {
    return fmt::formatter<std::string>::format(carope::to_string(shape), context);
  }
};
