#include "data/tokenizer/encoder.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <span>

#include "core/context.h"
#include "core/error.h"
#include "core/parallel.h"
#include "data/tokenizer/pretokenizer.h"

namespace carope {
namespace {

constexpr std::uint32_t kNone = std::numeric_limits<std::uint32_t>::max();

/// Cuts a text at its special tokens, from left to right; of several that begin together, the
/// longest counts.
class SpecialCutter {
 public:
  SpecialCutter(std::string_view text, std::span<const SpecialToken> specials)
      : text_(text), specials_(specials), next_(specials.size(), 0) {}

  struct Part {
    std::string_view text;
    const SpecialToken* special;  // what follows it; null at the end
  };

  bool done() const { return done_; }

  Part next() {
    std::size_t first = text_.size();
    const SpecialToken* found = nullptr;
    for (std::size_t i = 0; i < specials_.size(); ++i) {
      // Found once, a place stays good until it is passed: the text is searched once a token.
      if (next_[i] <= at_ && next_[i] != std::string_view::npos) {
        next_[i] = text_.find(specials_[i].text, at_);
      }
      if (next_[i] < first ||
          (found && next_[i] == first && specials_[i].text.size() > found->text.size())) {
        first = next_[i];
        found = &specials_[i];
      }
    }
    const Part part{text_.substr(at_, first - at_), found};
    at_ = first + (found ? found->text.size() : 0);
    done_ = found == nullptr;
    return part;
  }

 private:
  std::string_view text_;
  std::span<const SpecialToken> specials_;
  std::vector<std::size_t> next_;
  std::size_t at_ = 0;
  bool done_ = false;
};

/// Parts of about a megabyte that can be encoded apart.
std::vector<std::string_view> cut_safely(std::string_view text) {
  constexpr std::size_t kPart = std::size_t{1} << 20;
  std::vector<std::string_view> parts;
  while (!text.empty()) {
    std::size_t cut = 0;
    std::size_t window = kPart;
    while (cut == 0 && window < text.size()) {
      cut = last_safe_cut(text.substr(0, window));
      window *= 2;
    }
    cut = cut == 0 ? text.size() : cut;
    parts.push_back(text.substr(0, cut));
    text.remove_prefix(cut);
  }
  return parts;
}

}  // namespace

Encoder::Encoder(const Tokenizer& tokenizer)
    : tokenizer_(tokenizer), cache_(std::size_t{1} << kCacheBits) {
  const TokenizerDefinition& definition = tokenizer.definition();
  if (definition.whole_pieces) {
    for (std::size_t id = 0; id < definition.tokens.size(); ++id) {
      whole_pieces_.emplace(definition.tokens[id], static_cast<TokenId>(id));
    }
  }
}

void Encoder::encode(std::string_view text, std::vector<TokenId>& ids, Specials specials) {
  if (specials == Specials::kAsText) {
    encode_text(text, ids);
    return;
  }
  for (SpecialCutter cutter(text, tokenizer_.definition().specials); !cutter.done();) {
    const SpecialCutter::Part part = cutter.next();
    encode_text(part.text, ids);
    if (part.special != nullptr) {
      ids.push_back(part.special->id);
    }
  }
}

Encoder::Key Encoder::key_of(std::string_view text, std::size_t length) {
  static_assert(std::endian::native == std::endian::little);
  Key key{};
  if (text.size() >= sizeof key) {
    std::memcpy(&key, text.data(), sizeof key);
  } else {
    std::memcpy(&key, text.data(), text.size());
  }
  constexpr std::uint64_t kAll = ~std::uint64_t{0};
  key.low &= length < 8 ? ~(kAll << 8 * length) : kAll;
  key.high &= length > 8 ? ~(kAll << 8 * (length - 8)) : 0;
  key.high |= std::uint64_t{length} << 56;
  return key;
}

void Encoder::encode_text(std::string_view text, std::vector<TokenId>& ids) {
  std::size_t count = ids.size();
  // No text has more tokens than bytes; the room behind takes a whole Remembered at once.
  ids.resize(count + text.size() + std::size(Remembered{}.ids));
  while (!text.empty()) {
    const std::size_t length = first_piece(text);
    if (length > kLongestKey) {
      merge_piece(text.substr(0, length));
      std::copy(merged_.begin(), merged_.end(), ids.data() + count);
      count += merged_.size();
      text.remove_prefix(length);
      continue;
    }
    const Key key = key_of(text, length);
    const std::uint64_t hash =
        (key.low ^ (key.high * 0x9fb21c651e98df25u)) * std::uint64_t{0x9e3779b97f4a7c15};
    Remembered& remembered = cache_[hash >> (64 - kCacheBits)];
    if (remembered.key == key) {
      std::memcpy(ids.data() + count, remembered.ids, sizeof remembered.ids);
      count += remembered.count;
    } else {
      merge_piece(text.substr(0, length));
      std::copy(merged_.begin(), merged_.end(), ids.data() + count);
      count += merged_.size();
      if (merged_.size() <= std::size(remembered.ids)) {
        remembered.key = key;
        remembered.count = static_cast<std::uint16_t>(merged_.size());
        std::copy(merged_.begin(), merged_.end(), remembered.ids);
      }
    }
    text.remove_prefix(length);
  }
  ids.resize(count);
}

void Encoder::merge_piece(std::string_view piece) {
  merged_.clear();
  if (const auto whole = whole_pieces_.find(piece); whole != whole_pieces_.end()) {
    merged_.push_back(whole->second);
  } else if (piece.size() <= kShortPiece) {
    merge_short(piece);
  } else {
    merge_long(piece);
  }
}

void Encoder::merge_short(std::string_view piece) {
  TokenId ids[kShortPiece];
  Tokenizer::Merged pairs[kShortPiece];  // what each makes with the next
  std::size_t size = piece.size();
  for (std::size_t i = 0; i < size; ++i) {
    ids[i] = tokenizer_.token_of_byte(static_cast<unsigned char>(piece[i]));
  }
  for (std::size_t i = 0; i + 1 < size; ++i) {
    pairs[i] = tokenizer_.merge(ids[i], ids[i + 1]);
  }
  while (size > 1) {
    const auto by_rank = [](const auto& a, const auto& b) { return a.rank < b.rank; };
    const auto best =
        static_cast<std::size_t>(std::min_element(pairs, pairs + size - 1, by_rank) - pairs);
    if (pairs[best].rank == Tokenizer::kNoRank) {
      break;
    }
    ids[best] = pairs[best].id;
    --size;
    std::copy(ids + best + 2, ids + size + 1, ids + best + 1);
    std::copy(pairs + best + 1, pairs + size, pairs + best);
    if (best + 1 < size) {
      pairs[best] = tokenizer_.merge(ids[best], ids[best + 1]);
    }
    if (best > 0) {
      pairs[best - 1] = tokenizer_.merge(ids[best - 1], ids[best]);
    }
  }
  merged_.assign(ids, ids + size);
}

void Encoder::merge_long(std::string_view piece) {
  check<Error>(piece.size() < kNone, "a word of {} bytes is too long to encode; cut the text",
               piece.size());
  const auto size = static_cast<std::uint32_t>(piece.size());
  symbols_.resize(size);
  for (std::uint32_t i = 0; i < size; ++i) {
    symbols_[i] = {i == 0 ? kNone : i - 1, i + 1 == size ? kNone : i + 1,
                   tokenizer_.token_of_byte(static_cast<unsigned char>(piece[i])), true};
  }
  const auto merge_at = [&](std::uint32_t position) -> Tokenizer::Merged {
    const Symbol& symbol = symbols_[position];
    return symbol.next == kNone ? Tokenizer::Merged{Tokenizer::kNoRank, 0}
                                : tokenizer_.merge(symbol.id, symbols_[symbol.next].id);
  };
  candidates_.clear();
  for (std::uint32_t i = 0; i < size; ++i) {
    if (const std::uint32_t rank = merge_at(i).rank; rank != Tokenizer::kNoRank) {
      candidates_.push_back({rank, i});
    }
  }
  std::make_heap(candidates_.begin(), candidates_.end(), std::greater<>());
  const auto consider = [&](std::uint32_t position) {
    if (const std::uint32_t rank = merge_at(position).rank; rank != Tokenizer::kNoRank) {
      candidates_.push_back({rank, position});
      std::push_heap(candidates_.begin(), candidates_.end(), std::greater<>());
    }
  };
  while (!candidates_.empty()) {
    const Candidate best = candidates_.front();
    std::pop_heap(candidates_.begin(), candidates_.end(), std::greater<>());
    candidates_.pop_back();
    Symbol& left = symbols_[best.position];
    const Tokenizer::Merged merged = merge_at(best.position);
    if (!left.alive || merged.rank != best.rank) {
      continue;  // one of the two has merged with another neighbour since
    }
    Symbol& right = symbols_[left.next];
    right.alive = false;
    left.id = merged.id;
    left.next = right.next;
    if (left.next != kNone) {
      symbols_[left.next].previous = best.position;
    }
    consider(best.position);
    if (left.previous != kNone) {
      consider(left.previous);
    }
  }
  for (std::uint32_t i = 0; i != kNone; i = symbols_[i].next) {
    merged_.push_back(symbols_[i].id);
  }
}

std::vector<TokenId> encode_in_parallel(const Tokenizer& tokenizer, std::string_view text,
                                        Specials specials, int threads) {
  struct Job {
    std::string_view text;
    const SpecialToken* special;
  };
  std::vector<Job> jobs;
  const std::span<const SpecialToken> looked_for =
      specials == Specials::kAsTokens
          ? std::span<const SpecialToken>(tokenizer.definition().specials)
          : std::span<const SpecialToken>();
  for (SpecialCutter cutter(text, looked_for); !cutter.done();) {
    const SpecialCutter::Part part = cutter.next();
    for (const std::string_view piece : cut_safely(part.text)) {
      jobs.push_back({piece, nullptr});
    }
    jobs.push_back({{}, part.special});
  }
  std::vector<std::vector<TokenId>> encoded(jobs.size());
  const Context ctx = Context::cpu(threads);
  std::vector<std::unique_ptr<Encoder>> encoders(static_cast<std::size_t>(ctx.threads()));
  parallel_for(ctx, static_cast<std::int64_t>(jobs.size()), [&](std::int64_t i) {
    auto& encoder = encoders[static_cast<std::size_t>(omp_get_thread_num())];
    if (!encoder) {
      encoder = std::make_unique<Encoder>(tokenizer);
    }
    const auto& [part, special] = jobs[static_cast<std::size_t>(i)];
    std::vector<TokenId>& ids = encoded[static_cast<std::size_t>(i)];
    encoder->encode(part, ids);
    if (special != nullptr) {
      ids.push_back(special->id);
    }
  });
  std::vector<TokenId> ids;
  for (std::vector<TokenId>& part : encoded) {
    ids.insert(ids.end(), part.begin(), part.end());
    part = {};
  }
  return ids;
}

}  // namespace carope
