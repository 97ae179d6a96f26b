#include <fmt/ranges.h>
#include <simdjson.h>

#include <algorithm>

#include "core/error.h"
#include "data/corpus/corpus.h"

namespace carope {
namespace {

bool blank(std::string_view line) {
  return line.find_first_not_of(" \t\r") == std::string_view::npos;
}

/// The beginning of a line as a message can show it.
std::string excerpt(std::string_view line) {
  constexpr std::size_t kShown = 60;
  std::string shown(line.substr(0, kShown));
  std::replace_if(
      shown.begin(), shown.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
  return line.size() > kShown ? shown + "..." : shown;
}

const char* describe(const simdjson::dom::element& element) {
  switch (element.type()) {
    case simdjson::dom::element_type::ARRAY:
      return "an array";
    case simdjson::dom::element_type::OBJECT:
      return "an object";
    case simdjson::dom::element_type::STRING:
      return "a string";
    case simdjson::dom::element_type::BOOL:
      return "a truth value";
    case simdjson::dom::element_type::NULL_VALUE:
      return "null";
    default:
      return "a number";
  }
}

class JsonlReader final : public DocumentReader {
 public:
  JsonlReader(std::unique_ptr<ByteSource> bytes, const std::filesystem::path& path,
              const CorpusFormat& format)
      : window_(std::move(bytes)), path_(path), format_(format) {
    skip_byte_order_mark(window_);
  }

  void read(std::vector<RawDocument>& batch, std::size_t bytes) override {
    batch.clear();
    for (std::size_t size = 0; size < bytes && next(batch);) {
      size += batch.back().content.size() + 1;
    }
    if (batch.empty() && !any_) {
      fail_without_documents(path_);
    }
  }

  std::optional<std::string> text_of(RawDocument document) const override {
    const std::string& line = document.content;
    if (blank(line)) {
      return std::nullopt;
    }
    thread_local simdjson::dom::parser parser;
    simdjson::dom::element root;
    const bool padded = line.capacity() - line.size() >= simdjson::SIMDJSON_PADDING;
    const auto error = parser.parse(line.data(), line.size(), !padded).get(root);
    if (error != simdjson::SUCCESS) {
      fail(document.place,
           fmt::format("this is not JSON ({}): {}; a .jsonl file has one object on each line, "
                       "repair or remove this one",
                       simdjson::error_message(error), excerpt(line)));
    }
    simdjson::dom::object object;
    if (root.get(object) != simdjson::SUCCESS) {
      fail(document.place, fmt::format("{} where an object is needed: {}; a .jsonl file has one "
                                       "object on each line, repair or remove this one",
                                       describe(root), excerpt(line)));
    }
    simdjson::dom::element field;
    if (object.at_key(format_.text_field).get(field) != simdjson::SUCCESS) {
      fail(document.place, fmt::format("there is no field \"{}\", {}; name the one that holds the "
                                       "text with --text-field",
                                       format_.text_field, fields_of(object)));
    }
    std::string_view text;
    if (field.get(text) != simdjson::SUCCESS) {
      fail(document.place, fmt::format("the field \"{}\" is {}, a string is needed; name the one "
                                       "that holds the text with --text-field, or remove the line",
                                       format_.text_field, describe(field)));
    }
    document.content.assign(text);
    return std::move(document.content);
  }

  std::int64_t position() const override { return window_.position(); }

 private:
  /// Appends the next line; false at the end.
  bool next(std::vector<RawDocument>& batch) {
    std::string_view ahead = window_.at_least(1);
    if (ahead.empty()) {
      return false;
    }
    std::size_t end = ahead.find('\n');
    while (end == std::string_view::npos && ahead.size() <= format_.longest) {
      const std::size_t seen = ahead.size();
      ahead = window_.at_least(seen + 1);
      if (ahead.size() == seen) {
        break;
      }
      end = ahead.find('\n', seen);
    }
    const std::string_view line = ahead.substr(0, end);
    ++lines_;
    if (line.size() > format_.longest) {
      fail(lines_, fmt::format("it is longer than {} bytes: {}; a .jsonl file has one object on "
                               "each line, check that this is one",
                               format_.longest, excerpt(line)));
    }
    RawDocument& document = batch.emplace_back();
    document.content.reserve(line.size() + simdjson::SIMDJSON_PADDING);  // the parser reads past it
    document.content.assign(line);
    document.place = lines_;
    any_ = any_ || !blank(line);
    window_.drop(line.size() + (end == std::string_view::npos ? 0 : 1));
    return true;
  }

  [[noreturn]] void fail(std::int64_t line, std::string_view what) const {
    throw FileError(fmt::format("{}, line {}: {}", path_.string(), line, what));
  }

  static std::string fields_of(const simdjson::dom::object& object) {
    std::vector<std::string_view> names;
    for (const auto& [name, value] : object) {
      names.push_back(name);
    }
    return names.empty() ? "the object is empty"
                         : fmt::format("only \"{}\"", fmt::join(names, "\", \""));
  }

  ByteWindow window_;
  const std::filesystem::path path_;
  const CorpusFormat format_;
  std::int64_t lines_ = 0;
  bool any_ = false;  // a line that is not blank has been read
};

}  // namespace

std::unique_ptr<DocumentReader> read_jsonl(std::unique_ptr<ByteSource> bytes,
                                           const std::filesystem::path& path,
                                           const CorpusFormat& format) {
  return std::make_unique<JsonlReader>(std::move(bytes), path, format);
}

}  // namespace carope
