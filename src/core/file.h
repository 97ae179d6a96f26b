#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace carope {

/// Throws a FileError unless `path` names a regular file that is there.
void require_file(const std::filesystem::path& path);

/// Makes a folder, and those above it, where they are missing.
void make_folder(const std::filesystem::path& path);

/// A file's bytes. Throws a FileError unless it is a regular file.
std::int64_t size_of_file(const std::filesystem::path& path);

/// Keeps a folder for this process alone as long as the object lives, however the process ends.
class FolderLock {
 public:
  /// Throws a FileError if another process has it.
  explicit FolderLock(const std::filesystem::path& folder);
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

 private:
  int file_;
};

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
  /// What becomes of the ".part" of a file that is given up: with `kKeep`, the next writer goes on
  /// behind what it finds there. Only one process at a time can do so.
  enum class GivenUp : std::uint8_t { kRemove, kKeep };

  explicit FileWriter(std::filesystem::path path, GivenUp given_up = GivenUp::kRemove);
  ~FileWriter();
  FileWriter(const FileWriter&) = delete;
  FileWriter& operator=(const FileWriter&) = delete;

  void write(std::string_view bytes);
  void write(std::span<const std::byte> bytes);
  /// Replaces bytes that were written before, e.g. a header whose counts are known last.
  void rewrite(std::size_t offset, std::span<const std::byte> bytes);
  /// Hands what was written to the operating system, so that it outlives this process.
  void flush();
  /// Forgets everything that was written.
  void restart();
  void commit();

  std::size_t size() const { return flushed_ + buffer_.size(); }
  const std::filesystem::path& part() const { return part_; }

 private:
  void write_at(std::size_t offset, const char* bytes, std::size_t count);

  std::filesystem::path path_, part_;
  GivenUp given_up_;
  int file_ = -1;
  std::size_t flushed_ = 0;
  std::vector<char> buffer_;
};

/// Throws a FileError unless a FileWriter could write this file now. For a result that takes long.
void require_writable(const std::filesystem::path& path);

/// Writes a whole file through a FileWriter.
void write_file(const std::filesystem::path& path, std::string_view content);

}  // namespace carope
