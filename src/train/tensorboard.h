#pragma once

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string_view>

namespace carope {

/// An event file that TensorBoard shows: numbers by name and step.
class TensorBoardLog {
 public:
  /// Begins a new file in the folder, which TensorBoard reads as one run with those before it; from
  /// `first_step` on, it replaces what they say.
  TensorBoardLog(const std::filesystem::path& folder, std::int64_t first_step);

  void add(std::string_view tag, std::int64_t step, double value);

 private:
  void write(std::string_view event);

  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  std::filesystem::path path_;
  std::unique_ptr<std::FILE, Close> file_;
};

}  // namespace carope
