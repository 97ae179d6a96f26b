#pragma once

#include <cstdint>

#include "core/random.h"

namespace carope {

/// A random order of the numbers [0, size), a function of (size, seed, stream), that is never laid
/// out: any place of it can be asked for.
class Permutation {
 public:
  /// `size` is 1 to 2^62.
  Permutation(std::int64_t size, std::uint64_t seed, std::uint64_t stream);

  /// The number at a place in [0, size).
  std::int64_t operator()(std::int64_t place) const;

 private:
  std::uint64_t size_;
  int half_bits_;
  Philox random_;
};

}  // namespace carope
