#include "eval/checkpoint_evaluation.h"

#include <algorithm>

#include "core/error.h"
#include "core/file.h"
#include "data/shards/manifest.h"
#include "eval/evaluation_json.h"
#include "position/scaling.h"
#include "train/checkpoint.h"
#include "train/run_data.h"

namespace carope {
namespace {

namespace fs = std::filesystem;

struct Candidate {
  fs::path named;  // as the caller did
  fs::path checkpoint;
  RunConfig config;
};

/// Refuses checkpoints whose results could not be compared.
void check_comparable(const Candidate& first, const Candidate& other, bool lengths_given,
                      bool data_given) {
  const auto check_same = [&](const auto& a, const auto& b, const char* what, const char* remedy) {
    check<ConfigError>(a == b, "{} has {} = {}, {} has {}; {}", first.named.string(), what, a,
                       other.named.string(), b, remedy);
  };
  check_same(first.config.model.vocabulary, other.config.model.vocabulary, "model.vocabulary",
             "perplexities over other vocabularies cannot be compared, score them one by one");
  if (!lengths_given) {
    check_same(first.config.model.length, other.config.model.length, "model.length",
               "say at which lengths to score them with --lengths");
  }
  if (!data_given) {
    const auto path_of = [](const Candidate& candidate) {
      return fs::weakly_canonical(candidate.config.data.path).string();
    };
    check_same(path_of(first), path_of(other), "data.path",
               "say which data to score them on with --data");
  }
}

std::vector<Candidate> find_candidates(const std::vector<fs::path>& paths) {
  std::vector<Candidate> candidates;
  for (const fs::path& path : paths) {
    const fs::path checkpoint = find_checkpoint(path);
    candidates.push_back({path, checkpoint, saved_config(checkpoint)});
  }
  check<ConfigError>(!candidates.empty(), "there is nothing to score; name a run or a checkpoint");
  return candidates;
}

}  // namespace

std::vector<Evaluation> evaluate_model(Context& ctx, Communicator& ranks, Gpt& model,
                                       const RunConfig& run, const EvalConfig& config,
                                       std::span<const Protocol> protocols, const fs::path& data,
                                       const std::string& title) {
  const TokenStream stream(find_shards(data, Split::kValidation));
  EvalData tokens{.stream = stream, .documents = run.data.documents};
  if (const auto manifest = Manifest::load(data)) {
    tokens.end_of_text = static_cast<TokenId>(manifest->end_of_text);
  }
  return measure_perplexity(ctx, ranks, model, tokens, config, protocols, title);
}

std::vector<Evaluation> evaluate_checkpoints(Context& ctx, Communicator& ranks,
                                             const std::vector<fs::path>& runs_or_checkpoints,
                                             EvalConfig config, const fs::path& data,
                                             const std::string& rope_scaling) {
  std::vector<Candidate> candidates = find_candidates(runs_or_checkpoints);
  if (!rope_scaling.empty()) {
    for (Candidate& candidate : candidates) {
      scale_rope(candidate.config.model, rope_scaling);
    }
  }
  const RunConfig& first = candidates.front().config;
  for (const Candidate& candidate : candidates) {
    check_comparable(candidates.front(), candidate, !config.lengths.empty(), !data.empty());
  }
  if (config.lengths.empty()) {
    const std::int64_t trained = first.model.length;
    config.lengths = {trained, 2 * trained, 4 * trained};
  }
  const fs::path folder = data.empty() ? fs::path(first.data.path) : data;
  check<FileError>(fs::exists(folder), "the data {} is not there; name its folder with --data",
                   folder.string());
  for (const Candidate& candidate : candidates) {
    require_same_tokenizer(candidate.config, folder);
  }
  std::vector<Evaluation> evaluations;
  for (const auto& [named, checkpoint, run] : candidates) {
    const std::int64_t step = checkpoint_state(checkpoint).step;
    require_same_step(ranks, step, named);
    Gpt model(run.model, ctx.device(), ctx.compute());
    load_weights(checkpoint, model);
    Evaluation evaluation =
        evaluate_model(ctx, ranks, model, run, config, std::span(&config.protocol, 1), folder,
                       "Scoring " + named.string())
            .front();
    evaluation.checkpoint = checkpoint.string();
    evaluation.step = step;
    evaluation.rope_scaling = rope_scaling.empty() ? "" : canonical_scaling(rope_scaling);
    evaluations.push_back(std::move(evaluation));
  }
  return evaluations;
}

fs::path scaled_evaluation_file(const fs::path& run, const Evaluation& evaluation) {
  std::string name = evaluation.rope_scaling;
  std::replace(name.begin(), name.end(), ':', '-');
  const Protocol protocol = evaluation.config.protocol;
  return run /
         fmt::format("evaluation-scaled-{}-step-{}{}.json", name, evaluation.step,
                     protocol == Protocol::kWindows ? "" : fmt::format("-{}", to_string(protocol)));
}

std::optional<fs::path> keep_scaled_evaluation(const Evaluation& evaluation) {
  const fs::path checkpoint = fs::absolute(evaluation.checkpoint).lexically_normal();
  const fs::path folder = checkpoint.has_filename() ? checkpoint : checkpoint.parent_path();
  const fs::path run = folder.parent_path().parent_path();
  if (evaluation.rope_scaling == "none" || !fs::exists(run / "config.toml")) {
    return std::nullopt;
  }
  const fs::path file = scaled_evaluation_file(run, evaluation);
  write_file(file, to_json(evaluation));
  return file;
}

}  // namespace carope
