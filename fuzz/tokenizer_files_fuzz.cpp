// Any bytes are a tokenizer file or a FileError; what is one encodes as it says and can be saved.
//
// The first byte of an input chooses the format (by its remainder modulo 3), the rest is the file:
// '0' tokenizer.json, '1' .tiktoken, '2' vocab.bpe and encoder.json with a byte 2 between them. The
// first byte 1 stands for the 256 entries of single bytes, without which nothing is accepted, so
// that inputs can be small.
#include <openssl/evp.h>

#include "data/tokenizer/byte_alphabet.h"
#include "data/tokenizer/encoder.h"
#include "data/tokenizer/tokenizer_formats.h"
#include "support.h"

namespace carope::fuzz {
namespace {

enum Format : std::uint8_t { kHuggingFace, kTiktoken, kGpt2Pair, kFormats };

constexpr const char* kName = "fuzzed.";

std::string base64(std::string_view bytes) {
  std::string text(4 * ((bytes.size() + 2) / 3) + 1, '\0');
  text.resize(static_cast<std::size_t>(EVP_EncodeBlock(
      reinterpret_cast<unsigned char*>(text.data()),
      reinterpret_cast<const unsigned char*>(bytes.data()), static_cast<int>(bytes.size()))));
  return text;
}

/// The entries of the 256 bytes, as they are written in a format.
std::string single_bytes(Format format) {
  std::string entries;
  for (int i = 0; i < 256; ++i) {
    const std::string byte(1, static_cast<char>(byte_at(i)));
    if (format == kTiktoken) {
      entries += fmt::format("{} {}\n", base64(byte), i);
    } else {
      const std::string text = byte == "\"" || byte == "\\" ? "\\" + byte : to_alphabet(byte);
      entries += fmt::format("{}\"{}\": {}", i == 0 ? "" : ", ", text, i);
    }
  }
  return entries;
}

std::string expand(std::string_view content, Format format) {
  static const std::string kEntries[] = {single_bytes(kHuggingFace), single_bytes(kTiktoken),
                                         single_bytes(kGpt2Pair)};
  std::string expanded(content);
  if (const std::size_t at = expanded.find('\1'); at != std::string::npos) {
    expanded.replace(at, 1, kEntries[format]);
  }
  return expanded;
}

TokenizerDefinition parse(Format format, std::string_view content) {
  if (format == kHuggingFace) {
    return parse_hugging_face({"fuzzed.json", expand(content, format)});
  }
  if (format == kTiktoken) {
    return parse_tiktoken({"fuzzed.tiktoken", expand(content, format)});
  }
  const std::size_t end = std::min(content.find('\2'), content.size());
  const std::string_view vocabulary = content.substr(std::min(end + 1, content.size()));
  return parse_gpt2({"fuzzed.bpe", std::string(content.substr(0, end))},
                    {"fuzzed.json", expand(vocabulary, format)});
}

void encode(const Tokenizer& tokenizer, std::string_view content) {
  std::string all_bytes(256, '\0');
  for (std::size_t i = 0; i < all_bytes.size(); ++i) {
    all_bytes[i] = static_cast<char>(i);
  }
  std::string all_tokens;
  for (std::int64_t id = 0; id < tokenizer.size(); ++id) {
    const auto index = static_cast<std::size_t>(id);
    if (!tokenizer.definition().tokens[index].empty() && all_tokens.size() < 2048) {
      all_tokens += tokenizer.text_of(id);
    }
  }
  std::string all_specials;
  for (const SpecialToken& special : tokenizer.definition().specials) {
    require(tokenizer.text_of(special.id) == special.text, "a special token has its text");
    all_specials += special.text + " " + special.text;
  }
  Encoder encoder(tokenizer);
  const ReferenceEncoder reference(tokenizer.definition());
  const std::string_view own = content.substr(0, 256);
  for (const std::string_view text : std::initializer_list<std::string_view>{
           "", "The cat's 12 hats.", all_bytes, all_tokens,
           std::string_view(all_specials).substr(0, 256), own}) {
    std::vector<TokenId> ids;
    encoder.encode(text, ids);
    require(tokenizer.decode(ids) == text, "tokens decode to the text");
    require(ids == reference.encode(text), "the tokens are those of the definition");
    ids.clear();
    encoder.encode(text, ids, Specials::kAsTokens);
    require(tokenizer.decode(ids) == text, "special tokens decode to the text");
    require(ids == reference.encode_with_specials(text),
            "special tokens are those of the definition");
  }
}

/// Merges from a list have their place in it as rank, those from a .tiktoken file their result.
void check_merges(const TokenizerDefinition& definition, Format format) {
  const std::vector<std::string>& tokens = definition.tokens;
  for (std::size_t i = 0; i < definition.merges.size(); ++i) {
    const Merge& merge = definition.merges[i];
    require(tokens.at(merge.left) + tokens.at(merge.right) == tokens.at(merge.result),
            "a merge makes the token of both");
    require(merge.rank == (format == kTiktoken ? merge.result : i), "a merge has its rank");
  }
}

void save_and_load(const Tokenizer& tokenizer) {
  const TokenizerFile file{"saved.json", to_hugging_face(tokenizer)};
  const Tokenizer loaded(parse_hugging_face(file), file.name);
  require(loaded.fingerprint() == tokenizer.fingerprint(), "saving keeps the vocabulary");
  const TokenizerDefinition& after = loaded.definition();
  const TokenizerDefinition& before = tokenizer.definition();
  require(after.whole_pieces == before.whole_pieces, "saving keeps how pieces are treated");
  const auto same = [](const Merge& a, const Merge& b) {
    return a.left == b.left && a.right == b.right && a.result == b.result && a.rank == b.rank;
  };
  require(std::equal(after.merges.begin(), after.merges.end(), before.merges.begin(),
                     before.merges.end(), same),
          "saving keeps the merges");
}

void run(Format format, std::string_view content) {
  std::optional<Tokenizer> tokenizer;
  if (accepts(kName, [&] { tokenizer.emplace(parse(format, content), kName); })) {
    check_merges(tokenizer->definition(), format);
    encode(*tokenizer, content);
    if (format != kTiktoken) {
      save_and_load(*tokenizer);
    }
  }
}

}  // namespace
}  // namespace carope::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace carope::fuzz;
  if (size > 0) {
    run(static_cast<Format>(data[0] % kFormats), text_of(data + 1, size - 1));
  }
  return 0;
}
