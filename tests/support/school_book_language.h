#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace carope::test {

using Tokens = std::vector<std::string>;

/// A sentence of a known kind. In a pattern, $S, $V and $X are names (a word with a capital), $s,
/// $v and $x common words, which become the subject, the value, and a further word; an ending *
/// takes several words, # a number, - a plural; _ is any word, $P he or she, $Q his or her, and a|b
/// either. Without a subject it is about what the sentence before was about.
struct Pattern {
  std::string_view kind;
  std::string_view text;
};

std::span<const Pattern> statement_patterns();
std::span<const Pattern> question_patterns();
std::span<const Pattern> note_patterns();

struct Match {
  std::string_view kind;
  std::string subject, value, extra;
};

/// The first pattern that fits. Statements may have words before them, the others fit as a whole.
bool find_match(std::span<const Pattern> patterns, const Tokens& tokens, bool whole, Match& match);

}  // namespace carope::test
