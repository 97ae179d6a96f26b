#include "data/shards/manifest.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/file.h"
#include "core/json.h"

namespace carope {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kFile = "manifest.json";
constexpr int kVersion = 1;

std::int64_t sum(const Manifest& manifest, Split split, std::int64_t Manifest::Output::*count) {
  std::int64_t total = 0;
  for (const Manifest::Output& shard : manifest.shards) {
    total += shard.split == split ? shard.*count : 0;
  }
  return total;
}

}  // namespace

std::int64_t Manifest::tokens(Split split) const { return sum(*this, split, &Output::tokens); }

std::int64_t Manifest::documents(Split split) const {
  return sum(*this, split, &Output::documents);
}

std::size_t Manifest::used_inputs() const {
  if (complete || shards.empty()) {
    return complete ? inputs.size() : 0;
  }
  return std::min(inputs.size(), static_cast<std::size_t>(shards.back().end.input) + 1);
}

std::optional<std::string> Manifest::difference(const Manifest& other) const {
  const auto text = [](const auto& a, const auto& b, const char* what) {
    return a == b ? std::nullopt : std::optional(fmt::format("{}: {} instead of {}", what, b, a));
  };
  std::optional<std::string> found;
  const auto compare = [&](const auto& a, const auto& b, const char* what) {
    found = found ? found : text(a, b, what);
  };
  compare(name, other.name, "name");
  compare(tokenizer_sha256, other.tokenizer_sha256, "tokenizer");
  compare(format.text_field, other.format.text_field, "text field");
  compare(format.delimiter, other.format.delimiter, "delimiter");
  compare(shard_tokens, other.shard_tokens, "tokens a shard");
  compare(validation_tokens, other.validation_tokens, "validation tokens");
  compare(most_tokens, other.most_tokens, "tokens in all");
  const std::size_t used = used_inputs();
  if (complete || other.inputs.size() < used) {
    compare(inputs.size(), other.inputs.size(), "number of inputs");
  }
  for (std::size_t i = 0; !found && i < used; ++i) {
    compare(inputs[i].path, other.inputs[i].path, "input");
    compare(inputs[i].bytes, other.inputs[i].bytes, "bytes of an input");
    compare(inputs[i].validation, other.inputs[i].validation, "an input for validation only");
  }
  return found;
}

void Manifest::save(const std::filesystem::path& folder) const {
  Json input_list = Json::array();
  for (const Input& input : inputs) {
    input_list.push_back({{"path", input.path},
                          {"validation", input.validation},
                          {"bytes", input.bytes},
                          {"sha256", input.sha256}});
  }
  Json shard_list = Json::array();
  for (const Output& shard : shards) {
    shard_list.push_back({{"file", shard.file},
                          {"split", to_string(shard.split)},
                          {"tokens", shard.tokens},
                          {"documents", shard.documents},
                          {"end", {shard.end.input, shard.end.piece, shard.end.token}}});
  }
  const auto totals = [&](Split split) {
    return Json{{"tokens", tokens(split)}, {"documents", documents(split)}};
  };
  const Json file{
      {"version", kVersion},
      {"complete", complete},
      {"name", name},
      {"tokenizer",
       {{"sha256", tokenizer_sha256}, {"vocabulary", vocabulary}, {"end_of_text", end_of_text}}},
      {"text_field", format.text_field},
      {"delimiter", format.delimiter},
      {"shard_tokens", shard_tokens},
      {"validation_tokens", validation_tokens},
      {"most_tokens", most_tokens},
      {"train", totals(Split::kTrain)},
      {"val", totals(Split::kValidation)},
      {"inputs", input_list},
      {"shards", shard_list}};
  std::string text;
  try {
    text = file.dump(2) + "\n";
  } catch (const Json::exception& error) {
    throw FileError(
        fmt::format("{} cannot be written: {}; names of files and settings must be "
                    "UTF-8, rename or link what is not",
                    (folder / kFile).string(), error.what()));
  }
  write_file(folder / kFile, text);
}

std::optional<Manifest> Manifest::load(const std::filesystem::path& folder) {
  const std::filesystem::path path = folder / kFile;
  if (!std::filesystem::exists(path)) {
    return std::nullopt;
  }
  try {
    const Json file = parse_json<Json>(read_file(path), path.string());
    const int version = file.at("version");
    check<FileError>(version == kVersion,
                     "{} has version {}, this program reads {}; prepare the data again",
                     path.string(), version, kVersion);
    Manifest manifest;
    manifest.complete = file.at("complete");
    manifest.name = file.at("name");
    manifest.tokenizer_sha256 = file.at("tokenizer").at("sha256");
    manifest.vocabulary = file.at("tokenizer").at("vocabulary");
    manifest.end_of_text = file.at("tokenizer").at("end_of_text");
    manifest.format.text_field = file.at("text_field");
    manifest.format.delimiter = file.at("delimiter");
    manifest.shard_tokens = file.at("shard_tokens");
    manifest.validation_tokens = file.at("validation_tokens");
    manifest.most_tokens = file.at("most_tokens");
    for (const Json& input : file.at("inputs")) {
      manifest.inputs.push_back(
          {input.at("path"), input.at("validation"), input.at("bytes"), input.at("sha256")});
    }
    for (const Json& shard : file.at("shards")) {
      const Json& end = shard.at("end");
      manifest.shards.push_back(
          {shard.at("file"),
           shard.at("split") == to_string(Split::kValidation) ? Split::kValidation : Split::kTrain,
           shard.at("tokens"),
           shard.at("documents"),
           {end.at(0), end.at(1), end.at(2)}});
    }
    return manifest;
  } catch (const Json::exception& error) {
    throw FileError(fmt::format("{} is not a manifest: {}; prepare the data again with --overwrite",
                                path.string(), error.what()));
  }
}

}  // namespace carope
