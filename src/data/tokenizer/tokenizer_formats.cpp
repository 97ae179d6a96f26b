#include "data/tokenizer/tokenizer_formats.h"

#include <openssl/evp.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "core/error.h"
#include "core/json.h"
#include "data/tokenizer/byte_alphabet.h"

namespace carope {
namespace {

using Json = nlohmann::json;

constexpr const char* kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

/// Every cut of a token may be looked up, which takes time as the square of its length.
constexpr std::size_t kLongestToken = 4096;

Json parse_file(const TokenizerFile& file) {
  try {
    return parse_json<Json>(file.content, file.name);
  } catch (const Json::exception& error) {
    throw FileError(
        fmt::format("{} is not readable JSON: {}; get it again", file.name, error.what()));
  }
}

/// Calls `visit(line, number)` for each line, numbered from 1, without its end.
template <class Visit>
void for_each_line(std::string_view text, const Visit& visit) {
  for (std::int64_t number = 1; !text.empty(); ++number) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    if (line.ends_with('\r')) {
      line.remove_suffix(1);
    }
    visit(line, number);
    text.remove_prefix(std::min(end + 1, text.size()));
  }
}

/// Collects the tokens and merges of a file and refuses what makes no sense.
class Collector {
 public:
  explicit Collector(std::string name) : name_(std::move(name)) {}

  TokenizerDefinition definition;

  void add_token(std::string bytes, std::int64_t id, const std::string& shown) {
    check_id(id, shown);
    const auto index = static_cast<std::size_t>(id);
    if (index >= definition.tokens.size()) {
      definition.tokens.resize(index + 1);
    }
    check<FileError>(definition.tokens[index].empty(),
                     "{}: id {} is given to '{}' and to another token; get the file again", name_,
                     id, shown);
    check<FileError>(!bytes.empty(), "{}: token {} is empty; get the file again", name_, id);
    ids_.emplace(bytes, static_cast<TokenId>(id));
    definition.tokens[index] = std::move(bytes);
  }

  void add_special(const std::string& text, std::int64_t id) {
    check_id(id, text);
    check<FileError>(!text.empty(), "{}: special token {} is empty; get the file again", name_, id);
    definition.specials.push_back({text, static_cast<TokenId>(id)});
  }

  /// `place` is how messages name the merge, e.g. "line 12".
  void add_merge(std::string_view left, std::string_view right, const std::string& place) {
    const TokenId first = id_of(left, place);
    const TokenId second = id_of(right, place);
    const auto left_bytes = from_alphabet(left);
    const auto right_bytes = from_alphabet(right);
    const auto result = ids_.find(*left_bytes + *right_bytes);
    check<FileError>(result != ids_.end(),
                     "{}, {}: '{}' and '{}' merge into a token that the vocabulary does not have; "
                     "are both files of one tokenizer?",
                     name_, place, left, right);
    definition.merges.push_back(
        {first, second, result->second, static_cast<std::uint32_t>(definition.merges.size())});
  }

  /// Refuses a list of merges that was cut off. A token that is no two tokens of the vocabulary
  /// never came from a merge: it is a special one, of which the files of some models name many.
  void check_merges_are_complete() const {
    std::vector<bool> made(definition.tokens.size());
    for (const Merge& merge : definition.merges) {
      made[merge.result] = true;
    }
    for (std::size_t id = 0; id < made.size(); ++id) {
      if (!made[id] && is_two_tokens(definition.tokens[id])) {
        throw FileError(fmt::format(
            "{} is incomplete: it has {} merges, but none makes token {} of the vocabulary, '{}'; "
            "get it again, GPT-2's with carope tokenizer fetch gpt2",
            name_, definition.merges.size(), id, to_alphabet(definition.tokens[id])));
      }
    }
  }

  std::optional<TokenId> find(const std::string& bytes) const {
    const auto found = ids_.find(bytes);
    return found == ids_.end() ? std::nullopt : std::optional(found->second);
  }

 private:
  void check_id(std::int64_t id, const std::string& shown) const {
    check<FileError>(id >= 0 && id < kLargestVocabulary,
                     "{}: '{}' has id {}; token shards have 16 bits a token, so ids go up to {}. "
                     "Use a tokenizer with a smaller vocabulary, such as GPT-2's",
                     name_, shown, id, kLargestVocabulary - 1);
  }

  bool is_two_tokens(const std::string& bytes) const {
    for (std::size_t cut = 1; cut < bytes.size() && bytes.size() <= kLongestToken; ++cut) {
      if (find(bytes.substr(0, cut)) && find(bytes.substr(cut))) {
        return true;
      }
    }
    return false;
  }

  TokenId id_of(std::string_view text, const std::string& place) const {
    const auto bytes = from_alphabet(text);
    const auto id = bytes ? find(*bytes) : std::nullopt;
    check<FileError>(id.has_value(),
                     "{}, {}: '{}' is not in the vocabulary; are both files of one tokenizer?",
                     name_, place, text);
    return *id;
  }

  std::string name_;
  std::unordered_map<std::string, TokenId> ids_;
};

/// Adds a vocabulary from token text to id. Special tokens are left out: `is_special` tells.
template <class IsSpecial>
void add_vocabulary(Collector& collector, const Json& vocabulary, const std::string& name,
                    const IsSpecial& is_special) {
  check<FileError>(vocabulary.is_object(),
                   "{}: the vocabulary is not an object from tokens to ids; get the file again",
                   name);
  for (const auto& [text, id] : vocabulary.items()) {
    check<FileError>(id.is_number_integer(),
                     "{}: the id of '{}' is not a number; get the file again", name, text);
    if (is_special(text)) {
      continue;
    }
    auto bytes = from_alphabet(text);
    check<FileError>(bytes.has_value(),
                     "{}: token '{}' is not written in the alphabet of byte-level BPE; use a "
                     "tokenizer of GPT-2's kind",
                     name, text);
    collector.add_token(std::move(*bytes), id.template get<std::int64_t>(), text);
  }
}

void add_merge_line(Collector& collector, std::string_view line, const std::string& place,
                    const std::string& name) {
  const std::size_t space = line.find(' ');
  check<FileError>(space != std::string_view::npos && line.find(' ', space + 1) == line.npos,
                   "{}, {}: '{}' is not two tokens with a space between them; get the file again",
                   name, place, line);
  collector.add_merge(line.substr(0, space), line.substr(space + 1), place);
}

/// Refuses what would split text in another way than GPT-2 does.
void check_pre_tokenizer(const Json& file, const std::string& name) {
  const auto refuse = [&](const std::string& what) {
    throw FileError(fmt::format(
        "{}: {}; only byte-level BPE that splits text as GPT-2 does can be read exactly", name,
        what));
  };
  if (const Json normalizer = file.value("normalizer", Json()); !normalizer.is_null()) {
    refuse("it has a normalizer");
  }
  Json split = file.value("pre_tokenizer", Json());
  bool split_by_pattern = false;
  if (split.is_object() && split.value("type", "") == "Sequence") {
    const Json steps = split.value("pretokenizers", Json::array());
    const bool gpt2 = steps.size() == 2 && steps[0].value("type", "") == "Split" &&
                      steps[0].value("behavior", "") == "Isolated" &&
                      steps[0].value("pattern", Json::object()).value("Regex", "") == kGpt2Pattern;
    if (!gpt2) {
      refuse("its pre-tokenizer is a sequence of other steps");
    }
    split_by_pattern = true;
    split = steps[1];
  }
  if (!split.is_object() || split.value("type", "") != "ByteLevel") {
    refuse("its pre-tokenizer is not ByteLevel");
  }
  if (split.value("add_prefix_space", true)) {
    refuse("it adds a space before a text (add_prefix_space)");
  }
  if (split.value("use_regex", true) == split_by_pattern) {
    refuse("its ByteLevel pre-tokenizer does not use GPT-2's pattern");
  }
}

std::optional<std::string> from_base64(std::string_view text) {
  std::string bytes(text.size(), '\0');
  const int count = EVP_DecodeBlock(reinterpret_cast<unsigned char*>(bytes.data()),
                                    reinterpret_cast<const unsigned char*>(text.data()),
                                    static_cast<int>(text.size()));
  // The decoder drops spaces around the text and takes '=' for a digit anywhere.
  const std::size_t digits = std::min(text.find('='), text.size());
  const std::size_t padding = text.size() - digits;
  if (count < 0 || static_cast<std::size_t>(count) * 4 != text.size() * 3 || padding > 2 ||
      text.find_first_not_of('=', digits) != std::string_view::npos) {
    return std::nullopt;
  }
  bytes.resize(static_cast<std::size_t>(count) - padding);
  return bytes;
}

}  // namespace

TokenizerDefinition parse_gpt2(const TokenizerFile& merges, const TokenizerFile& vocabulary) {
  Collector collector(merges.name);
  const Json tokens = parse_file(vocabulary);
  add_vocabulary(collector, tokens, vocabulary.name,
                 [](const std::string& text) { return text == kEndOfText; });
  if (const auto special = tokens.find(std::string(kEndOfText)); special != tokens.end()) {
    collector.add_special(std::string(kEndOfText), special->get<std::int64_t>());
  }
  for_each_line(merges.content, [&](std::string_view line, std::int64_t number) {
    if (!line.empty() && !(number == 1 && line.starts_with("#version"))) {
      add_merge_line(collector, line, fmt::format("line {}", number), merges.name);
    }
  });
  collector.check_merges_are_complete();
  return std::move(collector.definition);
}

TokenizerDefinition parse_hugging_face(const TokenizerFile& source) {
  const std::string& name = source.name;
  const Json file = parse_file(source);
  Collector collector(name);
  try {
    const Json& model = file.at("model");
    const auto unset = [&](const char* key) {
      const Json value = model.value(key, Json());
      return value.is_null() || value == "" || value == false;
    };
    check<FileError>(
        model.value("type", "BPE") == "BPE" && unset("byte_fallback") && unset("dropout") &&
            unset("continuing_subword_prefix") && unset("end_of_word_suffix"),
        "{}: its model is not a plain byte-level BPE; use a tokenizer of GPT-2's kind", name);
    check_pre_tokenizer(file, name);
    std::map<std::string, std::int64_t> added;
    for (const Json& token : file.value("added_tokens", Json::array())) {
      const auto text = token.at("content").get<std::string>();
      check<FileError>(token.value("special", false) && !token.value("lstrip", false) &&
                           !token.value("rstrip", false) && !token.value("single_word", false),
                       "{}: added token '{}' is not a plain special token; remove it from the file",
                       name, text);
      check<FileError>(token.at("id").is_number_integer(),
                       "{}: the id of '{}' is not a number; get the file again", name, text);
      added.emplace(text, token.at("id").get<std::int64_t>());
    }
    add_vocabulary(collector, model.at("vocab"), name,
                   [&](const std::string& text) { return added.contains(text); });
    for (const auto& [text, id] : added) {
      collector.add_special(text, id);
    }
    std::int64_t number = 0;
    for (const Json& merge : model.at("merges")) {
      const std::string place = fmt::format("merge {}", number++);
      if (merge.is_string()) {
        add_merge_line(collector, merge.get_ref<const std::string&>(), place, name);
      } else {
        collector.add_merge(merge.at(0).get_ref<const std::string&>(),
                            merge.at(1).get_ref<const std::string&>(), place);
      }
    }
    collector.definition.whole_pieces = model.value("ignore_merges", false);
  } catch (const Json::exception& error) {
    throw FileError(fmt::format("{} is not a Hugging Face tokenizer file: {}; get it again", name,
                                error.what()));
  }
  return std::move(collector.definition);
}

TokenizerDefinition parse_tiktoken(const TokenizerFile& file) {
  Collector collector(file.name);
  for_each_line(file.content, [&](std::string_view line, std::int64_t number) {
    if (line.empty()) {
      return;
    }
    const std::size_t space = std::min(line.find(' '), line.size());
    const auto bytes = from_base64(line.substr(0, space));
    std::int64_t rank = -1;
    const std::string_view digits = line.substr(std::min(space + 1, line.size()));
    const auto parsed = std::from_chars(digits.data(), digits.data() + digits.size(), rank);
    check<FileError>(bytes.has_value() && parsed.ec == std::errc() &&
                         parsed.ptr == digits.data() + digits.size(),
                     "{}, line {}: '{}' is not a token in base64 and its rank; get the file again",
                     file.name, number, line);
    check<FileError>(bytes->size() <= kLongestToken,
                     "{}, line {}: a token of {} bytes is too long, {} are possible; get the file "
                     "again",
                     file.name, number, bytes->size(), kLongestToken);
    collector.add_token(*bytes, rank, std::string(line.substr(0, space)));
  });
  // Two tokens merge wherever their bytes together are a token, in order of that token's rank.
  TokenizerDefinition& definition = collector.definition;
  definition.whole_pieces = true;
  for (std::size_t id = 0; id < definition.tokens.size(); ++id) {
    const std::string& token = definition.tokens[id];
    for (std::size_t cut = 1; cut < token.size(); ++cut) {
      const auto left = collector.find(token.substr(0, cut));
      const auto right = collector.find(token.substr(cut));
      if (left && right) {
        definition.merges.push_back(
            {*left, *right, static_cast<TokenId>(id), static_cast<std::uint32_t>(id)});
      }
    }
  }
  // The file names no special token. In OpenAI's vocabularies the first free id is end of text.
  const auto free = std::find(definition.tokens.begin(), definition.tokens.end(), "");
  collector.add_special(std::string(kEndOfText), free - definition.tokens.begin());
  return std::move(definition);
}

std::string to_hugging_face(const Tokenizer& tokenizer) {
  const TokenizerDefinition& definition = tokenizer.definition();
  // Ordered, so that the same tokenizer is the same file.
  nlohmann::ordered_json::object_t vocabulary;
  for (std::size_t id = 0; id < definition.tokens.size(); ++id) {
    if (!definition.tokens[id].empty()) {
      vocabulary.push_back({to_alphabet(definition.tokens[id]), id});
    }
  }
  auto merges = nlohmann::ordered_json::array();
  for (const Merge& merge : definition.merges) {
    merges.push_back(
        {to_alphabet(definition.tokens[merge.left]), to_alphabet(definition.tokens[merge.right])});
  }
  auto added = nlohmann::ordered_json::array();
  for (const SpecialToken& special : definition.specials) {
    vocabulary.push_back({special.text, special.id});
    added.push_back({{"id", special.id},
                     {"content", special.text},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", true}});
  }
  const nlohmann::ordered_json byte_level{{"type", "ByteLevel"},
                                          {"add_prefix_space", false},
                                          {"trim_offsets", true},
                                          {"use_regex", true}};
  const nlohmann::ordered_json file{{"version", "1.0"},
                                    {"truncation", nullptr},
                                    {"padding", nullptr},
                                    {"added_tokens", added},
                                    {"normalizer", nullptr},
                                    {"pre_tokenizer", byte_level},
                                    {"post_processor", nullptr},
                                    {"decoder", byte_level},
                                    {"model",
                                     {{"type", "BPE"},
                                      {"dropout", nullptr},
                                      {"unk_token", nullptr},
                                      {"continuing_subword_prefix", nullptr},
                                      {"end_of_word_suffix", nullptr},
                                      {"fuse_unk", false},
                                      {"byte_fallback", false},
                                      {"ignore_merges", definition.whole_pieces},
                                      {"vocab", vocabulary},
                                      {"merges", merges}}}};
  return file.dump(1, ' ') + "\n";
}

}  // namespace carope
