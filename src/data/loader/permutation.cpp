#include "data/loader/permutation.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace carope {
namespace {

// Halves of two bits are too small: the orders of five numbers would not be equally likely.
constexpr int kFewestHalfBits = 3;
constexpr std::uint64_t kRounds = 8;

}  // namespace

Permutation::Permutation(std::int64_t size, std::uint64_t seed, std::uint64_t stream)
    : size_(static_cast<std::uint64_t>(size)),
      half_bits_(std::max(kFewestHalfBits, (static_cast<int>(std::bit_width(size_ - 1)) + 1) / 2)),
      random_(seed, stream) {}

std::int64_t Permutation::operator()(std::int64_t place) const {
  // A Feistel network permutes the numbers of 2 * half_bits_ bits. What falls outside of [0, size_)
  // is permuted again: the cycle that it is on leads back inside.
  const std::uint64_t mask = (std::uint64_t{1} << half_bits_) - 1;
  auto number = static_cast<std::uint64_t>(place);
  do {
    std::uint64_t left = number >> half_bits_;
    std::uint64_t right = number & mask;
    for (std::uint64_t round = 0; round < kRounds; ++round) {
      left ^= random_(round << 32 | right)[0] & mask;
      std::swap(left, right);
    }
    number = left << half_bits_ | right;
  } while (number >= size_);
  return static_cast<std::int64_t>(number);
}

}  // namespace carope
