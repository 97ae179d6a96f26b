#include "data/tokenizer/tokenizer_training.h"

#include <algorithm>
#include <queue>
#include <unordered_set>

#include "core/error.h"
#include "core/pipeline.h"
#include "core/progress.h"
#include "data/corpus/corpus_stream.h"
#include "data/tokenizer/byte_alphabet.h"
#include "data/tokenizer/pretokenizer.h"

namespace carope {
namespace {

/// Longer pieces are counted in parts, so that no text makes training slow.
constexpr std::size_t kLongestPiece = 1024;
constexpr std::int64_t kBytes = 256;
constexpr std::int64_t kFewest = 2;  // occurrences of a pair that is worth a token

struct Word {
  std::vector<TokenId> symbols;
  std::int64_t count;
};

using PairKey = std::uint32_t;
PairKey key_of(TokenId left, TokenId right) { return PairKey{left} << 16 | right; }

struct PairUse {
  std::int64_t count = 0;
  std::vector<std::uint32_t> words;  // where it has occurred, perhaps no longer
};

struct Candidate {
  std::int64_t count;
  PairKey pair;
  friend bool operator<(const Candidate& a, const Candidate& b) {
    return a.count != b.count ? a.count < b.count : a.pair > b.pair;
  }
};

/// The words of a corpus while pairs of their symbols merge.
class Corpus {
 public:
  explicit Corpus(std::vector<Word> words) : words_(std::move(words)) {
    for (std::uint32_t word = 0; word < words_.size(); ++word) {
      count_pairs(word, +1, [](TokenId, TokenId) { return true; });
    }
    queue_grown();
  }

  /// The most frequent pair; nothing if none is worth a merge.
  std::optional<PairKey> best_pair() {
    while (!queue_.empty()) {
      const Candidate best = queue_.top();
      const std::int64_t count = pairs_[best.pair].count;
      if (best.count == count && count >= kFewest) {
        return best.pair;
      }
      queue_.pop();
      if (count >= kFewest && count < best.count) {
        queue_.push({count, best.pair});
      }
    }
    return std::nullopt;
  }

  void merge(PairKey pair, TokenId result) {
    const std::vector<std::uint32_t> words = std::move(pairs_[pair].words);
    for (const std::uint32_t word : words) {
      if (!contains(words_[word].symbols, pair)) {
        continue;
      }
      const auto is_new = [&](TokenId left, TokenId right) {
        return left == result || right == result;
      };
      count_pairs(word, -1, is_new);
      replace(words_[word].symbols, pair, result);
      count_pairs(word, +1, is_new);
    }
    queue_grown();
  }

 private:
  /// Adds (+1) or takes away (-1) the pairs of a word; `is_new` tells those that it did not have
  /// before.
  template <class IsNew>
  void count_pairs(std::uint32_t index, int sign, const IsNew& is_new) {
    const Word& word = words_[index];
    for (std::size_t i = 0; i + 1 < word.symbols.size(); ++i) {
      const TokenId left = word.symbols[i];
      const TokenId right = word.symbols[i + 1];
      PairUse& use = pairs_[key_of(left, right)];
      use.count += sign * word.count;
      if (sign > 0 && is_new(left, right)) {
        grown_.push_back(key_of(left, right));
        if (use.words.empty() || use.words.back() != index) {
          use.words.push_back(index);
        }
      }
    }
  }

  static bool contains(const std::vector<TokenId>& symbols, PairKey pair) {
    for (std::size_t i = 0; i + 1 < symbols.size(); ++i) {
      if (key_of(symbols[i], symbols[i + 1]) == pair) {
        return true;
      }
    }
    return false;
  }

  static void replace(std::vector<TokenId>& symbols, PairKey pair, TokenId result) {
    std::size_t kept = 0;
    for (std::size_t i = 0; i < symbols.size(); ++i) {
      const bool here = i + 1 < symbols.size() && key_of(symbols[i], symbols[i + 1]) == pair;
      symbols[kept++] = here ? result : symbols[i];
      i += here ? 1 : 0;
    }
    symbols.resize(kept);
  }

  void queue_grown() {
    std::sort(grown_.begin(), grown_.end());
    grown_.erase(std::unique(grown_.begin(), grown_.end()), grown_.end());
    for (const PairKey pair : grown_) {
      queue_.push({pairs_[pair].count, pair});
    }
    grown_.clear();
  }

  std::vector<Word> words_;
  std::unordered_map<PairKey, PairUse> pairs_;
  std::priority_queue<Candidate> queue_;  // counts may be out of date, and then are too high
  std::vector<PairKey> grown_;            // pairs that have come to a word
};

}  // namespace

void PieceCounter::add(std::string_view text) {
  while (!text.empty()) {
    std::string_view piece = text.substr(0, first_piece(text));
    text.remove_prefix(piece.size());
    while (!piece.empty()) {
      const std::string_view part = piece.substr(0, kLongestPiece);
      if (const auto found = counts_.find(part); found != counts_.end()) {
        ++found->second;
      } else {
        counts_.emplace(part, 1);
      }
      piece.remove_prefix(part.size());
    }
  }
}

void PieceCounter::add(PieceCounter&& other) {
  if (counts_.empty()) {
    counts_ = std::move(other.counts_);
    return;
  }
  for (auto& [piece, count] : other.counts_) {
    counts_[piece] += count;
  }
  other.counts_.clear();
}

PieceCounter count_pieces(const std::vector<std::filesystem::path>& inputs,
                          const CorpusFormat& format, int threads) {
  CorpusStream corpus(inputs, format);
  Progress progress("Counting", corpus.bytes(), "B");
  std::vector<PieceCounter> counters(worker_count(threads));
  struct Done {
    std::int64_t position;
  };
  run_pipeline(
      counters.size(), [&] { return corpus.next(); },
      [&](std::size_t thread, CorpusBatch batch) {
        for (RawDocument& piece : batch.pieces) {
          if (const auto text = batch.reader->text_of(std::move(piece))) {
            counters[thread].add(*text);
          }
        }
        return Done{batch.position};
      },
      [&](const Done& done) { progress.advance_to(done.position); });
  for (std::size_t i = 1; i < counters.size(); ++i) {
    counters[0].add(std::move(counters[i]));
  }
  return std::move(counters[0]);
}

Tokenizer train_tokenizer(const PieceCounter& pieces, std::int64_t vocabulary,
                          const std::function<void(std::int64_t)>& report) {
  check<ConfigError>(
      vocabulary > kBytes && vocabulary <= kLargestVocabulary,
      "a vocabulary of {} tokens is not possible: 256 bytes and end of text make 257, "
      "and token shards allow {}",
      vocabulary, kLargestVocabulary);
  TokenizerDefinition definition;
  TokenId of_byte[kBytes];
  std::unordered_map<std::string, TokenId> ids;
  for (int i = 0; i < kBytes; ++i) {
    const unsigned char byte = byte_at(i);
    of_byte[byte] = static_cast<TokenId>(i);
    definition.tokens.emplace_back(1, static_cast<char>(byte));
    ids.emplace(definition.tokens.back(), of_byte[byte]);
  }
  std::vector<Word> words;
  for (const auto& [piece, count] : pieces.counts_) {
    Word word{{}, count};
    for (const char byte : piece) {
      word.symbols.push_back(of_byte[static_cast<unsigned char>(byte)]);
    }
    words.push_back(std::move(word));
  }
  Corpus corpus(std::move(words));
  std::unordered_set<PairKey> merged;
  while (static_cast<std::int64_t>(definition.tokens.size()) + 1 < vocabulary) {
    const std::optional<PairKey> pair = corpus.best_pair();
    if (!pair) {
      break;
    }
    const auto left = static_cast<TokenId>(*pair >> 16);
    const auto right = static_cast<TokenId>(*pair);
    // Two pairs can spell the same token: it keeps its id, and may bring back a pair that has
    // merged before.
    const auto [token, added] = ids.emplace(definition.tokens[left] + definition.tokens[right],
                                            static_cast<TokenId>(definition.tokens.size()));
    if (added) {
      definition.tokens.push_back(token->first);
    }
    if (merged.insert(*pair).second) {
      definition.merges.push_back(
          {left, right, token->second, static_cast<std::uint32_t>(definition.merges.size())});
    }
    corpus.merge(*pair, token->second);
    if (report) {
      report(static_cast<std::int64_t>(definition.tokens.size()));
    }
  }
  definition.specials.push_back(
      {std::string(kEndOfText), static_cast<TokenId>(definition.tokens.size())});
  return Tokenizer(std::move(definition), "the trained tokenizer");
}

}  // namespace carope
