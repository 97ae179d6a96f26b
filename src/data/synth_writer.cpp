#include <cerrno>
#include <cstdio>
#include <cstring>
#include <optional>

#include "core/error.h"
#include "core/file.h"
#include "core/progress.h"
#include "data/synth.h"

namespace carope {
namespace {

/// A document as a line of JSON. It is ASCII, of which only these need escaping.
std::string json_line(std::string_view document) {
  std::string line = "{\"text\": \"";
  line.reserve(document.size() + document.size() / 32);
  for (const char letter : document) {
    switch (letter) {
      case '\n':
        line += "\\n";
        break;
      case '"':
      case '\\':
        line += '\\';
        [[fallthrough]];
      default:
        line += letter;
    }
  }
  return line += "\"}\n";
}

void print(std::string_view bytes) {
  check<FileError>(std::fwrite(bytes.data(), 1, bytes.size(), stdout) == bytes.size(),
                   "cannot write to standard output: {}; name a file with --out",
                   std::strerror(errno));
}

}  // namespace

SynthTotals write_synth_corpus(const SynthConfig& config, const SynthAmount& amount, int threads,
                               const std::filesystem::path& out) {
  const bool plain = out.extension() == ".txt";
  check<ConfigError>(
      out.empty() || plain || out.extension() == ".jsonl",
      "{} ends in neither .txt nor .jsonl; its name says what is written, so give it "
      "one of these endings",
      out.string());
  std::optional<FileWriter> file;
  if (!out.empty()) {
    file.emplace(out);
  }
  const char* units[] = {"documents", "B", "tokens"};
  const auto unit = static_cast<std::size_t>(amount.unit);
  Progress progress("writing", amount.count, units[unit]);
  const SynthTotals totals = synth_corpus(
      config, amount, threads, [&](std::string_view document, const SynthTotals& so_far) {
        const std::string separator =
            so_far.documents > 1 ? std::string(kSynthSeparator) + "\n" : std::string();
        const std::string written = plain ? separator + std::string(document) : json_line(document);
        file ? file->write(written) : print(written);
        const std::int64_t done[] = {so_far.documents, so_far.bytes, so_far.tokens};
        progress.advance_to(done[unit]);
      });
  if (file) {
    file->commit();
  } else {
    check<FileError>(std::fflush(stdout) == 0,
                     "cannot write to standard output: {}; name a file with --out",
                     std::strerror(errno));
  }
  return totals;
}

}  // namespace carope
