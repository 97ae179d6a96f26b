#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <iterator>
#include <memory>

#include "cli/commands.h"
#include "cli/options.h"
#include "cli/streams.h"
#include "core/error.h"
#include "data/fetch/cache.h"
#include "data/shards/inspect.h"
#include "data/tokenizer/encoder.h"
#include "data/tokenizer/tokenizer.h"

namespace carope {
namespace {

struct ConversionOptions {
  std::string tokenizer;
  std::string file;
  bool special = false;
  int threads = 0;
};

void encode(const ConversionOptions& options) {
  const Tokenizer tokenizer = Tokenizer::load(tokenizer_path(options.tokenizer));
  const std::vector<TokenId> ids = encode_in_parallel(
      tokenizer, read_input(options.file),
      options.special ? Specials::kAsTokens : Specials::kAsText, options.threads);
  fmt::memory_buffer line;
  for (const TokenId id : ids) {
    fmt::format_to(std::back_inserter(line), "{} ", id);
  }
  line.resize(line.size() - (ids.empty() ? 0 : 1));
  line.push_back('\n');
  write_output({line.data(), line.size()});
}

void decode(const ConversionOptions& options) {
  const Tokenizer tokenizer = Tokenizer::load(tokenizer_path(options.tokenizer));
  const std::string input = read_input(options.file);
  std::string text;
  const char* at = input.data();
  const char* const end = at + input.size();
  const auto is_space = [](char c) { return c == ' ' || (c >= '\t' && c <= '\r'); };
  while (true) {
    at = std::find_if_not(at, end, is_space);
    if (at == end) {
      break;
    }
    std::int64_t id = 0;
    const auto [next, error] = std::from_chars(at, end, id);
    const char* const shown = at + std::min<std::ptrdiff_t>(40, end - at);
    const std::string_view excerpt(at, std::find_if(at, shown, is_space));
    check<Error>(error == std::errc() && (next == end || is_space(*next)),
                 "byte {} of the input: '{}' is not a token number; numbers with spaces between "
                 "them are needed",
                 at - input.data(), one_line(excerpt));
    text += tokenizer.text_of(id);
    at = next;
  }
  write_output(text);
}

CLI::App* add_conversion(CLI::App& tokenizer, const char* name, const char* help, const char* input,
                         const std::shared_ptr<ConversionOptions>& options,
                         void (*convert)(const ConversionOptions&)) {
  CLI::App* command = tokenizer.add_subcommand(name, help);
  add_tokenizer_option(*command, options->tokenizer)->required();
  command->add_option("file", options->file, input);
  command->callback([options, convert] { convert(*options); });
  return command;
}

}  // namespace

void add_tokenizer_encode(CLI::App& tokenizer) {
  const auto options = std::make_shared<ConversionOptions>();
  CLI::App* encoding = add_conversion(tokenizer, "encode", "Prints the token numbers of a text",
                                      "The text (default: standard input)", options, encode);
  encoding->add_flag("--special", options->special,
                     "<|endoftext|> in the text is the special token, not text");
  add_threads_option(*encoding, options->threads);
}

void add_tokenizer_decode(CLI::App& tokenizer) {
  const auto options = std::make_shared<ConversionOptions>();
  add_conversion(tokenizer, "decode", "Turns token numbers back into the text, byte for byte",
                 "The numbers (default: standard input)", options, decode);
}

}  // namespace carope
