#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

namespace carope {

/// SHA-256 of bytes that come in pieces.
class Sha256 {
 public:
  Sha256();
  ~Sha256();

  void add(std::string_view bytes);
  /// The digest as 64 lower-case hexadecimal digits. Nothing may be added after it.
  std::string digest();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

std::string sha256(std::string_view bytes);
std::string sha256_of_file(const std::filesystem::path& path);

}  // namespace carope
