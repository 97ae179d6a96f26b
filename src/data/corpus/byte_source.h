#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace carope {

/// Bytes that come one part after another.
class ByteSource {
 public:
  virtual ~ByteSource() = default;

  /// Writes the next bytes to the beginning of `out` and counts them; 0 only at the end.
  virtual std::size_t read(std::span<char> out) = 0;
  /// Bytes of the file itself (compressed, if it is) used so far.
  virtual std::int64_t position() const = 0;
};

/// The bytes of a file, decompressed where its name ends in .gz or .zst.
std::unique_ptr<ByteSource> open_bytes(const std::filesystem::path& path);

/// As much of a source as is asked for, from the first byte on that has not been dropped.
class ByteWindow {
 public:
  explicit ByteWindow(std::unique_ptr<ByteSource> source) : source_(std::move(source)) {}

  /// The bytes ahead: `count` or more of them, fewer only where the source ends. The view holds
  /// until the next call.
  std::string_view at_least(std::size_t count);
  void drop(std::size_t count) { begin_ += count; }
  std::int64_t position() const { return source_->position(); }

 private:
  std::unique_ptr<ByteSource> source_;
  std::vector<char> buffer_;
  std::size_t begin_ = 0, end_ = 0;  // of the view in the buffer
  bool ended_ = false;
};

/// Drops the mark that some programs write before UTF-8 text, if it is there.
void skip_byte_order_mark(ByteWindow& window);

}  // namespace carope
