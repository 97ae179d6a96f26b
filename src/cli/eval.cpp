#include <fmt/format.h>

#include <cmath>
#include <map>
#include <memory>

#include "cli/commands.h"
#include "cli/compute.h"
#include "cli/options.h"
#include "cli/ranks.h"
#include "cli/score_options.h"
#include "core/error.h"
#include "core/file.h"
#include "eval/checkpoint_evaluation.h"
#include "eval/evaluation_json.h"
#include "report/table.h"

namespace carope {
namespace {

struct EvalOptions {
  std::vector<std::filesystem::path> checkpoints;
  EvalConfig config;
  std::filesystem::path data;
  std::filesystem::path json;
  std::string rope_scaling;
  ComputeOptions compute;
  RankOptions ranks;
};

Table table_of_lengths(const EvalConfig& config, std::vector<std::string> header) {
  for (const std::int64_t length : config.lengths) {
    header.push_back(fmt::format("@{}", length));
  }
  return Table(std::move(header));
}

std::string perplexity_cell(const LengthScore& score) {
  if (!score.reason.empty()) {
    return "-";
  }
  const std::string perplexity = fmt::format("{:.2f}", std::exp(score.loss));
  return score.units.size() < 2
             ? perplexity
             : fmt::format("{} [{:.2f}, {:.2f}]", perplexity, std::exp(score.interval.low),
                           std::exp(score.interval.high));
}

std::string difference_cell(const LengthScore& first, const LengthScore& other,
                            const Resampling& resampling) {
  if (!first.reason.empty() || !other.reason.empty()) {
    return "-";
  }
  const Difference difference = paired_difference(first.units, other.units, resampling);
  const std::string loss = fmt::format("{:+.4f}", difference.loss);
  const std::string ratio = fmt::format("(x{:.4f})", std::exp(difference.loss));
  return first.units.size() < 2
             ? loss + " " + ratio
             : fmt::format("{} [{:+.4f}, {:+.4f}] {}", loss, difference.interval.low,
                           difference.interval.high, ratio);
}

void print_perplexities(const EvalOptions& options, const std::vector<Evaluation>& evaluations) {
  const EvalConfig& config = evaluations.front().config;
  const std::string& scaling = evaluations.front().rope_scaling;
  fmt::print("Perplexity on {} tokens, protocol {}{}, with 95 % intervals by {}:\n\n",
             evaluations.front().tokens, to_string(config.protocol),
             scaling.empty() ? "" : ", RoPE scaling " + scaling, to_string(config.resample));
  Table table = table_of_lengths(config, {"checkpoint", "step"});
  std::string notes;
  for (std::size_t i = 0; i < evaluations.size(); ++i) {
    const std::string name = options.checkpoints[i].string();
    std::vector<std::string> row{name, fmt::to_string(evaluations[i].step)};
    std::map<std::string, std::string> lengths;  // by what is to be said of them
    for (const LengthScore& score : evaluations[i].lengths) {
      row.push_back(perplexity_cell(score));
      if (!score.reason.empty()) {
        lengths[score.reason] += fmt::format(" @{}", score.length);
      } else if (score.units.size() < 2) {
        lengths["one unit alone has no interval; score more tokens"] +=
            fmt::format(" @{}", score.length);
      }
    }
    for (const auto& [note, where] : lengths) {
      notes += fmt::format("{}{}: {}\n", name, where, note);
    }
    table.add(std::move(row));
  }
  fmt::print("{}{}{}", table.text(), notes.empty() ? "" : "\n", notes);
}

void print_differences(const EvalOptions& options, const std::vector<Evaluation>& evaluations) {
  const Evaluation& first = evaluations.front();
  fmt::print(
      "\nLoss minus that of {}, in nats a token, with paired 95 % intervals (and the ratio of "
      "perplexities):\n\n",
      options.checkpoints.front().string());
  Table table = table_of_lengths(first.config, {"checkpoint"});
  for (std::size_t i = 1; i < evaluations.size(); ++i) {
    std::vector<std::string> row{options.checkpoints[i].string()};
    for (std::size_t j = 0; j < first.lengths.size(); ++j) {
      row.push_back(
          difference_cell(first.lengths[j], evaluations[i].lengths[j], first.config.resampling));
    }
    table.add(std::move(row));
  }
  fmt::print("{}", table.text());
}

/// Where a folder cannot be written to, the results are on the screen all the same.
void keep_for_report(const std::vector<Evaluation>& evaluations) {
  for (const Evaluation& evaluation : evaluations) {
    try {
      if (const auto file = keep_scaled_evaluation(evaluation)) {
        fmt::print("\nkept for carope report: {}\n", file->string());
      }
    } catch (const FileError& error) {
      fmt::print(stderr, "not kept for carope report: {}\n", error.what());
    }
  }
}

/// All ranks part in order, whatever the results are.
std::vector<Evaluation> evaluate(const EvalOptions& options) {
  Workplace workplace = open_workplace(options.compute, options.ranks);
  if (workplace.first() && !options.json.empty()) {
    require_writable(options.json);
  }
  std::vector<Evaluation> evaluations =
      evaluate_checkpoints(workplace.ctx, *workplace.ranks, options.checkpoints, options.config,
                           options.data, options.rope_scaling);
  if (!workplace.first()) {
    return evaluations;
  }
  print_perplexities(options, evaluations);
  if (evaluations.size() > 1) {
    print_differences(options, evaluations);
  }
  if (!options.rope_scaling.empty() && options.data.empty()) {
    keep_for_report(evaluations);
  }
  if (!options.json.empty()) {
    write_file(options.json,
               evaluations.size() == 1 ? to_json(evaluations.front()) : to_json(evaluations));
  }
  return evaluations;
}

/// Throws if no checkpoint has a value at any length.
void require_scores(const std::vector<Evaluation>& evaluations) {
  std::string reason;
  for (const Evaluation& evaluation : evaluations) {
    for (const LengthScore& score : evaluation.lengths) {
      if (score.reason.empty()) {
        return;
      }
      reason = reason.empty() ? score.reason : reason;
    }
  }
  throw Error(fmt::format("nothing was scored: {}; name other checkpoints or lengths", reason));
}

}  // namespace

void add_eval(CLI::App& app) {
  CLI::App* command =
      app.add_subcommand("eval", "Measures the perplexity of checkpoints at any lengths");
  const auto options = std::make_shared<EvalOptions>();
  EvalConfig& config = options->config;
  command->add_option("checkpoints", options->checkpoints, "runs, or single checkpoints of them")
      ->required();
  add_lengths_option(*command, config.lengths, "1, 2 and 4");
  add_choice(*command, "--protocol", config.protocol,
             std::vector{Protocol::kWindows, Protocol::kSliding, Protocol::kLast},
             "windows (default): side by side; sliding: they overlap and each target counts once; "
             "last: side "
             "by side, only their last targets count");
  command->add_option("--stride", config.stride, "of sliding windows; by default half the length")
      ->transform(as_quantity());
  command
      ->add_option("--last", config.last,
                   "targets of a window that count; by default half the shortest length")
      ->transform(as_quantity());
  command->add_option("--tokens", config.tokens, "targets at most; by default all")
      ->transform(as_quantity());
  add_resample_option(*command, config.resample, "windows");
  command->add_option("--data", options->data,
                      "folder of token shards; by default that of the runs");
  command
      ->add_option("--rope-scaling", options->rope_scaling,
                   "scale RoPE for longer sequences, as NAME:FACTOR: linear, ntk, dynamic_ntk, "
                   "yarn or llama3, e.g. yarn:4; the run's folder keeps the result for carope "
                   "report")
      ->check(not_empty());
  command->add_option("--json", options->json, "write the results, with curves, to this file");
  add_compute_options(*command, options->compute);
  add_rank_options(*command, options->ranks);
  command->callback([options] { require_scores(evaluate(*options)); });
}

}  // namespace carope
