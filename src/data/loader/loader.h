#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <mutex>
#include <optional>
#include <span>
#include <stop_token>
#include <thread>
#include <vector>

#include "core/arena.h"
#include "data/loader/token_stream.h"

namespace carope {

/// In which order an epoch visits the windows of the stream.
enum class Order : std::uint8_t {
  kSequential,  // as they lie
  kShuffled,    // permuted anew each epoch
};

struct LoaderConfig {
  std::int64_t length = 512;  // T: tokens a row
  std::int64_t batch = 64;    // rows a step, of all ranks together
  Order order = Order::kSequential;
  std::uint64_t seed = 1;  // of the shuffled order
  std::int64_t vocabulary = kLargestVocabulary;
  std::optional<TokenId> end_of_text{};  // the token that begins a document; needed for documents
  bool documents = false;                // say where documents begin
  int rank = 0;
  int ranks = 1;
  std::int64_t first_step = 0;
  int prefetch = 2;  // batches to make ahead
};

/// One rank's rows of a step: B = batch / ranks.
struct TokenBatch {
  std::int64_t step = 0;
  Tensor tokens{};          // [B, T] i32
  Tensor targets{};         // [B, T] i32: the token that follows each
  Tensor document_start{};  // [B, T] i32: as Sequence has it; empty unless asked for
};

/// For each token of a row, the index of the first of its document, as Sequence has it.
void mark_documents(std::span<const std::int32_t> tokens, TokenId end_of_text,
                    std::span<std::int32_t> starts);

/// Cuts a stream of N tokens into windows of T, each with the token that follows, and serves them
/// in batches that a thread makes ahead. Row j of all ranks' rows at a step is number
/// n = step * batch + j; epoch n / W has at place n % W of its order the row's window, where
/// W = (N - 1) / T. So a batch is a function of (seed, step) alone, and any step can be the first.
class Loader {
 public:
  Loader(const std::vector<std::filesystem::path>& shards, const LoaderConfig& config);

  /// The batch of step(), which it advances. Valid until the next call. Throws what went wrong
  /// while the batch was made.
  const TokenBatch& next();
  /// The step whose batch comes next.
  std::int64_t step() const { return step_; }

  /// Tokens of the stream.
  std::int64_t tokens() const { return stream_.size(); }
  /// Rows of an epoch.
  std::int64_t windows() const { return windows_; }

  /// Takes room for a batch from an arena, for `fill`.
  TokenBatch place(Arena& arena) const;
  /// Makes the batch of any step. Any thread may call it.
  void fill(std::int64_t step, TokenBatch& batch) const { fill(step, batch, {}); }

 private:
  std::int64_t rows() const { return config_.batch / config_.ranks; }
  std::int64_t window_of(std::int64_t step, std::int64_t row) const;
  void fill(std::int64_t step, TokenBatch& batch, const std::stop_token& stop) const;
  void prefetch(std::int64_t step, const std::stop_token& stop) const;
  void make_ahead(const std::stop_token& stop);

  const LoaderConfig config_;
  const TokenStream stream_;
  const std::int64_t windows_;
  Arena arena_;
  std::vector<TokenBatch> ring_;  // those made ahead and the one in use

  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::int64_t step_;  // guarded by mutex_, as the rest is
  std::int64_t made_;  // the step to be made next
  std::exception_ptr failure_;
  std::jthread thread_;  // last, so that it ends before what it uses
};

}  // namespace carope
