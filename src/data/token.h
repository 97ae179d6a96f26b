#pragma once

#include <cstdint>

namespace carope {

/// A token of a vocabulary. Shards hold 16 bits a token, so a vocabulary has at most 65 536.
using TokenId = std::uint16_t;

inline constexpr std::int64_t kLargestVocabulary = 65536;

}  // namespace carope
