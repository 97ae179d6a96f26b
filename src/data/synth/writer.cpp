#include <cerrno>
#include <cstdio>
#include <cstring>
#include <optional>

#include "core/error.h"
#include "core/file.h"
#include "core/progress.h"
#include "data/synth/synth.h"

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

void require_printed(bool printed) {
  check<FileError>(printed, "cannot write to standard output: {}; name a file with --out",
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
  Progress progress("writing", amount.count, std::string(to_string(amount.unit)));
  const SynthTotals totals = synth_corpus(
      config, amount, threads, [&](std::string_view document, const SynthTotals& so_far) {
        const std::string separator =
            so_far.documents > 1 ? std::string(kEndOfText) + "\n" : std::string();
        const std::string written = plain ? separator + std::string(document) : json_line(document);
        if (file) {
          file->write(written);
        } else {
          require_printed(std::fwrite(written.data(), 1, written.size(), stdout) == written.size());
        }
        progress.advance_to(so_far.of(amount.unit));
      });
  if (file) {
    file->commit();
  } else {
    require_printed(std::fflush(stdout) == 0);
  }
  return totals;
}

}  // namespace carope
