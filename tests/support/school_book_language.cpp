#include "support/school_book_language.h"

#include <cctype>
#include <map>

namespace carope::test {
namespace {

constexpr Pattern kStatements[] = {
    {"home", "$S lives in $V"},
    {"home", "$S has a house in $V"},
    {"home", "$S 's home is in $V"},
    {"home", "$P lives in $V"},
    {"home", "$P has a house in $V"},
    {"home", "$Q home is in $V"},
    {"trade", "$S is a|an $v"},
    {"trade", "$S works as a|an $v"},
    {"trade", "$S earns $Q bread as a|an $v"},
    {"trade", "$P is a|an $v"},
    {"trade", "$P works as a|an $v"},
    {"trade", "$P earns $Q bread as a|an $v"},
    {"age", "$S is $v# years old"},
    {"age", "$S has lived for $v# years"},
    {"age", "$P is $v# years old"},
    {"age", "$P has lived for $v# years"},
    {"teacher", "$S was taught by $V"},
    {"teacher", "$V taught $S"},
    {"teacher", "$S 's teacher was $V"},
    {"teacher", "$P was taught by $V"},
    {"teacher", "$Q teacher was $V"},
    {"friend", "$S 's best friend is $V"},
    {"friend", "the best friend of $S is $V"},
    {"friend", "$Q best friend is $V"},
    {"sibling", "$V is the $x=sister|brother of $S"},
    {"sibling", "$S 's $x=sister|brother is $V"},
    {"sibling", "$Q $x=sister|brother is $V"},
    {"sibling", "$P has a $x=sister|brother whose name is $V"},
    {"coat", "$S wears a|an $v coat"},
    {"coat", "$S 's coat is $v"},
    {"coat", "$P wears a|an $v coat"},
    {"coat", "$Q coat is $v"},
    {"food", "$S likes $v* best"},
    {"food", "$S 's favourite food is $v*"},
    {"food", "$S could eat $v* every day"},
    {"food", "$P likes $v* best"},
    {"food", "$Q favourite food is $v*"},
    {"food", "$P could eat $v* every day"},
    {"pet", "$S has a|an $x called $V"},
    {"pet", "$S 's $x is called $V"},
    {"pet", "the name of $S 's $x is $V"},
    {"pet", "$P has a|an $x called|named $V"},
    {"pet", "$Q $x is called $V"},
    {"treasure", "$S keeps|hides $Q _ $x $v*"},
    {"treasure", "$S 's _ $x lies $v*"},
    {"treasure", "$P keeps|hides $Q _ $x $v*"},
    {"treasure", "$Q _ $x lies $v*"},
    {"river", "$S lies on the river $V"},
    {"river", "the river $V flows through $S"},
    {"river", "the river at $S is the $V"},
    {"river", "it lies on the river $V"},
    {"river", "the river $V flows through it"},
    {"river", "its river is the $V"},
    {"good", "$S is known for its $v"},
    {"good", "the people of $S sell $v"},
    {"good", "the best $v comes from $S"},
    {"good", "it is known for its $v"},
    {"good", "its people sell $v"},
    {"good", "the best $v comes from there"},
    {"inhabitants", "$S has $v# inhabitants"},
    {"inhabitants", "$v# people live in $S"},
    {"inhabitants", "it has $v# inhabitants"},
    {"inhabitants", "$v# people live there"},
    {"founded", "the town of $S was founded in the year $v#"},
    {"founded", "the first houses of $S were built in $v#"},
    {"founded", "$S was founded in $v#"},
    {"founded", "it was founded in $v#"},
    {"founded", "its first houses were built in $v#"},
    {"market", "the market of $S is held on $V"},
    {"market", "$S holds its market on $V"},
    {"market", "market day in $S is on $V"},
    {"market", "its market is held on $V"},
    {"market", "it holds its market on $V"},
    {"landmark", "in the middle of $S stands a|an $v*"},
    {"landmark", "$S is proud of its $v*"},
    {"landmark", "the pride of $S is its $v*"},
    {"landmark", "in the middle of it stands a|an $v*"},
    {"landmark", "it is proud of its $v*"},
    {"builder", "the builder of the $x* of $S was $V"},
    {"builder", "the $x* of $S was built by $V"},
    {"builder", "$V built the $x* of $S"},
    {"builder", "its $x* was built by $V"},
    {"mayor", "the mayor of $S is $V"},
    {"mayor", "$V is the mayor of $S"},
    {"mayor", "its mayor is $V"},
    {"mayor", "the mayor there is $V"},
    {"event", "the $x* of $S was in $v#"},
    {"event", "in $v# the $x* came to $S"},
    {"event", "the $x* came to $S in $v#"},
    {"event", "its $x* was in $v#"},
    {"event", "in $v# the town had its $x*"},
    {"price", "in $S a|an _ of $x costs $v# coins"},
    {"price", "a|an _ of $x costs $v# coins in $S"},
    {"price", "the people of $S pay $v# coins for a|an _ of $x"},
    {"price", "there a|an _ of $x costs $v# coins"},
    {"distance", "the road from $S to $X is $v# miles long"},
    {"distance", "$S and $X are $v# miles apart"},
    {"distance", "it is $v# miles from $S to $X"},
    {"distance", "from there to $X it is $v# miles"},
    {"hour", "the $s is awake $v*"},
    {"hour", "the $s comes out $v*"},
    {"hour", "the $s looks for food $v*"},
    {"hour", "it is awake $v*"},
    {"hour", "it comes out $v*"},
    {"hour", "it looks for food $v*"},
    {"seen", "the $s is often seen near $V"},
    {"seen", "many $s- live near $V"},
    {"seen", "it is often seen near $V"},
    {"seen", "many of them live near $V"},
    {"habitat", "the $s lives $v*"},
    {"habitat", "the $s is found $v*"},
    {"habitat", "the $s makes its home $v*"},
    {"habitat", "it lives $v*"},
    {"habitat", "it is found $v*"},
    {"habitat", "it makes its home $v*"},
    {"diet", "the food of the $s is $v*"},
    {"diet", "the $s eats $v*"},
    {"diet", "the $s feeds on $v*"},
    {"diet", "it eats $v*"},
    {"diet", "it feeds on $v*"},
    {"diet", "its food is $v*"},
    {"eggs", "the $s lays $v# eggs each spring"},
    {"eggs", "each spring the $s lays $v# eggs"},
    {"eggs", "it lays $v# eggs each spring"},
    {"eggs", "each spring it lays $v# eggs"},
    {"made", "the best ones are made in $V"},
    {"made", "the best ones come from $V"},
    {"made", "the best $s- are made in $V"},
    {"made", "the best $s- come from $V"},
    {"users", "a|an $s is used by $v"},
    {"users", "a|an $s is of great use to $v"},
    {"users", "$v use a|an $s"},
    {"users", "it is used by $v"},
    {"users", "it is of great use to $v"},
    {"users", "$v use it"},
    {"is", "the word $s means a|an $v*"},
    {"is", "by a|an $s we mean a|an $v*"},
    {"is", "the $s is a|an $v*"},
    {"is", "a|an $s is a|an $v*"},
    {"is", "it is a|an $v*"},
    {"count", "$S has $v# $x"},
    {"count", "$S now has $v# $x"},
    {"count", "there are $v# $x in $S 's basket"},
    {"count", "$P has $v# $x"},
    {"count", "there are $v# $x in $Q basket"},
    {"place", "$S is staying in $V"},
    {"place", "$S is now in $V"},
};

constexpr Pattern kQuestions[] = {
    {"home", "where does $S live"},
    {"home", "in which town is $S 's home"},
    {"trade", "what is $S 's trade"},
    {"trade", "what work does $S do"},
    {"age", "how old is $S"},
    {"age", "how many years has $S lived"},
    {"teacher", "who taught $S"},
    {"teacher", "who was $S 's teacher"},
    {"pet", "what is $S 's $x called"},
    {"pet", "what is the name of $S 's $x"},
    {"coat", "what colour is $S 's coat"},
    {"coat", "what is the colour of $S 's coat"},
    {"food", "what is $S 's favourite food"},
    {"food", "what does $S like best to eat"},
    {"treasure", "where does $S keep $Q _ $x"},
    {"treasure", "where is $S 's _ $x"},
    {"friend", "who is $S 's best friend"},
    {"friend", "who is the best friend of $S"},
    {"sibling", "who is the $x=sister|brother of $S"},
    {"sibling", "what is the name of the $x=sister|brother of $S"},
    {"river", "on which river does $S lie"},
    {"river", "which river flows through $S"},
    {"good", "what is $S known for"},
    {"good", "what do the people of $S sell"},
    {"inhabitants", "how many people live in $S"},
    {"inhabitants", "how many inhabitants does $S have"},
    {"founded", "when was $S founded"},
    {"founded", "in which year was $S founded"},
    {"market", "on which day is the market of $S held"},
    {"market", "when is market day in $S"},
    {"landmark", "what stands in the middle of $S"},
    {"landmark", "what is the pride of $S"},
    {"builder", "who built the $x* of $S"},
    {"builder", "by whom was the $x* of $S built"},
    {"mayor", "who is the mayor of $S"},
    {"mayor", "what is the name of the mayor of $S"},
    {"event", "when was the $x* of $S"},
    {"event", "in which year did the $x* come to $S"},
    {"price", "how much does a|an _ of $x cost in $S"},
    {"price", "what is the price of a|an _ of $x in $S"},
    {"distance", "how far is it from $S to $X"},
    {"distance", "how long is the road from $S to $X"},
    {"is", "what kind of animal is the $s"},
    {"is", "what is the $s"},
    {"is", "what is a|an $s"},
    {"is", "what does the word $s mean"},
    {"habitat", "where does the $s live"},
    {"habitat", "where is the $s found"},
    {"diet", "what does the $s eat"},
    {"diet", "what is the food of the $s"},
    {"eggs", "how many eggs does the|a|an $s lay"},
    {"eggs", "how many eggs does the|a|an $s lay each spring"},
    {"hour", "when is the $s awake"},
    {"hour", "when does the $s come out"},
    {"seen", "near which town is the $s often seen"},
    {"seen", "near which town do many $s- live"},
    {"made", "where are the best $s- made"},
    {"made", "from which town do the best $s- come"},
    {"users", "who uses a|an $s"},
    {"users", "by whom is a|an $s used"},
    {"count", "how many $x does $S have"},
    {"count", "how many $x are in $S 's basket"},
    {"place", "where is $S now"},
    {"place", "in which town is $S staying"},
};

constexpr Pattern kNotes[] = {
    {"home", "home in $V"},        {"age", "$v# years old"},   {"teacher", "taught by $V"},
    {"pet", "a|an $x called $V"},  {"coat", "a|an $v coat"},   {"food", "likes $v*"},
    {"friend", "best friend $V"},  {"river", "river $V"},      {"inhabitants", "$v# people"},
    {"founded", "founded in $v#"}, {"market", "market on $V"}, {"mayor", "mayor $V"},
    {"event", "$x* in $v#"},       {"diet", "eats $v*"},       {"eggs", "$v# eggs"},
    {"hour", "awake $v*"},         {"seen", "near $V"},        {"made", "made in $V"},
    {"users", "used by $v"},
};

bool one_of(std::string_view alternatives, std::string_view word);

bool is_name(const std::string& token) {
  return std::isupper(static_cast<unsigned char>(token[0])) != 0 &&
         !one_of("A|An|By|Each|He|Her|His|In|It|Its|She|The|There", token);
}
bool is_number(const std::string& token) {
  return std::isdigit(static_cast<unsigned char>(token[0])) != 0;
}

std::string lower(std::string text) {
  for (char& letter : text) {
    letter = static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
  }
  return text;
}

bool one_of(std::string_view alternatives, std::string_view word) {
  while (true) {
    const std::size_t end = alternatives.find('|');
    if (alternatives.substr(0, end) == word) {
      return true;
    }
    if (end == std::string_view::npos) {
      return false;
    }
    alternatives.remove_prefix(end + 1);
  }
}

const std::vector<std::string_view>& parts_of(const Pattern& pattern) {
  static std::map<const char*, std::vector<std::string_view>> known;
  auto& parts = known[pattern.text.data()];
  for (std::size_t at = 0; parts.empty() || at > 0;) {
    const std::size_t end = pattern.text.find(' ', at);
    parts.push_back(pattern.text.substr(at, end - at));
    at = end + 1;  // 0 after the last
  }
  return parts;
}

/// Fits the parts from `part` on to the tokens from `at` on, all of them.
bool fits(const std::vector<std::string_view>& parts, std::size_t part, const Tokens& tokens,
          std::size_t at, Match& match) {
  if (part == parts.size() || at == tokens.size()) {
    return part == parts.size() && at == tokens.size();
  }
  const std::string_view want = parts[part];
  const std::string& token = tokens[at];
  if (want[0] != '$') {
    return (want == "_" || one_of(want, at == 0 ? lower(token) : token)) &&
           fits(parts, part + 1, tokens, at + 1, match);
  }
  if (want == "$P" || want == "$Q") {
    return one_of(want == "$P" ? "he|she" : "his|her", at == 0 ? lower(token) : token) &&
           fits(parts, part + 1, tokens, at + 1, match);
  }
  const char role = static_cast<char>(std::toupper(static_cast<unsigned char>(want[1])));
  const bool several = want.back() == '*';
  const bool name = role == want[1];
  if (want.back() == '#' ? !is_number(token)
      : name             ? !is_name(token)
                         : is_number(token) || token[0] == '\'' || (is_name(token) && at > 0)) {
    return false;
  }
  if (want.size() > 2 && want[2] == '=' &&
      !one_of(want.substr(3, want.size() - 3 - (several ? 1 : 0)), token)) {
    return false;
  }
  std::string& captured = role == 'S' ? match.subject : role == 'V' ? match.value : match.extra;
  std::string taken = lower(token);
  if (want.back() == '-') {
    taken.pop_back();
  }
  for (std::size_t end = at + 1;; ++end) {
    if (fits(parts, part + 1, tokens, end, match)) {
      captured = taken;
      return true;
    }
    if (!several || end == tokens.size()) {
      return false;
    }
    taken += " " + tokens[end];
  }
}

}  // namespace

std::span<const Pattern> statement_patterns() { return kStatements; }
std::span<const Pattern> question_patterns() { return kQuestions; }
std::span<const Pattern> note_patterns() { return kNotes; }

bool find_match(std::span<const Pattern> patterns, const Tokens& tokens, bool whole, Match& match) {
  for (const Pattern& pattern : patterns) {
    const auto& parts = parts_of(pattern);
    if (parts.size() > tokens.size()) {
      continue;
    }
    // The shortest first: "we know that the tower of Harrow" is not about a "know that the tower".
    for (std::size_t at = whole ? 1 : tokens.size() - parts.size() + 1; at-- > 0;) {
      match = {pattern.kind, {}, {}, {}};
      if (fits(parts, 0, tokens, at, match)) {
        return true;
      }
    }
  }
  return false;
}

}  // namespace carope::test
