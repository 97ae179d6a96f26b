#include "data/loader/loader.h"

#include <algorithm>

#include "core/options.h"
#include "data/loader/permutation.h"

namespace carope {
namespace {

const LoaderConfig& checked(const LoaderConfig& config) {
  const auto check_range = [](const char* name, std::int64_t value, std::int64_t lowest,
                              std::int64_t highest) {
    check<ConfigError>(lowest <= value && value <= highest,
                       "the loader's {} = {}: it must be {} to {}", name, value, lowest, highest);
  };
  check_range("length", config.length, 1, kHighestInteger);
  check_range("batch", config.batch, 1, kHighestInteger);
  check_range("vocabulary", config.vocabulary, 1, kHighestInteger);
  check_range("ranks", config.ranks, 1, kHighestInteger);
  check_range("rank", config.rank, 0, config.ranks - 1);
  check_range("first_step", config.first_step, 0, kHighestInteger);
  check_range("prefetch", config.prefetch, 1, 1024);
  check<ConfigError>(config.batch % config.ranks == 0,
                     "a batch of {} rows cannot be divided evenly among {} ranks; choose a "
                     "multiple of {}",
                     config.batch, config.ranks, config.ranks);
  check<ConfigError>(!config.documents || config.end_of_text,
                     "where documents begin cannot be told without the id of the end-of-text "
                     "token; set it, or turn documents off");
  check<ConfigError>(!config.end_of_text || *config.end_of_text < config.vocabulary,
                     "the end-of-text token is {}, the vocabulary has {}; set the one that the "
                     "tokenizer has",
                     config.end_of_text.value_or(0), config.vocabulary);
  return config;
}

std::int64_t count_windows(const TokenStream& stream, std::int64_t length) {
  check<FileError>(!stream.shards().empty(), "no token shards were named; name one at least");
  check<FileError>(stream.size() > length,
                   "the {} shard(s) from {} on have {} tokens, a row of {} and the token after it "
                   "need {}; use more text or a smaller length",
                   stream.shards().size(), stream.shards().front().path().string(), stream.size(),
                   length, length + 1);
  return (stream.size() - 1) / length;
}

}  // namespace

void mark_documents(std::span<const std::int32_t> tokens, TokenId end_of_text,
                    std::span<std::int32_t> starts) {
  std::int32_t start = 0;
  for (std::size_t t = 0; t < tokens.size(); ++t) {
    start = tokens[t] == end_of_text ? static_cast<std::int32_t>(t) : start;
    starts[t] = start;
  }
}

Loader::Loader(const std::vector<std::filesystem::path>& shards, const LoaderConfig& config)
    : config_(checked(config)),
      stream_(shards),
      windows_(count_windows(stream_, config_.length)),
      ring_(static_cast<std::size_t>(config_.prefetch) + 1),
      step_(config_.first_step),
      made_(config_.first_step) {
  arena_ = Arena::plan({}, [&](Arena& arena) {
    for (TokenBatch& batch : ring_) {
      batch = place(arena);
    }
  });
  thread_ = std::jthread([this](const std::stop_token& stop) { make_ahead(stop); });
}

TokenBatch Loader::place(Arena& arena) const {
  const TensorSpec spec{{rows(), config_.length}, DType::kI32};
  TokenBatch batch{.tokens = arena.take(spec), .targets = arena.take(spec)};
  if (config_.documents) {
    batch.document_start = arena.take(spec);
  }
  return batch;
}

std::int64_t Loader::window_of(std::int64_t step, std::int64_t row) const {
  const std::int64_t number = step * config_.batch + config_.rank * rows() + row;
  const std::int64_t epoch = number / windows_;
  const std::int64_t place = number % windows_;
  return config_.order == Order::kSequential
             ? place
             : Permutation(windows_, config_.seed, static_cast<std::uint64_t>(epoch))(place);
}

void Loader::fill(std::int64_t step, TokenBatch& batch, const std::stop_token& stop) const {
  check<ConfigError>(0 <= step && step <= 2 * kHighestInteger, "there is no step {}", step);
  const std::int64_t length = config_.length;
  const auto width = static_cast<std::size_t>(length);
  batch.step = step;
  for (std::int64_t row = 0; row < rows() && !stop.stop_requested(); ++row) {
    std::int32_t* tokens = batch.tokens.data<std::int32_t>() + row * length;
    std::int32_t* targets = batch.targets.data<std::int32_t>() + row * length;
    const std::int64_t begin = window_of(step, row) * length;
    stream_.read(begin, {tokens, width}, config_.vocabulary);
    std::copy(tokens + 1, tokens + length, targets);
    stream_.read(begin + length, {targets + length - 1, 1}, config_.vocabulary);
    if (config_.documents) {
      std::int32_t* starts = batch.document_start.data<std::int32_t>() + row * length;
      mark_documents({tokens, width}, *config_.end_of_text, {starts, width});
    }
  }
}

void Loader::prefetch(std::int64_t step, const std::stop_token& stop) const {
  for (std::int64_t row = 0; row < rows() && !stop.stop_requested(); ++row) {
    const std::int64_t begin = window_of(step, row) * config_.length;
    stream_.prefetch(begin, begin + config_.length + 1);
  }
}

void Loader::make_ahead(const std::stop_token& stop) {
  try {
    for (std::int64_t step = config_.first_step; step < config_.first_step + config_.prefetch;
         ++step) {
      prefetch(step, stop);
    }
    for (std::int64_t step = config_.first_step;; ++step) {
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, stop, [&] { return made_ < step_ + config_.prefetch; });
        if (stop.stop_requested()) {
          return;
        }
      }
      // By the time a step is made, its pages have had as long as several steps take to arrive.
      prefetch(step + config_.prefetch, stop);
      fill(step, ring_[static_cast<std::size_t>(step) % ring_.size()], stop);
      const std::lock_guard lock(mutex_);
      made_ = step + 1;
      changed_.notify_all();
    }
  } catch (...) {
    const std::lock_guard lock(mutex_);
    failure_ = std::current_exception();
    changed_.notify_all();
  }
}

const TokenBatch& Loader::next() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return step_ < made_ || failure_; });
  if (step_ == made_) {
    std::rethrow_exception(failure_);
  }
  const TokenBatch& batch = ring_[static_cast<std::size_t>(step_) % ring_.size()];
  ++step_;
  changed_.notify_all();
  return batch;
}

}  // namespace carope
