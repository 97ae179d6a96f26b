#include <algorithm>
#include <map>
#include <vector>

#include "core/error.h"
#include "core/file.h"
#include "data/tokenizer/tokenizer.h"
#include "data/tokenizer/tokenizer_formats.h"

namespace carope {
namespace {

namespace fs = std::filesystem;

struct FilePair {
  const char* merges;
  const char* vocabulary;
};
constexpr FilePair kPairs[] = {{"vocab.bpe", "encoder.json"}, {"merges.txt", "vocab.json"}};

constexpr const char* kHuggingFace = "tokenizer.json";

/// Whether a file is found by this name in a folder.
bool is_tokenizer_file(const std::string& name) {
  return name == kHuggingFace || name.ends_with(".tiktoken") ||
         std::any_of(std::begin(kPairs), std::end(kPairs), [&](const FilePair& pair) {
           return name == pair.merges || name == pair.vocabulary;
         });
}

/// The files behind a path that a user names: one, or merges and vocabulary.
std::vector<fs::path> files_of(const fs::path& path) {
  std::error_code ignored;
  if (!fs::is_directory(path, ignored)) {
    require_file(path);
    for (const auto& [merges, vocabulary] : kPairs) {
      if (path.filename() == merges || path.filename() == vocabulary) {
        return {path.parent_path() / merges, path.parent_path() / vocabulary};
      }
    }
    return {path};
  }
  if (fs::exists(path / kHuggingFace)) {
    return {path / kHuggingFace};
  }
  for (const auto& [merges, vocabulary] : kPairs) {
    if (fs::exists(path / merges)) {
      return {path / merges, path / vocabulary};
    }
  }
  std::vector<fs::path> ranks;
  for (const auto& entry : fs::directory_iterator(path)) {
    if (entry.path().extension() == ".tiktoken") {
      ranks.push_back(entry.path());
    }
  }
  check<FileError>(ranks.size() == 1,
                   "{} holds {}; a folder with tokenizer.json, vocab.bpe and encoder.json, or one "
                   ".tiktoken file is needed",
                   path.string(),
                   ranks.empty() ? "no tokenizer" : "several .tiktoken files: name one of them");
  return ranks;
}

/// What a copy of a tokenizer's file is called, so that it is found in its folder: tokenizer.json
/// may have any name where it comes from.
std::string name_of_copy(const fs::path& file) {
  const std::string name = file.filename().string();
  return is_tokenizer_file(name) ? name : kHuggingFace;
}

TokenizerFile read_named(const fs::path& path) { return {path.string(), read_file(path)}; }

}  // namespace

Tokenizer Tokenizer::load(const fs::path& path) {
  const std::vector<fs::path> files = files_of(path);
  const fs::path& first = files.front();
  TokenizerDefinition definition;
  if (files.size() == 2) {
    definition = parse_gpt2(read_named(files[0]), read_named(files[1]));
  } else if (first.extension() == ".tiktoken") {
    definition = parse_tiktoken(read_named(first));
  } else {
    check<FileError>(first.extension() == ".json",
                     "{} is no tokenizer file: tokenizer.json, vocab.bpe with encoder.json, or a "
                     ".tiktoken file is needed",
                     first.string());
    definition = parse_hugging_face(read_named(first));
  }
  return Tokenizer(std::move(definition), first.string());
}

void copy_tokenizer(const fs::path& path, const fs::path& folder) {
  std::map<std::string, std::string> contents;
  for (const fs::path& file : files_of(path)) {
    contents.emplace(name_of_copy(file), read_file(file));
  }
  make_folder(folder);
  // What is there of another tokenizer might be found first.
  const std::vector<fs::directory_entry> old(fs::directory_iterator(folder), {});
  for (const fs::directory_entry& entry : old) {
    const std::string name = entry.path().filename().string();
    if (is_tokenizer_file(name) && !contents.contains(name)) {
      fs::remove(entry.path());
    }
  }
  for (const auto& [name, content] : contents) {
    write_file(folder / name, content);
  }
}

void save_tokenizer(const Tokenizer& tokenizer, const fs::path& path) {
  write_file(path, to_hugging_face(tokenizer));
}

}  // namespace carope
