// How fast texts are encoded, for bench/side_by_side_tokenizer.py: encodes the documents of a file
// on each line of standard input that names a number of threads, and answers with the seconds it
// took and the number of tokens.
#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <iostream>
#include <thread>

#include "data/corpus/corpus.h"
#include "data/tokenizer/encoder.h"
#include "data/tokenizer/tokenizer.h"

namespace carope {
namespace {

std::vector<std::string> read_texts(const std::filesystem::path& path) {
  const auto reader = open_documents(path, {});
  std::vector<std::string> texts;
  std::vector<RawDocument> batch;
  for (reader->read(batch, 1 << 20); !batch.empty(); reader->read(batch, 1 << 20)) {
    for (RawDocument& document : batch) {
      if (auto text = reader->text_of(std::move(document))) {
        texts.push_back(std::move(*text));
      }
    }
  }
  return texts;
}

std::size_t encode_all(const Tokenizer& tokenizer, const std::vector<std::string>& texts,
                       std::size_t threads) {
  std::atomic<std::size_t> next = 0;
  std::atomic<std::size_t> tokens = 0;
  std::vector<std::jthread> workers;
  for (std::size_t i = 0; i < threads; ++i) {
    workers.emplace_back([&] {
      Encoder encoder(tokenizer);
      std::vector<TokenId> ids;
      for (std::size_t text = next++; text < texts.size(); text = next++) {
        ids.clear();
        encoder.encode(texts[text], ids);
        tokens += ids.size();
      }
    });
  }
  workers.clear();
  return tokens;
}

void serve(const std::filesystem::path& tokenizer_file, const std::filesystem::path& text_file) {
  const Tokenizer tokenizer = Tokenizer::load(tokenizer_file);
  const std::vector<std::string> texts = read_texts(text_file);
  for (std::size_t threads = 0; std::cin >> threads;) {
    const auto start = std::chrono::steady_clock::now();
    const std::size_t tokens = encode_all(tokenizer, texts, threads);
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    fmt::print("{} {}\n", seconds.count(), tokens);
    std::fflush(stdout);
  }
}

}  // namespace
}  // namespace carope

int main(int argc, char** argv) {
  if (argc != 3) {
    fmt::print(stderr, "usage: tokenizer_bench TOKENIZER TEXTS\n");
    return 2;
  }
  try {
    carope::serve(argv[1], argv[2]);
  } catch (const std::exception& error) {
    fmt::print(stderr, "tokenizer_bench: {}\n", error.what());
    return 1;
  }
  return 0;
}
