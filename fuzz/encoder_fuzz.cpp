// Any bytes become the tokens that the definition of BPE gives them, and those become the bytes.
#include "data/tokenizer/encoder.h"

#include <algorithm>

#include "data/tokenizer/pretokenizer.h"
#include "support.h"

namespace carope::fuzz {
namespace {

/// Short texts in ASCII are cut into the pieces that GPT-2's pattern matches.
void check_pieces(std::string_view text) {
  constexpr std::size_t kShort = 64;
  const auto is_ascii = [](char c) { return static_cast<unsigned char>(c) < 0x80; };
  if (text.size() > kShort || !std::all_of(text.begin(), text.end(), is_ascii)) {
    return;
  }
  while (!text.empty()) {
    const std::size_t length = first_piece(text);
    require(length == first_ascii_piece(text), "pieces are what the pattern matches");
    text.remove_prefix(length);
  }
}

/// A tokenizer with two ways to encode.
struct Subject {
  explicit Subject(const std::string& file)
      : tokenizer(Tokenizer::load(CAROPE_SOURCE_DIR "/tests/data/small/" + file)) {}

  std::vector<TokenId> encode(std::string_view text, Specials specials = Specials::kAsText) {
    std::vector<TokenId> ids;
    encoder.encode(text, ids, specials);
    return ids;
  }

  const Tokenizer tokenizer;
  const ReferenceEncoder reference{tokenizer.definition()};
  Encoder encoder{tokenizer};  // remembers the pieces of inputs before
};

std::vector<TokenId> run(Subject& subject, std::string_view text) {
  const Tokenizer& tokenizer = subject.tokenizer;
  const std::vector<TokenId> ids = subject.encode(text);
  require(tokenizer.decode(ids) == text, "tokens decode to the text");
  require(ids == subject.reference.encode(text), "the tokens are those of the definition");

  const std::vector<TokenId> with_specials = subject.encode(text, Specials::kAsTokens);
  require(tokenizer.decode(with_specials) == text, "special tokens decode to the text");
  require(with_specials == subject.reference.encode_with_specials(text),
          "special tokens are those of the definition");

  constexpr std::size_t kSeldom = 64;  // threads begin with encoders of their own, which is slow
  if (text.size() % kSeldom == 0) {
    require(encode_in_parallel(tokenizer, text, Specials::kAsTokens, 2) == with_specials,
            "many threads give the same tokens");
  }

  for (const std::size_t seen : {text.size(), text.size() / 2}) {  // whatever follows
    const std::size_t cut = last_safe_cut(text.substr(0, seen));
    require(cut < seen || seen == 0, "a cut leaves something behind it");
    std::vector<TokenId> joined = subject.encode(text.substr(0, cut));
    const std::vector<TokenId> rest = subject.encode(text.substr(cut));
    joined.insert(joined.end(), rest.begin(), rest.end());
    require(joined == ids, "a safe cut leaves no trace");
  }
  return ids;
}

}  // namespace
}  // namespace carope::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace carope::fuzz;
  static Subject by_merges("tokenizer.json");
  static Subject by_ranks("small.tiktoken");
  constexpr std::size_t kMost = 2048;  // the reference takes the square of it
  const std::string_view text = text_of(data, std::min(size, kMost));
  check_pieces(text);
  require(run(by_merges, text) == run(by_ranks, text), "both files give the same tokens");
  return 0;
}
