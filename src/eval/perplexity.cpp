#include "eval/perplexity.h"

#include <algorithm>
#include <cmath>
#include <span>

#include "core/progress.h"
#include "data/loader/loader.h"
#include "eval/windows.h"

namespace carope {
namespace {

/// Sums losses by unit and by position in the window.
class Tally {
 public:
  Tally(std::int64_t length, std::int64_t points, std::size_t units)
      : length_(length), units_(units), points_(static_cast<std::size_t>(points)) {}

  void add(std::size_t unit, std::int64_t position, double loss) {
    units_[unit].loss += loss;
    ++units_[unit].tokens;
    PositionLoss& point = points_[static_cast<std::size_t>(
        position * static_cast<std::int64_t>(points_.size()) / length_)];
    point.position = point.tokens > 0 ? std::min(point.position, position) : position;
    point.loss += loss;
    ++point.tokens;
  }

  LengthScore score(const Resampling& resampling) {
    const auto unused = [](const auto& sum) { return sum.tokens == 0; };
    std::erase_if(units_, unused);
    std::erase_if(points_, unused);
    LengthScore score{.length = length_, .loss = mean_loss(units_)};
    if (!std::isfinite(score.loss)) {
      score.reason = "the loss is not finite: the model's weights are unusable";
      return score;
    }
    for (PositionLoss& point : points_) {
      score.tokens += point.tokens;
      point.loss /= static_cast<double>(point.tokens);
    }
    score.interval = mean_interval(units_, resampling);
    score.units = std::move(units_);
    score.positions = std::move(points_);
    return score;
  }

 private:
  std::int64_t length_;
  std::vector<LossSum> units_;
  std::vector<PositionLoss> points_;
};

/// Where documents begin in the first tokens of a stream.
std::vector<std::int64_t> find_documents(const EvalData& data, std::int64_t tokens,
                                         std::int64_t vocabulary) {
  constexpr std::int64_t kBlock = 1 << 20;
  std::vector<std::int64_t> begins;
  std::vector<std::int32_t> block;
  for (std::int64_t begin = 0; begin < tokens; begin += kBlock) {
    block.resize(static_cast<std::size_t>(std::min(kBlock, tokens - begin)));
    data.stream.read(begin, block, vocabulary);
    for (std::size_t i = 0; i < block.size(); ++i) {
      if (block[i] == *data.end_of_text) {
        begins.push_back(begin + static_cast<std::int64_t>(i));
      }
    }
  }
  return begins;
}

/// Runs a model over windows.
class Scorer {
 public:
  Scorer(Context& ctx, Communicator& ranks, const Gpt& model, const EvalData& data,
         const EvalConfig& config, std::int64_t stretch)
      : ctx_(ctx), ranks_(ranks), model_(model), data_(data), config_(config) {
    if (config.resample == Resample::kDocuments) {
      document_begins_ = find_documents(data, stretch, model.config().vocabulary);
    }
  }

  /// A score for each protocol, whose windows these are.
  std::vector<LengthScore> score(std::int64_t length, const std::vector<ScoredWindow>& windows,
                                 std::size_t protocols, std::optional<Progress>& progress) {
    const std::size_t units =
        config_.resample == Resample::kDocuments ? document_begins_.size() + 1 : windows.size();
    std::vector<Tally> tallies(protocols,
                               Tally(length, std::min(config_.positions, length), units));
    const auto most =
        static_cast<std::size_t>(std::max<std::int64_t>(config_.tokens_at_once / length, 1));
    const std::vector<Rows> batches = cut_batches(windows, most);
    // Whole batches are dealt to ranks, as a row's rounding may depend on the others in its batch,
    // and every rank adds up all losses in the order of one.
    const auto ranks = static_cast<std::size_t>(ranks_.size());
    for (std::size_t first = 0; first < batches.size(); first += ranks) {
      const auto own = first + static_cast<std::size_t>(ranks_.rank());
      const std::vector<double> losses =
          ranks_.gather(own < batches.size() ? run(batches[own]) : std::vector<double>());
      const double* next = losses.data();
      for (std::size_t i = first; i < std::min(first + ranks, batches.size()); ++i) {
        next = add_losses(batches[i], next, tallies);
        if (progress) {
          progress->advance(static_cast<std::int64_t>(batches[i].size()) *
                            batches[i].front().length);
        }
      }
    }
    state_.reset();
    std::vector<LengthScore> scores;
    for (Tally& tally : tallies) {
      scores.push_back(tally.score(config_.resampling));
    }
    return scores;
  }

 private:
  /// Windows of the same length, the rows of a batch.
  using Rows = std::span<const ScoredWindow>;

  static std::vector<Rows> cut_batches(Rows all, std::size_t most) {
    std::vector<Rows> batches;
    for (std::size_t first = 0; first < all.size(); first += batches.back().size()) {
      std::size_t count = 1;
      while (count < most && first + count < all.size() &&
             all[first + count].length == all[first].length) {
        ++count;
      }
      batches.push_back(all.subspan(first, count));
    }
    return batches;
  }

  /// How many tokens of a row are run at once.
  std::int64_t piece_of(std::int64_t length) const {
    // Packed documents cannot go through a decode state.
    return data_.documents ? length : std::min(length, config_.tokens_at_once);
  }

  /// The losses of a batch, piece by piece if its rows are long.
  std::vector<double> run(Rows rows) {
    const std::int64_t length = rows.front().length;
    const std::int64_t piece = piece_of(length);
    if (piece < length) {
      restart(static_cast<std::int64_t>(rows.size()), length);
    }
    std::vector<double> losses;
    for (std::int64_t offset = 0; offset < length; offset += piece) {
      const std::int64_t count = std::min(piece, length - offset);
      run_piece(rows, offset, count, piece < length ? &*state_ : nullptr);
      losses_.resize(rows.size() * static_cast<std::size_t>(count));
      copy_to_host(losses_.data(), activations_->losses.raw(), losses_.size() * sizeof(float),
                   ctx_.device());
      losses.insert(losses.end(), losses_.begin(), losses_.end());
    }
    return losses;
  }

  void run_piece(std::span<const ScoredWindow> rows, std::int64_t offset, std::int64_t count,
                 DecodeState* state) {
    const auto height = static_cast<std::int64_t>(rows.size());
    read(rows, offset, count);
    plan(height, count, state != nullptr ? Purpose::kPrefill : Purpose::kEvaluation);
    Batch host{.seq = {.batch = height, .length = count},
               .tokens = Tensor::of(tokens_, {height, count}),
               .targets = Tensor::of(targets_, {height, count})};
    if (data_.documents) {
      host.seq.document_start = Tensor::of(document_start_, {height, count});
    }
    const Batch batch = device_batch_.upload(ctx_, host, model_.config().vocabulary);
    if (batch.counted() > 0) {
      model_.loss(ctx_, batch, *activations_, state);
    } else {
      model_.forward(ctx_, batch.seq, batch.tokens, *activations_, state);
    }
  }

  /// Reads a piece of each row: tokens, and those of the targets that count.
  void read(std::span<const ScoredWindow> rows, std::int64_t offset, std::int64_t count) {
    const auto size = static_cast<std::size_t>(count);
    tokens_.resize(rows.size() * size);
    targets_.resize(rows.size() * size);
    document_start_.resize(data_.documents ? rows.size() * size : 0);
    const std::int64_t vocabulary = model_.config().vocabulary;
    for (std::size_t row = 0; row < rows.size(); ++row) {
      const std::span tokens = std::span(tokens_).subspan(row * size, size);
      const std::span targets = std::span(targets_).subspan(row * size, size);
      data_.stream.read(rows[row].begin + offset, tokens, vocabulary);
      data_.stream.read(rows[row].begin + offset + 1, targets, vocabulary);
      const std::int64_t not_counted =
          std::clamp<std::int64_t>(rows[row].first() - offset, 0, count);
      std::fill_n(targets.begin(), not_counted, -1);
      if (data_.documents) {
        mark_documents(tokens, *data_.end_of_text,
                       std::span(document_start_).subspan(row * size, size));
      }
    }
  }

  /// Adds what run() gave for a batch, and returns where that ends.
  const double* add_losses(Rows rows, const double* losses, std::vector<Tally>& tallies) const {
    const std::int64_t length = rows.front().length;
    const std::int64_t piece = piece_of(length);
    for (std::int64_t offset = 0; offset < length; offset += piece) {
      const std::int64_t count = std::min(piece, length - offset);
      for (const ScoredWindow& row : rows) {
        add_losses(row, offset, std::span(losses, static_cast<std::size_t>(count)), tallies);
        losses += count;
      }
    }
    return losses;
  }

  void add_losses(const ScoredWindow& row, std::int64_t offset, std::span<const double> losses,
                  std::vector<Tally>& tallies) const {
    for (const auto& [protocol, unit, first] : row.parts) {
      for (auto t = static_cast<std::size_t>(std::max<std::int64_t>(first - offset, 0));
           t < losses.size(); ++t) {
        const std::int64_t position = offset + static_cast<std::int64_t>(t);
        tallies[protocol].add(
            config_.resample == Resample::kDocuments ? document_of(row.begin + position) : unit,
            position, losses[t]);
      }
    }
  }

  /// A target belongs to the document of the token before it, which it is predicted from.
  std::size_t document_of(std::int64_t token) const {
    const auto next = std::upper_bound(document_begins_.begin(), document_begins_.end(), token);
    return static_cast<std::size_t>(next - document_begins_.begin());
  }

  void plan(std::int64_t rows, std::int64_t length, Purpose purpose) {
    const Pass pass{
        .batch = rows, .length = length, .purpose = purpose, .documents = data_.documents};
    if (!activations_ || activations_->plan.pass != pass) {
      activations_.reset();  // before there is another
      activations_.emplace(model_.plan(pass));
    }
  }

  void restart(std::int64_t rows, std::int64_t length) {
    if (state_) {
      state_->restart();
    } else {
      state_.emplace(model_.plan_decoding(rows, length));
    }
  }

  Context& ctx_;
  Communicator& ranks_;
  const Gpt& model_;
  const EvalData& data_;
  const EvalConfig& config_;
  std::vector<std::int64_t> document_begins_;
  std::vector<std::int32_t> tokens_, targets_, document_start_;
  DeviceBatch device_batch_;
  std::vector<float> losses_;
  std::optional<Activations> activations_;
  std::optional<DecodeState> state_;
};

void check_config(const EvalConfig& config) {
  check<ConfigError>(!config.lengths.empty(), "there is no length to score; name one at least");
  const std::int64_t shortest = *std::min_element(config.lengths.begin(), config.lengths.end());
  check<ConfigError>(shortest >= 1, "a length of {} is not possible; give 1 or more", shortest);
  const auto check_part = [&](const char* name, std::int64_t value, Protocol protocol) {
    check<ConfigError>(value == 0 || config.protocol == protocol,
                       "{} = {} is for the protocol '{}', not '{}'; leave it out, or change the "
                       "protocol",
                       name, value, to_string(protocol), to_string(config.protocol));
    check<ConfigError>(0 <= value && value <= shortest,
                       "{} = {} is not possible with windows of {}; give 1 to {}", name, value,
                       shortest, shortest);
  };
  check_part("stride", config.stride, Protocol::kSliding);
  check_part("last", config.last, Protocol::kLast);
  check<ConfigError>(config.tokens >= 0 && config.positions >= 1 && config.tokens_at_once >= 0,
                     "tokens = {}, positions = {} and tokens_at_once = {} are not possible; give 1 "
                     "or more",
                     config.tokens, config.positions, config.tokens_at_once);
}

void check_data(const EvalData& data, const EvalConfig& config) {
  check<FileError>(!data.stream.shards().empty(), "no token shards were named; name one at least");
  const bool needed = data.documents || config.resample == Resample::kDocuments;
  check<ConfigError>(
      !needed || data.end_of_text.has_value(),
      "where documents begin in {} is not known: the id of the end-of-text token stands in a "
      "manifest.json beside the shards, which is missing; prepare the data with carope data "
      "prepare{}",
      data.stream.shards().front().path().parent_path().string(),
      data.documents ? "" : ", or resample windows");
}

/// What a CPU's caches hold, or what fills a GPU; there, windows of 16 times the paper's length
/// still run whole, without a cache of keys.
std::int64_t usual_tokens_at_once(Device device) {
  return device.kind == DeviceKind::kCuda ? 16'384 : 2'048;
}

/// Targets from the stream's beginning on that all lengths can share.
std::int64_t common_stretch(const TokenStream& stream, const EvalConfig& config) {
  const std::int64_t longest = *std::max_element(config.lengths.begin(), config.lengths.end());
  check<FileError>(!stream.shards().empty(), "no token shards were named; name one at least");
  check<ConfigError>(
      stream.size() > longest,
      "the {} shard(s) from {} on have {} tokens, a window of {} and the token after "
      "it need {}; give lengths of at most {}, or more text",
      stream.shards().size(), stream.shards().front().path().string(), stream.size(), longest,
      longest + 1, stream.size() - 1);
  check<ConfigError>(config.tokens == 0 || config.tokens >= longest,
                     "tokens = {} is less than one window of {}; give more tokens, or shorter "
                     "lengths",
                     config.tokens, longest);
  const std::int64_t targets =
      config.tokens > 0 ? std::min(config.tokens, stream.size() - 1) : stream.size() - 1;
  return targets / longest * longest;
}

}  // namespace

std::string_view to_string(Protocol protocol) {
  switch (protocol) {
    case Protocol::kWindows:
      return "windows";
    case Protocol::kSliding:
      return "sliding";
    case Protocol::kLast:
      return "last";
  }
  return "";
}

std::string_view to_string(Resample resample) {
  return resample == Resample::kWindows ? "windows" : "documents";
}

std::vector<Evaluation> measure_perplexity(Context& ctx, Communicator& ranks, Gpt& model,
                                           const EvalData& data, const EvalConfig& given,
                                           std::span<const Protocol> protocols,
                                           const std::string& title) {
  std::vector<Evaluation> evaluations;
  for (const Protocol protocol : protocols) {
    EvalConfig config = given;
    config.protocol = protocol;
    check_config(config);
    if (protocol == Protocol::kLast && config.last == 0) {
      const std::int64_t shortest = *std::min_element(config.lengths.begin(), config.lengths.end());
      config.last = std::max<std::int64_t>(shortest / 2, 1);
    }
    if (config.tokens_at_once == 0) {
      config.tokens_at_once = usual_tokens_at_once(ctx.device());
    }
    evaluations.push_back({.config = config});
  }
  const EvalConfig& config = evaluations.front().config;
  check_data(data, config);
  const std::int64_t stretch = common_stretch(data.stream, config);
  const std::int64_t bound = model.encoding().max_length.value_or(stretch);
  std::int64_t work = 0;
  std::vector<std::vector<ScoredWindow>> windows;
  for (const std::int64_t length : config.lengths) {
    std::vector<std::vector<Window>> cut;
    for (const Evaluation& evaluation : evaluations) {
      cut.push_back(length <= bound ? cut_windows(evaluation.config, length, stretch)
                                    : std::vector<Window>());
    }
    windows.push_back(merge_windows(cut));
    for (const ScoredWindow& window : windows.back()) {
      work += window.length;
    }
  }
  Scorer scorer(ctx, ranks, model, data, config, stretch);
  std::optional<Progress> progress;
  if (ranks.rank() == 0) {
    progress.emplace(title, work, "tokens");
  }
  for (std::size_t i = 0; i < config.lengths.size(); ++i) {
    const std::int64_t length = config.lengths[i];
    model.serve(length);
    const std::vector<LengthScore> scores =
        length <= bound
            ? scorer.score(length, windows[i], evaluations.size(), progress)
            : std::vector(
                  evaluations.size(),
                  LengthScore{.length = length,
                              .reason = fmt::format("past the {} positions of the encoding '{}'",
                                                    bound, model.config().encoding)});
    for (std::size_t j = 0; j < evaluations.size(); ++j) {
      evaluations[j].tokens = stretch;
      evaluations[j].lengths.push_back(scores[j]);
    }
  }
  model.serve(model.config().length);
  return evaluations;
}

Evaluation measure_perplexity(Context& ctx, Gpt& model, const EvalData& data,
                              const EvalConfig& config, const std::string& title) {
  const auto alone = make_alone();
  return measure_perplexity(ctx, *alone, model, data, config, std::span(&config.protocol, 1), title)
      .front();
}

}  // namespace carope
