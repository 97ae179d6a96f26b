#include "data/fetch/cache.h"

#include <cstdlib>

#include "core/error.h"

namespace carope {
namespace {

namespace fs = std::filesystem;

std::filesystem::path from_environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

/// Whether a fetch came to its end here; one that was cut off leaves a ".part" without its file, or
/// nothing.
bool is_fetched(const fs::path& path) {
  if (!fs::is_directory(path)) {
    return fs::exists(path);
  }
  bool any = false;
  for (const fs::directory_entry& entry : fs::directory_iterator(path)) {
    fs::path file = entry.path();
    if (file.extension() == ".part" && !fs::exists(file.replace_extension())) {
      return false;
    }
    any = true;
  }
  return any;
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
      is_fetched(fetched),
      "there is no tokenizer {}; name its files, or get GPT-2's with: carope tokenizer "
      "fetch gpt2",
      name);
  return fetched;
}

}  // namespace carope
