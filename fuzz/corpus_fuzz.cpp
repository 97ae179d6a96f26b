// Any bytes are a corpus or a FileError; documents hold what the file holds, however it arrives.
//
// The first byte of an input chooses what the rest is: see Choice.
#include "data/corpus/corpus.h"

#include <nlohmann/json.hpp>

#include "support.h"
#include "support/folder.h"

namespace carope::fuzz {
namespace {

struct Choice {
  explicit Choice(std::uint8_t byte)
      : jsonl((byte & 1) != 0),
        compression(byte >> 1 & 3),
        format{.longest = byte & 8 ? 16u : 65536u} {
    constexpr const char* kDelimiters[] = {"", "<|endoftext|>", "\n\n", " = "};
    format.delimiter = kDelimiters[byte >> 4 & 3];
  }

  bool jsonl;
  int compression;  // 0 and 1: none, 2: gzip, 3: zstd
  CorpusFormat format;
};

/// Bytes that come in parts of some size.
class PartSource final : public ByteSource {
 public:
  PartSource(std::string_view bytes, std::size_t part) : rest_(bytes), part_(part) {}

  std::size_t read(std::span<char> out) override {
    const std::size_t count = rest_.copy(out.data(), std::min(part_, out.size()));
    rest_.remove_prefix(count);
    position_ += static_cast<std::int64_t>(count);
    return count;
  }
  std::int64_t position() const override { return position_; }

 private:
  std::string_view rest_;
  std::size_t part_;
  std::int64_t position_ = 0;
};

/// What a reader hands on, without the end if that would be very long.
std::vector<RawDocument> read_all(DocumentReader& reader, std::size_t bytes) {
  constexpr std::size_t kMost = 100'000;
  std::vector<RawDocument> all, batch;
  for (reader.read(batch, bytes); !batch.empty() && all.size() < kMost; reader.read(batch, bytes)) {
    all.insert(all.end(), batch.begin(), batch.end());
  }
  return all;
}

std::string_view without_mark(std::string_view file) {
  return file.substr(file.starts_with("\xef\xbb\xbf") ? 3 : 0);
}

/// The documents of a .txt file by their definition: what is between delimiters, each with a
/// newline on either side or not, and is not empty.
std::vector<std::string> split(std::string_view text, std::string_view delimiter) {
  std::vector<std::string> documents;
  const auto add = [&](std::string_view document) {
    if (!document.empty()) {
      documents.emplace_back(document);
    }
  };
  for (std::size_t end = 0;
       !delimiter.empty() && (end = text.find(delimiter)) != std::string_view::npos;) {
    add(text.substr(0, end > 0 && text[end - 1] == '\n' ? end - 1 : end));
    text.remove_prefix(end + delimiter.size());
    text.remove_prefix(text.starts_with('\n') ? 1 : 0);
  }
  add(text);
  return documents;
}

void check_text(const std::vector<RawDocument>& pieces, const std::vector<std::string>& expected) {
  std::vector<std::string> documents;
  for (const RawDocument& piece : pieces) {
    require(!piece.content.empty(), "a piece is not empty");
    require(!(piece.continues && documents.empty()), "the first piece goes on with nothing");
    if (piece.continues) {
      documents.back() += piece.content;
    } else {
      documents.push_back(piece.content);
    }
    require(piece.place + 1 == static_cast<std::int64_t>(documents.size()),
            "documents are numbered");
  }
  require(documents == expected, "documents are what is between delimiters");
}

void check_lines(const std::vector<RawDocument>& lines, std::string_view file) {
  std::string joined;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    require(lines[i].place == static_cast<std::int64_t>(i) + 1, "lines are numbered");
    joined += lines[i].content + "\n";
  }
  joined.resize(joined.size() - (file.ends_with('\n') ? 0 : 1));
  require(joined == file, "lines are what the file holds");
}

/// The text of a line, written as JSON again, is the same text.
void check_text_of(const DocumentReader& reader, const RawDocument& line, const std::string& name) {
  std::optional<std::string> text;
  if (accepts(name, [&] { text = reader.text_of(line); }) && text) {
    const nlohmann::json object{{"number", 1}, {"text", *text}};
    require(reader.text_of({.content = object.dump()}) == text, "a text is read as it was written");
  }
}

void run_plain(const Choice& choice, std::string_view file) {
  const std::string name = choice.jsonl ? "fuzzed.jsonl" : "fuzzed.txt";
  const auto open = [&](std::size_t part) {
    auto bytes = std::make_unique<PartSource>(file, part);
    return choice.jsonl ? read_jsonl(std::move(bytes), name, choice.format)
                        : read_text(std::move(bytes), name, choice.format);
  };
  std::vector<RawDocument> documents, as_they_drip;
  const std::unique_ptr<DocumentReader> reader = open(file.size() + 1);
  const bool accepted = accepts(name, [&] { documents = read_all(*reader, 1 << 20); });
  const bool also = accepts(name, [&] { as_they_drip = read_all(*open(3), 1); });
  const auto same = [](const RawDocument& a, const RawDocument& b) {
    return a.content == b.content && a.place == b.place && a.continues == b.continues;
  };
  require(accepted == also && std::equal(documents.begin(), documents.end(), as_they_drip.begin(),
                                         as_they_drip.end(), same),
          "documents do not depend on how bytes arrive");
  const std::string_view text = without_mark(file);
  const bool short_enough = text.size() <= choice.format.longest;
  if (!choice.jsonl) {
    const std::vector<std::string> expected = split(text, choice.format.delimiter);
    require(accepted == !expected.empty() || !short_enough, "a short text is read");
    if (accepted) {
      check_text(documents, expected);
    }
    return;
  }
  const bool blank = text.find_first_not_of(" \t\r\n") == std::string_view::npos;
  require(accepted == !blank || !short_enough, "short lines are read");
  if (accepted) {
    check_lines(documents, text);
    for (const RawDocument& line : documents) {
      check_text_of(*reader, line, name);
    }
  }
}

void run_compressed(const Choice& choice, std::string_view file) {
  static const test::TemporaryFolder kFolder;
  const std::string name = fmt::format("fuzzed.{}.{}", choice.jsonl ? "jsonl" : "txt",
                                       choice.compression == 2 ? "gz" : "zst");
  const std::filesystem::path path = test::write_bytes(kFolder / name, std::string(file));
  accepts(name, [&] {
    const std::unique_ptr<DocumentReader> reader = open_documents(path, choice.format);
    for (const RawDocument& document : read_all(*reader, 1 << 16)) {
      reader->text_of(document);
    }
    require(reader->position() <= static_cast<std::int64_t>(file.size()),
            "no more is read than there is");
  });
}

}  // namespace
}  // namespace carope::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace carope::fuzz;
  if (size > 0) {
    const Choice choice(data[0]);
    const std::string_view file = text_of(data + 1, size - 1);
    choice.compression < 2 ? run_plain(choice, file) : run_compressed(choice, file);
  }
  return 0;
}
