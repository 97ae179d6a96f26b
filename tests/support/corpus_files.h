#pragma once

#include <gtest/gtest.h>
#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/random.h"
#include "data/corpus/corpus.h"
#include "support/errors.h"
#include "support/folder.h"

// Files of documents in a folder of their own, and what is read from them.
namespace carope::test {

using Texts = std::vector<std::string>;

inline std::string gzip(std::string_view bytes) {
  z_stream stream{};
  deflateInit2(&stream, 6, Z_DEFLATED, MAX_WBITS + 16, 8, Z_DEFAULT_STRATEGY);
  std::string packed(deflateBound(&stream, bytes.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
  stream.avail_in = static_cast<uInt>(bytes.size());
  stream.next_out = reinterpret_cast<Bytef*>(packed.data());
  stream.avail_out = static_cast<uInt>(packed.size());
  EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
  packed.resize(stream.total_out);
  deflateEnd(&stream);
  return packed;
}

inline std::string zstd(std::string_view bytes, int window_log = 0) {
  const std::unique_ptr<ZSTD_CCtx, decltype(&ZSTD_freeCCtx)> stream(ZSTD_createCCtx(),
                                                                    &ZSTD_freeCCtx);
  ZSTD_CCtx_setParameter(stream.get(), ZSTD_c_windowLog, window_log);
  ZSTD_CCtx_setParameter(stream.get(), ZSTD_c_checksumFlag, 1);
  // In a stream the size is not known beforehand, so the frame asks for the whole window.
  std::string packed(ZSTD_compressBound(bytes.size()) + 64, '\0');
  ZSTD_inBuffer input{bytes.data(), bytes.size(), 0};
  ZSTD_outBuffer output{packed.data(), packed.size(), 0};
  ZSTD_compressStream2(stream.get(), &output, &input, ZSTD_e_flush);
  EXPECT_EQ(ZSTD_compressStream2(stream.get(), &output, &input, ZSTD_e_end), 0U);
  packed.resize(output.pos);
  return packed;
}

/// Bytes that arrive in parts of random lengths.
class Dribble final : public ByteSource {
 public:
  Dribble(std::string bytes, std::uint64_t seed, std::uint32_t longest)
      : bytes_(std::move(bytes)), random_(seed, 3), longest_(longest) {}

  std::size_t read(std::span<char> out) override {
    const std::size_t wanted = 1 + random_.below(longest_, reads_++);
    const std::size_t count = std::min({wanted, out.size(), bytes_.size() - at_});
    std::copy_n(bytes_.begin() + static_cast<std::ptrdiff_t>(at_), count, out.begin());
    at_ += count;
    return count;
  }
  std::int64_t position() const override { return static_cast<std::int64_t>(at_); }

 private:
  std::string bytes_;
  Philox random_;
  std::uint32_t longest_;
  std::uint64_t reads_ = 0;
  std::size_t at_ = 0;
};

/// Everything a reader hands on, in batches of about `bytes`.
inline std::vector<RawDocument> read_all(DocumentReader& reader, std::size_t bytes = 1 << 20) {
  std::vector<RawDocument> all;
  std::vector<RawDocument> batch;
  std::int64_t position = 0;
  for (reader.read(batch, bytes); !batch.empty(); reader.read(batch, bytes)) {
    std::move(batch.begin(), batch.end(), std::back_inserter(all));
    EXPECT_GE(reader.position(), position);
    position = reader.position();
  }
  reader.read(batch, bytes);
  EXPECT_TRUE(batch.empty()) << "something came after the end";
  return all;
}

/// The texts of documents, their pieces put together.
inline Texts texts_of(const DocumentReader& reader, const std::vector<RawDocument>& documents) {
  Texts texts;
  for (const RawDocument& document : documents) {
    const auto text = reader.text_of(document);
    if (text && document.continues) {
      texts.back() += *text;
    } else if (text) {
      texts.push_back(*text);
    }
  }
  return texts;
}

inline Texts texts_in(DocumentReader& reader, std::size_t bytes = 1 << 20) {
  return texts_of(reader, read_all(reader, bytes));
}

/// Random words on lines; `characters` are what words are made of.
inline std::string random_text(std::size_t size, std::uint64_t seed,
                               const Texts& characters = {"a", "e", "q", "'s", ".", "7", "é",
                                                          "木"}) {
  const Philox random(seed, 4);
  std::string text;
  for (std::uint64_t i = 0; text.size() < size; ++i) {
    const auto choice = random.below(static_cast<std::uint32_t>(characters.size() + 4), i);
    text += choice < characters.size()    ? characters[choice]
            : choice == characters.size() ? "\n"
                                          : " ";
  }
  return text;
}

/// Each test has a folder of its own, removed behind it.
class Corpus : public testing::Test {
 protected:
  std::filesystem::path write(const std::string& name, std::string_view content) const {
    return write_bytes(folder_ / name, std::string(content));
  }

  Texts read(const std::string& name, std::string_view content,
             const CorpusFormat& format = {}) const {
    return texts_in(*open_documents(write(name, content), format));
  }

  /// What is said about a file of this content.
  std::string complaint(const std::string& name, std::string_view content,
                        const CorpusFormat& format = {}) const {
    write(name, content);
    return complaint(folder_ / name, format);
  }

  /// What is said about a file, or that nothing is.
  static std::string complaint(const std::filesystem::path& path, const CorpusFormat& format = {}) {
    return message_of<FileError>([&] { texts_in(*open_documents(path, format)); });
  }

  /// Reads files with one byte changed, every `step`th in turn: their texts are right or refused.
  void expect_no_wrong_text(const std::string& name, const std::string& content,
                            const Texts& expected, std::size_t step) const {
    for (std::size_t at = 0; at < content.size(); at += step) {
      std::string damaged = content;
      damaged[at] = static_cast<char>(damaged[at] ^ (at % 2 == 0 ? 0x01 : 0x90));
      try {
        ASSERT_EQ(read(name, damaged), expected) << "byte " << at;
      } catch (const FileError& error) {
        ASSERT_NE(std::string(error.what()).find(name), std::string::npos) << error.what();
      }
    }
  }

  TemporaryFolder folder_;
};

inline const CorpusFormat kDelimited{.delimiter = "<|endoftext|>"};

}  // namespace carope::test
