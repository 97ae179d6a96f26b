#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace carope {

/// Throws a FileError unless `path` names a regular file that is there.
void require_file(const std::filesystem::path& path);

/// The whole content of a file.
std::string read_file(const std::filesystem::path& path);

/// A file's bytes as the operating system pages them in, read only.
class MappedFile {
 public:
  MappedFile() = default;
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  /// Asks the operating system to read these bytes ahead of their use.
  void prefetch(std::size_t begin, std::size_t end) const;

 private:
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

/// Writes a file that appears under its name only when it is complete and on disk: `commit` flushes
/// and renames. Until then it has the name with ".part" appended, and is removed if it is given up.
class FileWriter {
 public:
  explicit FileWriter(std::filesystem::path path);
  ~FileWriter();
  FileWriter(const FileWriter&) = delete;
  FileWriter& operator=(const FileWriter&) = delete;

  void write(std::string_view bytes);
  void write(std::span<const std::byte> bytes);
  /// Replaces bytes that were written before, e.g. a header whose counts are known last.
  void rewrite(std::size_t offset, std::span<const std::byte> bytes);
  void commit();

 private:
  void flush();
  void write_at(std::size_t offset, const char* bytes, std::size_t count);

  std::filesystem::path path_, part_;
  int file_ = -1;
  std::size_t flushed_ = 0;
  std::vector<char> buffer_;
};

/// Writes a whole file through a FileWriter.
void write_file(const std::filesystem::path& path, std::string_view content);

}  // namespace carope
