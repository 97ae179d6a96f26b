#pragma once

#include <cstddef>
#include <string_view>

namespace carope {

/// The first piece of `text` as GPT-2 splits it before merging, that is the match of
///     's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
/// at its beginning, in bytes. Bytes that are not UTF-8 are neither letter, number nor space, each
/// for itself. `text` must not be empty.
std::size_t first_piece(std::string_view text);

/// The last place in `text` where it can be cut without changing its pieces: between something and
/// a space after it. 0 if there is none.
std::size_t last_safe_cut(std::string_view text);

}  // namespace carope
