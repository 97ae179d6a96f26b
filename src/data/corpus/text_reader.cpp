#include <algorithm>

#include "core/error.h"
#include "data/corpus/corpus.h"
#include "data/tokenizer/pretokenizer.h"

namespace carope {
namespace {

constexpr std::size_t kPiece = std::size_t{1} << 20;  // bytes of a document handed on at a time

class TextReader final : public DocumentReader {
 public:
  TextReader(std::unique_ptr<ByteSource> bytes, const std::filesystem::path& path,
             const CorpusFormat& format)
      : window_(std::move(bytes)), path_(path), format_(format) {
    skip_byte_order_mark(window_);
  }

  void read(std::vector<RawDocument>& batch, std::size_t bytes) override {
    batch.clear();
    for (std::size_t size = 0; size < bytes && next(batch);) {
      size += batch.back().content.size();
    }
    if (batch.empty() && documents_ == 0) {
      fail_without_documents(path_);
    }
  }

  std::optional<std::string> text_of(RawDocument document) const override {
    return std::move(document.content);
  }

  std::int64_t position() const override { return window_.position(); }

 private:
  /// Appends the next piece of a document; false at the end. Where pieces end is decided by the
  /// text alone, not by how its bytes happen to arrive.
  bool next(std::vector<RawDocument>& batch) {
    const std::string& delimiter = format_.delimiter;
    const std::size_t first_limit = std::min(kPiece, format_.longest);
    for (std::size_t limit = first_limit;;) {
      // A delimiter may have spaces in it and must not be cut there: it fits behind the limit.
      const std::size_t wanted = limit + delimiter.size();
      const std::string_view all = window_.at_least(wanted + 1);
      const std::string_view ahead = all.substr(0, wanted);
      const std::size_t end = delimiter.empty() ? std::string_view::npos : ahead.find(delimiter);
      if (end != std::string_view::npos) {
        const bool newline = end > 0 && ahead[end - 1] == '\n';
        const bool some = hand_on(batch, ahead.substr(0, newline ? end - 1 : end));
        within_ = false;
        window_.drop(end + delimiter.size());
        window_.drop(window_.at_least(1).starts_with('\n') ? 1 : 0);
        if (some) {
          return true;
        }
        limit = first_limit;
        continue;
      }
      if (all.size() == ahead.size()) {
        const bool some = hand_on(batch, ahead);
        window_.drop(ahead.size());
        return some;
      }
      if (const std::size_t cut = last_safe_cut(ahead.substr(0, limit)); cut > 0) {
        hand_on(batch, ahead.substr(0, cut));
        within_ = true;
        window_.drop(cut);
        return true;
      }
      check<FileError>(limit < format_.longest,
                       "{}, document {}: there is no place to cut it within {} bytes, no word that "
                       "a space follows; check that it is text",
                       path_.string(), documents_ - (within_ ? 1 : 0), limit);
      limit = std::min(2 * limit, format_.longest);
    }
  }

  bool hand_on(std::vector<RawDocument>& batch, std::string_view content) {
    if (content.empty()) {
      return false;
    }
    documents_ += within_ ? 0 : 1;
    batch.push_back({std::string(content), documents_ - 1, within_});
    return true;
  }

  ByteWindow window_;
  const std::filesystem::path path_;
  const CorpusFormat format_;
  std::int64_t documents_ = 0;  // begun
  bool within_ = false;         // a part of the document ahead has been handed on
};

}  // namespace

std::unique_ptr<DocumentReader> read_text(std::unique_ptr<ByteSource> bytes,
                                          const std::filesystem::path& path,
                                          const CorpusFormat& format) {
  return std::make_unique<TextReader>(std::move(bytes), path, format);
}

}  // namespace carope
