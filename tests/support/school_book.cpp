#include "support/school_book.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <map>
#include <optional>

#include "support/school_book_language.h"

namespace carope::test {
namespace {

bool is_word(char letter) { return std::isalnum(static_cast<unsigned char>(letter)) != 0; }

/// Words, numbers, the 's of the genitive, and marks. Quotation marks say nothing here.
Tokens tokenise(std::string_view line) {
  Tokens tokens;
  for (std::size_t at = 0; at < line.size();) {
    std::size_t end = at + 1;
    if (line[at] == '\'') {
      end = at + 2;
    } else if (is_word(line[at])) {
      end = static_cast<std::size_t>(
          std::find_if_not(line.begin() + static_cast<std::ptrdiff_t>(at), line.end(), is_word) -
          line.begin());
    }
    if (line[at] != ' ' && line[at] != '"') {
      tokens.emplace_back(line.substr(at, end - at));
    }
    at = end;
  }
  return tokens;
}

std::string join(const Tokens& tokens) {
  std::string text;
  for (const std::string& token : tokens) {
    text.append(text.empty() ? "" : " ").append(token);
  }
  return text;
}

std::vector<Tokens> split(const Tokens& tokens, std::string_view marks) {
  std::vector<Tokens> parts(1);
  for (const std::string& token : tokens) {
    if (token.size() == 1 && marks.find(token[0]) != std::string_view::npos) {
      parts.emplace_back();
    } else {
      parts.back().push_back(token);
    }
  }
  std::erase_if(parts, [](const Tokens& part) { return part.empty(); });
  return parts;
}

bool begins(const Tokens& tokens, std::string_view text) {
  return fmt::format("{} ", join(tokens)).starts_with(fmt::format("{} ", text));
}

std::string lower(std::string text) {
  for (char& letter : text) {
    letter = static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
  }
  return text;
}

class Reader {
 public:
  explicit Reader(const std::string& document) {
    std::size_t at = document.find('\n') + 1;  // behind the title
    while (at < document.size()) {
      const std::size_t end = document.find('\n', at);
      paragraph(tokenise(std::string_view(document).substr(at, end - at)));
      at = end + 1;
    }
    reading_.facts = facts_.size();
  }

  Reading result() { return std::move(reading_); }

 private:
  struct Known {
    std::string value;
    std::size_t at;  // words before it was last mentioned
  };
  using Key = std::string;

  void paragraph(const Tokens& tokens) {
    subject_.clear();
    asked_.reset();
    result_.reset();
    if (begins(tokens, "Note")) {
      note(tokens);
    } else if (!begins(tokens, "Section")) {
      exercise_ = begins(tokens, "Question");
      Tokens one;
      for (const std::string& token : tokens) {
        one.push_back(token);
        if (token == "." || token == "?") {
          sentence(one);
          words_ += static_cast<std::size_t>(std::count_if(
              one.begin(), one.end(), [](const std::string& word) { return is_word(word[0]); }));
          one.clear();
        }
      }
      if (asked_ || result_) {
        mistake("is not answered", tokens);
      }
      return;
    }
    words_ += tokens.size();
  }

  void sentence(const Tokens& tokens) {
    here_ = tokens;
    if (tokens.back() == "?") {
      return question({tokens.begin(), tokens.end() - 1});
    }
    const std::vector<Tokens> parts = split(tokens, ".,:");
    if (claim_) {
      if (parts[0] != Tokens{*claim_ ? "Yes" : "No"}) {
        mistake(*claim_ ? "denies what is true" : "affirms what is false", tokens);
      }
      claim_.reset();
    }
    check_introduction(tokens);
    bool said = false;
    for (const Tokens& part : parts) {
      Match match;
      if (begins(part, "I think that")) {
        if (!find_match(statement_patterns(), part, false, match) || is_true(match)) {
          mistake("should be a wrong opinion", tokens);
        }
      } else if (!event(part) && find_match(statement_patterns(), part, false, match)) {
        said = state(match) || said;
      }
    }
    if (asked_ && exercise_ && !said) {
      brief_answer(tokens);
    }
  }

  void question(const Tokens& tokens) {
    if (asked_) {
      mistake("comes before the last question is answered", tokens);
    }
    // In a conversation the question may follow on who asks.
    const std::vector<Tokens> parts = split(tokens, ":");
    const Tokens& text = parts.back();
    Match match;
    if (begins(text, "Is it true that")) {
      if (!find_match(statement_patterns(), text, false, match)) {
        return mistake("asks for what cannot be understood", tokens);
      }
      claim_ = is_true(match);
      measure(key_of(match));
    } else if (problem(text)) {
      return;
    } else if (!find_match(question_patterns(), text, true, match)) {
      mistake("cannot be understood", tokens);
    } else if (!facts_.contains(key_of(match))) {
      mistake("asks for what has not been told", tokens);
    } else {
      asked_ = key_of(match);
      subject_ = match.subject;
      measure(*asked_);
    }
  }

  /// Questions that need a calculation: the last one in the answer must give the result.
  bool problem(const Tokens& text) {
    static const Pattern kProblems[] = {
        {"age", "how old will $S be in $v# years"},
        {"price", "how many coins does $S pay"},
        {"years", "how many years after the founding of $S was the $x*"},
        {"eggs", "how many eggs do $v# $s- lay each spring"},
        {"roads", "how far is it from $S by way of $V to $X"},
        {"carts", "how many do $v# of them carry"},
    };
    Match match;
    if (!find_match(kProblems, text, true, match)) {
      return false;
    }
    const auto number = [](const std::string& digits) { return std::stoi(digits); };
    const auto fact = [&](const std::string& kind, const std::string& subject,
                          const std::string& extra = "") {
      const Key key = key_of({kind, subject, "", extra});
      if (!facts_.contains(key)) {
        mistake("needs what has not been told", text);
        return 0;
      }
      measure(key);
      return number(facts_[key].value);
    };
    if (match.kind == "age") {
      result_ = fact("age", match.subject) + number(match.value);
    } else if (match.kind == "price") {
      result_ = amount_ * fact("price", bought_.subject, bought_.extra);
    } else if (match.kind == "years") {
      result_ = fact("event", match.subject, match.extra) - fact("founded", match.subject);
    } else if (match.kind == "eggs") {
      result_ = number(match.value) * fact("eggs", match.subject);
    } else if (match.kind == "roads") {
      result_ =
          fact("distance", match.subject, match.value) + fact("distance", match.value, match.extra);
    } else {
      result_ = number(match.value) * amount_;
    }
    return true;
  }

  /// What changes something, calculations, and what only the next question needs.
  bool event(const Tokens& part) {
    static const Pattern kEvents[] = {
        {"gives", "$S gives $v# _ to $X"},
        {"gets", "$S buys|finds $v# more $x"},
        {"loses", "$S loses $v# $x on|in|near the _"},
        {"leaves", "$S leaves $X and walks|rides|drives to $V"},
        {"buys", "_ buys $v# _ of $x in $S"},
        {"carries", "one _ carries $v# _"},
    };
    const auto position = std::find_if(part.begin(), part.end(), [](const std::string& word) {
      return word == "plus" || word == "minus" || word == "times";
    });
    if (position != part.end()) {
      calculation(part, position);
      return true;
    }
    Match match;
    if (!find_match(kEvents, part, false, match)) {
      return false;
    }
    const int amount = match.kind == "leaves" ? 0 : std::stoi(match.value);
    if (match.kind == "leaves") {
      const Key place = key_of({"place", match.subject, "", ""});
      const Key home = key_of({"home", match.subject, "", ""});
      const Key from = facts_.contains(place) ? place : home;
      if (facts_[from].value != match.extra) {
        mistake("leaves from elsewhere", part);
      }
      facts_[place] = {match.value, words_};
    } else if (match.kind == "buys" || match.kind == "carries") {
      amount_ = amount;
      bought_ = match;
      return true;
    } else if (match.kind == "gives") {
      const std::string item = part[part.size() - 3];
      change(match.subject, item, -amount);
      change(lower(part.back()), item, amount);
    } else {
      change(match.subject, match.extra, match.kind == "gets" ? amount : -amount);
    }
    ++reading_.events;
    return true;
  }

  void change(const std::string& person, const std::string& item, int amount) {
    const Key key = key_of({"count", person, "", item});
    if (!facts_.contains(key)) {
      return mistake("changes a number that was not told", here_);
    }
    const int count = std::stoi(facts_[key].value) + amount;
    if (count < 0) {
      mistake("leaves less than nothing", here_);
    }
    facts_[key] = {std::to_string(count), words_};
  }

  void calculation(const Tokens& part, Tokens::const_iterator sign) {
    const int a = std::stoi(*(sign - 1));
    const int b = std::stoi(*(sign + 1));
    const int c = std::stoi(*(sign + 3));
    ++reading_.sums;
    if (c != (*sign == "plus" ? a + b : *sign == "minus" ? a - b : a * b)) {
      mistake("is wrong", part);
    }
    if (result_) {
      if (*result_ != c) {
        mistake(fmt::format("should give {}", *result_), here_);
      }
      result_.reset();
    }
  }

  /// "Mara, the baker from Harrow, ..."
  void check_introduction(const Tokens& tokens) {
    for (std::size_t i = 0; i + 6 < tokens.size(); ++i) {
      if (tokens[i + 1] == "," && tokens[i + 2] == "the" && tokens[i + 4] == "from" &&
          tokens[i + 6] == ",") {
        state({"trade", lower(tokens[i]), tokens[i + 3], ""});
        state({"home", lower(tokens[i]), lower(tokens[i + 5]), ""});
      }
    }
  }

  void brief_answer(const Tokens& tokens) {
    const std::string answer = fmt::format(" {} ", lower(join(tokens)));
    const std::size_t longest = tokenise(facts_[*asked_].value).size() + 4;  // "It is a ... ."
    if (tokens.size() > longest ||
        answer.find(fmt::format(" {} ", facts_[*asked_].value)) == std::string::npos) {
      mistake(fmt::format("should say '{}'", facts_[*asked_].value), tokens);
    }
    facts_[*asked_].at = words_;
    asked_.reset();
  }

  void note(const Tokens& tokens) {
    here_ = tokens;
    exercise_ = true;
    const std::string subject = lower(tokens[3]);
    const std::string about = fmt::format("/{}/", subject);
    for (const Tokens& part : split({tokens.begin() + 5, tokens.end()}, ",.")) {
      Match match;
      if (find_match(note_patterns(), part, true, match)) {
        match.subject = subject;
        state(match);
        continue;
      }
      const bool article = part[0] == "a" || part[0] == "an";
      const std::string value = join({part.begin() + (article ? 1 : 0), part.end()});
      if (std::none_of(facts_.begin(), facts_.end(), [&](const auto& fact) {
            return fact.first.find(about) != Key::npos && fact.second.value == value;
          })) {
        mistake(fmt::format("notes '{}', which was not told", value), tokens);
      }
    }
  }

  /// Keeps what is said, which must not contradict what is known, and in exercises and notes must
  /// be known; it may be the awaited answer.
  bool state(const Match& match) {
    const Key key = key_of(match);
    if (key.find("//") == key.find('/')) {
      mistake("does not say about whom", here_);
      return false;
    }
    subject_ = match.subject.empty() ? subject_ : match.subject;
    const auto known = facts_.find(key);
    if (known == facts_.end() ? exercise_ : known->second.value != match.value) {
      mistake(fmt::format("contradicts {} = {}", key,
                          known == facts_.end() ? "?" : known->second.value),
              here_);
    }
    facts_[key] = {match.value, words_};
    if (asked_ && exercise_ && *asked_ != key) {
      mistake(fmt::format("does not answer {}", *asked_), here_);
    }
    if (asked_ && *asked_ == key) {
      asked_.reset();
    }
    return true;
  }

  bool is_true(const Match& match) {
    const auto known = facts_.find(key_of(match));
    if (known == facts_.end()) {
      mistake("is about something not told", here_);
      return false;
    }
    return known->second.value == match.value;
  }

  Key key_of(const Match& match) const {
    std::string subject = match.subject.empty() ? subject_ : match.subject;
    std::string extra = match.extra;
    if (match.kind == "distance" && extra < subject) {
      std::swap(extra, subject);
    }
    return fmt::format("{}/{}/{}", match.kind, subject, extra);
  }

  void measure(const Key& key) {
    if (facts_.contains(key)) {
      reading_.distances.push_back(words_ - facts_[key].at);
    }
  }

  void mistake(std::string_view what, const Tokens& tokens) {
    reading_.mistakes.push_back(fmt::format("'{}' {}", join(tokens), what));
  }

  Reading reading_;
  std::map<Key, Known> facts_;
  Tokens here_;
  std::string subject_;       // of the last statement
  std::optional<Key> asked_;  // the fact that the last question asked for
  std::optional<bool> claim_;
  std::optional<int> result_;  // of the calculation that was asked for
  int amount_ = 0;
  Match bought_;
  bool exercise_ = false;
  std::size_t words_ = 0;
};

}  // namespace

Reading read_school_book(const std::string& document) { return Reader(document).result(); }

}  // namespace carope::test
