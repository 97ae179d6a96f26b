#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>

#include "data/corpus/corpus.h"
#include "data/tokenizer/tokenizer.h"

namespace carope {

/// How often each piece of some texts occurs. Counters of several threads add up.
class PieceCounter {
 public:
  void add(std::string_view text);
  void add(PieceCounter&& other);

 private:
  friend Tokenizer train_tokenizer(const PieceCounter&, std::int64_t,
                                   const std::function<void(std::int64_t)>&);

  struct Hash {
    using is_transparent = void;
    std::size_t operator()(std::string_view text) const {
      return std::hash<std::string_view>()(text);
    }
  };
  std::unordered_map<std::string, std::int64_t, Hash, std::equal_to<>> counts_;
};

/// Counts the pieces of all documents of some files, with many threads (0: all).
PieceCounter count_pieces(const std::vector<std::filesystem::path>& inputs,
                          const CorpusFormat& format, int threads);

/// Learns a byte-level BPE: 256 bytes, then merges of the most frequent pair (of equally frequent
/// ones, that with the lowest ids), then <|endoftext|>. It depends on the counts alone. The
/// vocabulary is smaller than asked for where no pair occurs twice any more. `report` hears of the
/// tokens so far.
Tokenizer train_tokenizer(const PieceCounter& pieces, std::int64_t vocabulary,
                          const std::function<void(std::int64_t)>& report = {});

}  // namespace carope
