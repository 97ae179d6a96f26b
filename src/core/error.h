#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>

namespace carope {

/// Base of every error the library throws. The message says what was wrong, what was found and what
/// to do.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A configuration that cannot be run: names the field, the value and what would be valid.
class ConfigError : public Error {
 public:
  using Error::Error;
};

/// Tensors handed to an operation do not fit together.
class ShapeError : public Error {
 public:
  using Error::Error;
};

/// The device cannot do what was asked: absent, out of memory, or not part of this build.
class DeviceError : public Error {
 public:
  using Error::Error;
};

/// A device has too little memory left.
class OutOfMemory : public DeviceError {
 public:
  using DeviceError::DeviceError;
};

/// A file that cannot be read, written or understood: names the file, the place in it and the
/// remedy.
class FileError : public Error {
 public:
  using Error::Error;
};

/// Throws `E` with a formatted message unless `condition` holds.
template <class E, class... Args>
void check(bool condition, fmt::format_string<Args...> format, Args&&... args) {
  if (!condition) [[unlikely]] {
    throw E(fmt::format(format, std::forward<Args>(args)...));
  }
}

}  // namespace carope
