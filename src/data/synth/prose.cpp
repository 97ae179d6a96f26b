#include "data/synth/prose.h"

#include <algorithm>
#include <charconv>
#include <vector>

namespace carope::synth {
namespace {

char capital(char letter) {
  return 'a' <= letter && letter <= 'z' ? static_cast<char>(letter - 'a' + 'A') : letter;
}

bool begins_with_vowel(std::string_view word) {
  return std::string_view("aeiou").find(word.front()) != std::string_view::npos;
}

}  // namespace

std::string_view digits(int number) {
  static const auto kDigits = [] {
    std::vector<std::string> all;
    for (int n = 0; n < 10000; ++n) {
      all.push_back(std::to_string(n));
    }
    return all;
  }();
  return kDigits.at(static_cast<std::size_t>(number));
}

int value_of(std::string_view digits) {
  int value = 0;
  std::from_chars(digits.data(), digits.data() + digits.size(), value);
  return value;
}

void Prose::append(std::string& text, std::string_view form, const Words& words) {
  for (std::size_t at = 0; at < form.size();) {
    const std::size_t mark = std::min(form.find_first_of("{[", at), form.size());
    text.append(form, at, mark - at);
    if (mark == form.size()) {
      return;
    }
    const std::size_t end = form.find(form[mark] == '{' ? '}' : ']', mark);
    std::string_view inside = form.substr(mark + 1, end - mark - 1);
    at = end + 1;
    if (form[mark] == '[') {
      std::uint32_t choices = 1;
      for (const char letter : inside) {
        choices += letter == '|' ? 1 : 0;
      }
      for (std::uint32_t skip = dice_.below(choices); skip > 0; --skip) {
        inside.remove_prefix(inside.find('|') + 1);
      }
      append(text, inside.substr(0, inside.find('|')), words);
      continue;
    }
    const std::string_view word = words[static_cast<std::size_t>(inside.back() - '0')];
    if (inside.front() == 'a') {
      text += begins_with_vowel(word) ? "an " : "a ";
    }
    const std::size_t start = text.size();
    text += word;
    if (inside.front() == '^') {
      text[start] = capital(text[start]);
    }
  }
}

std::string Prose::expand(std::string_view form, const Words& words) {
  std::string text;
  append(text, form, words);
  return text;
}

void Prose::say(std::string_view form, const Words& words) {
  if (!text_.empty() && text_.back() != '\n') {
    text_ += ' ';
  }
  const std::size_t start = text_.size();
  append(text_, form, words);
  const std::size_t first = text_[start] == '"' ? start + 1 : start;
  text_[first] = capital(text_[first]);
}

void Prose::line(std::string_view form, const Words& words) {
  end_paragraph();
  say(form, words);
  end_paragraph();
}

void Prose::end_paragraph() {
  if (!text_.empty() && text_.back() != '\n') {
    text_ += '\n';
  }
}

}  // namespace carope::synth
