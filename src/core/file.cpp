#include "core/file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <utility>

#include "core/error.h"

namespace carope {
namespace {

constexpr std::size_t kBuffer = std::size_t{1} << 20;

/// What a user can do about a failed system call.
std::string remedy(int error) {
  switch (error) {
    case ENOSPC:
    case EDQUOT:
      return "free some space or choose another place, then run the command again";
    case EACCES:
    case EPERM:
    case EROFS:
      return "check the permissions, or choose another place";
    case ENOENT:
    case ENOTDIR:
      return "check the path";
    default:
      return "check the path and the disk";
  }
}

[[noreturn]] void fail(const char* action, const std::filesystem::path& path, int error) {
  throw FileError(fmt::format("cannot {} {}: {}; {}", action, path.string(), std::strerror(error),
                              remedy(error)));
}

int open_or_fail(const char* action, const std::filesystem::path& path, int flags) {
  const int file = open(path.c_str(), flags | O_CLOEXEC, 0666);
  if (file < 0) {
    fail(action, path, errno);
  }
  return file;
}

/// A rename is on disk only when its folder is.
void sync_folder(const std::filesystem::path& folder) {
  const int file = open_or_fail("open the folder", folder.empty() ? "." : folder, O_RDONLY);
  fsync(file);  // some file systems cannot flush a folder; the rename has happened all the same
  close(file);
}

}  // namespace

void require_file(const std::filesystem::path& path) {
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (status.type() == std::filesystem::file_type::none) {
    fail("look at", path, error.value());
  }
  check<FileError>(std::filesystem::exists(status), "{} does not exist; check the path",
                   path.string());
  check<FileError>(!std::filesystem::is_directory(status),
                   "{} is a directory, a file is needed; name a file in it", path.string());
}

void make_folder(const std::filesystem::path& path) {
  std::error_code error;
  if (!path.empty() && !std::filesystem::create_directories(path, error) && error) {
    fail("make the folder", path, error.value());
  }
}

std::int64_t size_of_file(const std::filesystem::path& path) {
  require_file(path);
  check<FileError>(std::filesystem::is_regular_file(path),
                   "{} is a device or a pipe, a regular file is needed; write its content into one",
                   path.string());
  return static_cast<std::int64_t>(std::filesystem::file_size(path));
}

FolderLock::FolderLock(const std::filesystem::path& folder)
    : file_(open_or_fail("open the folder", folder, O_RDONLY | O_DIRECTORY)) {
  // Some file systems lock no folders: then there is no protection, but no obstacle either.
  if (flock(file_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    close(file_);
    throw FileError(
        fmt::format("{} is being written by another process; wait until it has ended, or choose "
                    "another folder",
                    folder.string()));
  }
}

FolderLock::~FolderLock() { close(file_); }

std::string read_file(const std::filesystem::path& path) {
  require_file(path);
  std::ifstream file(path, std::ios::binary);
  std::string content;
  std::vector<char> buffer(kBuffer);
  while (file.read(buffer.data(), static_cast<std::streamsize>(buffer.size())) ||
         file.gcount() > 0) {
    content.append(buffer.data(), static_cast<std::size_t>(file.gcount()));
  }
  if (!file.eof()) {
    fail("read", path, errno);
  }
  return content;
}

MappedFile::MappedFile(const std::filesystem::path& path) {
  require_file(path);
  const int file = open_or_fail("open", path, O_RDONLY);
  std::error_code error;
  size_ = std::filesystem::file_size(path, error);
  if (!error && size_ > 0) {
    void* mapped = mmap(nullptr, size_, PROT_READ, MAP_SHARED, file, 0);
    const int reason = errno;
    close(file);
    if (mapped == MAP_FAILED) {
      fail("map", path, reason);
    }
    data_ = static_cast<const std::byte*>(mapped);
    return;
  }
  close(file);
  check<FileError>(!error, "cannot read the size of {}: {}; name a regular file", path.string(),
                   error.message());
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) {
    munmap(const_cast<std::byte*>(data_), size_);
  }
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

void MappedFile::prefetch(std::size_t begin, std::size_t end) const {
  static const auto kPage = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  begin = begin / kPage * kPage;
  end = std::min(end, size_);
  if (begin < end) {
    madvise(const_cast<std::byte*>(data_) + begin, end - begin, MADV_WILLNEED);
  }
}

FileWriter::FileWriter(std::filesystem::path path, GivenUp given_up)
    : path_(std::move(path)), part_(path_.string() + ".part"), given_up_(given_up) {
  check<FileError>(!std::filesystem::is_directory(path_),
                   "cannot write {}: it is a directory; name a file in it", path_.string());
  check<FileError>(!std::filesystem::exists(path_) || std::filesystem::is_regular_file(path_),
                   "cannot write {}: it is a device or a pipe; name a file", path_.string());
  const bool keep = given_up_ == GivenUp::kKeep;
  file_ = open_or_fail("write", part_, O_WRONLY | O_CREAT | (keep ? 0 : O_TRUNC));
  if (keep) {
    if (flock(file_, LOCK_EX | LOCK_NB) != 0) {
      close(file_);
      throw FileError(fmt::format(
          "{} is being written by another process; wait until it has ended, then try again",
          part_.string()));
    }
    flushed_ = static_cast<std::size_t>(lseek(file_, 0, SEEK_END));
  }
  buffer_.reserve(kBuffer);
}

FileWriter::~FileWriter() {
  if (file_ >= 0) {
    if (given_up_ == GivenUp::kRemove || size() == 0) {
      unlink(part_.c_str());
    }
    close(file_);
  }
}

void FileWriter::write(std::string_view bytes) {
  if (buffer_.size() + bytes.size() > kBuffer) {
    flush();
  }
  if (bytes.size() > kBuffer) {
    write_at(flushed_, bytes.data(), bytes.size());
    flushed_ += bytes.size();
  } else {
    buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
  }
}

void FileWriter::write(std::span<const std::byte> bytes) {
  write(std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
}

void FileWriter::rewrite(std::size_t offset, std::span<const std::byte> bytes) {
  flush();
  write_at(offset, reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

void FileWriter::flush() {
  write_at(flushed_, buffer_.data(), buffer_.size());
  flushed_ += buffer_.size();
  buffer_.clear();
}

void FileWriter::restart() {
  buffer_.clear();
  flushed_ = 0;
  if (ftruncate(file_, 0) != 0) {
    fail("empty", part_, errno);
  }
}

void FileWriter::write_at(std::size_t offset, const char* bytes, std::size_t count) {
  while (count > 0) {
    const ssize_t written = pwrite(file_, bytes, count, static_cast<off_t>(offset));
    if (written < 0 && errno == EINTR) {
      continue;
    }
    if (written < 0) {
      fail("write", part_, errno);
    }
    bytes += written;
    offset += static_cast<std::size_t>(written);
    count -= static_cast<std::size_t>(written);
  }
}

void FileWriter::commit() {
  flush();
  if (fsync(file_) != 0) {
    fail("write", part_, errno);
  }
  if (close(std::exchange(file_, -1)) != 0 || rename(part_.c_str(), path_.c_str()) != 0) {
    const int reason = errno;
    if (given_up_ == GivenUp::kRemove) {
      unlink(part_.c_str());
    }
    fail("write", path_, reason);
  }
  sync_folder(path_.parent_path());
}

void require_writable(const std::filesystem::path& path) {
  const FileWriter given_up(path);  // which leaves nothing
}

void write_file(const std::filesystem::path& path, std::string_view content) {
  FileWriter file(path);
  file.write(content);
  file.commit();
}

}  // namespace carope
