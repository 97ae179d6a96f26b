#include "data/fetch/cache.h"

#include <cstdlib>

#include "core/error.h"

namespace carope {
namespace {

std::filesystem::path from_environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

}  // namespace

std::filesystem::path cache_folder() {
  if (const auto folder = from_environment("CAROPE_CACHE"); !folder.empty()) {
    return folder;
  }
  // A relative path here is to be ignored, says the XDG Base Directory Specification.
  if (const auto folder = from_environment("XDG_CACHE_HOME"); folder.is_absolute()) {
    return folder / "carope";
  }
  const auto home = from_environment("HOME");
  check<ConfigError>(!home.empty(),
                     "there is no folder for fetched files: neither CAROPE_CACHE, XDG_CACHE_HOME "
                     "nor HOME is set; set CAROPE_CACHE");
  return home / ".cache" / "carope";
}

std::filesystem::path tokenizer_path(const std::string& name) {
  if (std::filesystem::exists(name)) {
    return name;
  }
  const std::filesystem::path fetched = cache_folder() / "tokenizers" / name;
  check<FileError>(
      std::filesystem::exists(fetched),
      "there is no tokenizer {}; name its files, or get GPT-2's with: carope tokenizer "
      "fetch gpt2",
      name);
  return fetched;
}

}  // namespace carope
