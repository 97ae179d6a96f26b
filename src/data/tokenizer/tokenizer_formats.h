#pragma once

#include <string>

#include "data/tokenizer/tokenizer.h"

namespace carope {

// The file formats of a tokenizer: GPT-2's own pair of files, Hugging Face's tokenizer.json, and
// tiktoken's list of ranks. What cannot be understood is a FileError.

/// A file that has been read.
struct TokenizerFile {
  std::string name;  // for messages
  std::string content;
};

/// What vocab.bpe and encoder.json, or merges.txt and vocab.json, say.
TokenizerDefinition parse_gpt2(const TokenizerFile& merges, const TokenizerFile& vocabulary);

/// What a tokenizer.json says.
TokenizerDefinition parse_hugging_face(const TokenizerFile& source);

/// What a .tiktoken file says.
TokenizerDefinition parse_tiktoken(const TokenizerFile& file);

/// The content of a tokenizer.json for a tokenizer whose merges are a list (not read from ranks).
std::string to_hugging_face(const Tokenizer& tokenizer);

}  // namespace carope
