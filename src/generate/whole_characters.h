#pragma once

#include <string>
#include <string_view>

namespace carope {

/// Passes text on in whole UTF-8 characters: a token may end in the middle of one. Bytes that are
/// not UTF-8 pass as they are.
class WholeCharacters {
 public:
  /// What can be shown of the text so far, and has not been shown, once `bytes` have come.
  std::string add(std::string_view bytes);
  /// The beginning of a character whose end never came.
  std::string finish();

 private:
  std::string held_;
};

}  // namespace carope
