#include "train/metrics.h"

#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <sstream>

#include "core/error.h"
#include "core/file.h"
#include "core/json.h"

namespace carope {
namespace {

using Json = nlohmann::ordered_json;

/// The lines up to a step. The last line may be cut off where the program was killed.
std::string lines_until(const std::filesystem::path& path, std::int64_t step) {
  std::istringstream lines(read_file(path));
  std::string kept;
  for (std::string line; std::getline(lines, line);) {
    const Json json = parse_json<Json>(line, path.string(), false);
    const auto of = json.find("step");
    if (json.is_object() && of != json.end() && of->is_number_integer() && *of <= step) {
      kept += line + "\n";
    }
  }
  return kept;
}

}  // namespace

MetricsLog::MetricsLog(const std::filesystem::path& run, std::int64_t steps_done)
    : path_(run / "metrics.jsonl"), tensorboard_(run / "tensorboard", steps_done + 1) {
  write_file(path_, std::filesystem::exists(path_) ? lines_until(path_, steps_done) : "");
  file_.reset(std::fopen(path_.c_str(), "ab"));
  check<FileError>(file_ != nullptr, "cannot write {}: {}; check the permissions", path_.string(),
                   std::strerror(errno));
}

void MetricsLog::add(const StepMetrics& m) {
  write(Json{{"step", m.step},
             {"tokens", m.tokens},
             {"loss", m.loss},
             {"norm", m.norm},
             {"learning_rate", m.learning_rate},
             {"seconds", m.seconds},
             {"tokens_per_second", m.tokens_per_second}}
            .dump());
  tensorboard_.add("train/loss", m.step, m.loss);
  tensorboard_.add("train/norm", m.step, m.norm);
  tensorboard_.add("train/learning_rate", m.step, m.learning_rate);
  tensorboard_.add("train/tokens_per_second", m.step, m.tokens_per_second);
}

void MetricsLog::add(const ValidationMetrics& m) {
  write(Json{{"step", m.step}, {"tokens", m.tokens}, {"validation_loss", m.loss}}.dump());
  tensorboard_.add("validation/loss", m.step, m.loss);
}

void MetricsLog::write(const std::string& line) {
  const bool written = std::fwrite(line.data(), 1, line.size(), file_.get()) == line.size() &&
                       std::fputc('\n', file_.get()) != EOF && std::fflush(file_.get()) == 0;
  check<FileError>(written,
                   "cannot write {}: {}; free some space, then run the command again (carope train "
                   "with --resume auto)",
                   path_.string(), std::strerror(errno));
}

}  // namespace carope
