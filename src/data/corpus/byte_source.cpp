#include "data/corpus/byte_source.h"

#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "core/file.h"

namespace carope {
namespace {

constexpr std::size_t kRead = std::size_t{1} << 18;       // bytes asked of a source at a time
constexpr std::size_t kReadAhead = std::size_t{8} << 20;  // bytes of a file asked of the disk

/// A file's own bytes, and what can be wrong with them.
class PlainSource : public ByteSource {
 public:
  explicit PlainSource(const std::filesystem::path& path) : path_(path), file_(path) {}

  std::size_t read(std::span<char> out) override {
    const std::span<const char> bytes = rest();
    const std::size_t count = std::min(out.size(), bytes.size());
    std::copy_n(bytes.begin(), count, out.begin());
    use(count);
    return count;
  }

  std::int64_t position() const override { return static_cast<std::int64_t>(at_); }

 protected:
  std::span<const char> rest() const {
    const auto bytes = file_.bytes().subspan(at_);
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }

  void use(std::size_t count) {
    at_ += count;
    if (at_ + kReadAhead / 2 > ahead_) {
      file_.prefetch(ahead_, at_ + kReadAhead);
      ahead_ = at_ + kReadAhead;
    }
  }

  [[noreturn]] void truncated(std::string_view what) const {
    throw FileError(
        fmt::format("{} ends inside a {}, at byte {}: it was cut short; get it or compress it "
                    "again",
                    path_.string(), what, file_.bytes().size()));
  }

  [[noreturn]] void damaged(std::string_view what, std::string_view reason) const {
    throw FileError(fmt::format(
        "{} is damaged at about byte {} of {}: no valid {} ({}); get it or compress it again",
        path_.string(), at_, file_.bytes().size(), what, reason));
  }

 private:
  std::filesystem::path path_;
  MappedFile file_;
  std::size_t at_ = 0, ahead_ = 0;
};

class GzipSource final : public PlainSource {
 public:
  explicit GzipSource(const std::filesystem::path& path) : PlainSource(path) {
    constexpr int kGzipOnly = 16;
    check<Error>(inflateInit2(&stream_, MAX_WBITS + kGzipOnly) == Z_OK,
                 "zlib cannot start: {}; free some memory", message());
  }
  ~GzipSource() override { inflateEnd(&stream_); }
  GzipSource(const GzipSource&) = delete;
  GzipSource& operator=(const GzipSource&) = delete;

  std::size_t read(std::span<char> out) override {
    const auto room = static_cast<uInt>(std::min(out.size(), kLargest));
    stream_.next_out = reinterpret_cast<Bytef*>(out.data());
    stream_.avail_out = room;
    while (stream_.avail_out == room && !(between_ && rest().empty())) {
      const std::span<const char> bytes = rest().first(std::min(rest().size(), kLargest));
      stream_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
      stream_.avail_in = static_cast<uInt>(bytes.size());
      const int result = inflate(&stream_, Z_NO_FLUSH);
      use(bytes.size() - stream_.avail_in);
      between_ = result == Z_STREAM_END;
      if (between_) {  // files may be several members, one after another
        inflateReset(&stream_);
      } else if (result == Z_BUF_ERROR && rest().empty()) {
        truncated("gzip member");
      } else if (result != Z_OK) {
        damaged("gzip data", message());
      }
    }
    return room - stream_.avail_out;
  }

 private:
  const char* message() const { return stream_.msg != nullptr ? stream_.msg : "no reason given"; }

  static constexpr std::size_t kLargest = std::size_t{1} << 30;  // zlib counts in 32 bits
  z_stream stream_{};
  bool between_ = true;  // no member has begun that has not ended
};

class ZstdSource final : public PlainSource {
 public:
  explicit ZstdSource(const std::filesystem::path& path)
      : PlainSource(path), stream_(ZSTD_createDCtx(), &ZSTD_freeDCtx) {
    // Text is often compressed with windows that zstd takes for too large unless told otherwise.
    constexpr int kLargestWindowLog = sizeof(void*) == 8 ? 31 : 30;
    check<Error>(
        stream_ != nullptr && ZSTD_isError(ZSTD_DCtx_setParameter(
                                  stream_.get(), ZSTD_d_windowLogMax, kLargestWindowLog)) == 0,
        "zstd cannot start; free some memory");
  }

  std::size_t read(std::span<char> out) override {
    ZSTD_outBuffer output{out.data(), out.size(), 0};
    while (output.pos == 0 && !(between_ && rest().empty())) {
      ZSTD_inBuffer input{rest().data(), rest().size(), 0};
      const std::size_t result = ZSTD_decompressStream(stream_.get(), &output, &input);
      use(input.pos);
      if (ZSTD_isError(result) != 0) {
        damaged("zstd data", ZSTD_getErrorName(result));
      }
      between_ = result == 0;
      if (!between_ && rest().empty() && output.pos == 0) {
        truncated("zstd frame");
      }
    }
    return output.pos;
  }

 private:
  std::unique_ptr<ZSTD_DCtx, decltype(&ZSTD_freeDCtx)> stream_;
  bool between_ = true;  // no frame has begun that has not ended
};

}  // namespace

std::unique_ptr<ByteSource> open_bytes(const std::filesystem::path& path) {
  const auto extension = path.extension();
  if (extension == ".gz") {
    return std::make_unique<GzipSource>(path);
  }
  if (extension == ".zst") {
    return std::make_unique<ZstdSource>(path);
  }
  return std::make_unique<PlainSource>(path);
}

std::string_view ByteWindow::at_least(std::size_t count) {
  while (end_ - begin_ < count && !ended_) {
    if (buffer_.size() - end_ < kRead) {
      std::copy(buffer_.data() + begin_, buffer_.data() + end_, buffer_.data());
      end_ -= std::exchange(begin_, 0);
      if (buffer_.size() - end_ < kRead) {
        buffer_.resize(2 * buffer_.size() + 2 * kRead);
      }
    }
    const std::size_t read = source_->read(std::span(buffer_).subspan(end_));
    ended_ = read == 0;
    end_ += read;
  }
  return {buffer_.data() + begin_, end_ - begin_};
}

void skip_byte_order_mark(ByteWindow& window) {
  constexpr std::string_view kMark = "\xef\xbb\xbf";
  if (window.at_least(kMark.size()).starts_with(kMark)) {
    window.drop(kMark.size());
  }
}

}  // namespace carope
