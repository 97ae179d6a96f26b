#include "support/cases.h"

namespace carope::test {
namespace {

using Cases = std::vector<OpCase>;
using reference::Sequence;

constexpr std::int64_t kVocabulary = 50304;  // GPT-2's, padded; 50257 is its own
constexpr std::int64_t kTokens = 4096;

/// Lengths and widths that kernels are made for, and those next to them.
void add_attention(Cases& cases) {
  const auto add = [&](const Sequence& seq, std::int64_t heads, std::int64_t dim,
                       bool slopes = false) {
    cases.push_back(attention_case({.seq = seq, .heads = heads, .dim = dim, .slopes = slopes}));
  };
  for (const bool slopes : {false, true}) {
    add({.batch = 2, .length = 512}, 12, 64, slopes);
    add({.batch = 2,
         .length = 512,
         .document_starts = {{0, 100, 128, 256, 257, 511}, {0, 1, 127, 300}}},
        3, 64, slopes);
    add({.batch = 1, .length = 512}, 4, 128, slopes);
  }
  add({.batch = 1, .length = 1024}, 12, 64);
  add({.batch = 1, .length = 384}, 2, 64);
  add({.batch = 24, .length = 128}, 12, 64);  // more heads than a GPU has multiprocessors
  add({.batch = 1, .length = 1024, .document_starts = {{0, 640}}}, 2, 128);
  for (const std::int64_t length : {1, 31, 63, 64, 65, 127, 128, 129, 256, 257}) {
    add({.batch = 2, .length = length}, 2, 64);
  }
  for (const std::int64_t dim : {8, 32, 72, 80, 96, 112, 128, 256}) {
    add({.batch = 2, .length = 130}, 2, dim);
  }
  for (const std::int64_t dim : {64, 128}) {
    for (const std::vector<std::int64_t>& pieces :
         {std::vector<std::int64_t>{512, 1, 1, 30}, {1, 1, 1, 600}, {300, 300}}) {
      std::int64_t length = 0;
      for (const std::int64_t piece : pieces) {
        length += piece;
      }
      cases.push_back(attention_cached_case(
          {.seq = {.batch = 2, .length = length}, .heads = 3, .dim = dim}, pieces));
    }
  }
}

void add_layers(Cases& cases) {
  cases.push_back(linear_case({.rows = kTokens, .in = 768, .out = 2304}));
  cases.push_back(
      linear_case({.rows = kTokens, .in = 768, .out = 768, .write = Write::kAccumulate}));
  cases.push_back(linear_case({.rows = 1000, .in = 512, .out = 1536, .bias = false}));
  cases.push_back(linear_case({.rows = 1, .in = 768, .out = 2304}));  // one token, as in decoding
  cases.push_back(mlp_case({.rows = 1024, .width = 768, .hidden = 3072}));
  cases.push_back(gelu_case({.rows = 1024, .width = 3072, .scale = 4.0}));
  cases.push_back(mlp_case({.rows = 1000, .width = 512, .hidden = 2048}));
  cases.push_back(mlp_case({.rows = 256, .width = 512, .hidden = 512, .bias = false}));
  cases.push_back(mlp_case({.rows = 512, .width = 768, .hidden = 3072, .slopes = true}));
  // Tiles that neither fill a GPU's multiprocessors evenly nor keep them in the same columns.
  for (const Write write : {Write::kOverwrite, Write::kAccumulate}) {
    for (const bool slopes : {false, true}) {
      cases.push_back(mlp_case({.rows = kTokens,
                                .width = 576,
                                .hidden = 1280,
                                .slopes = slopes,
                                .scale = 3.0,
                                .write = write}));
    }
  }
  for (const std::int64_t width : {512, 768, 1600, 2048}) {
    cases.push_back(norm_case({.rows = kTokens, .width = width}));
    cases.push_back(residual_norm_case({.rows = kTokens, .in = 256, .width = width}));
  }
  cases.push_back(residual_norm_case({.rows = 4097, .in = 33, .width = 770}));
  cases.push_back(
      residual_norm_case({.rows = 1024, .in = 3072, .width = 768, .write = Write::kAccumulate}));
  cases.push_back(norm_case({.rows = 7, .width = 8192}));
  for (const std::int64_t rows : {1, 7, 8, 9, 100, 1000}) {
    cases.push_back(gated_norm_case({.rows = rows, .width = 768, .heads = 12}));
  }
  cases.push_back(gated_norm_case(
      {.rows = 20001, .width = 768, .heads = 12, .write = Write::kAccumulate}));  // several turns
  for (const std::int64_t heads : {1, 8, 16, 20, 70}) {
    cases.push_back(gated_norm_case({.rows = 100, .width = 768, .heads = heads, .bias = false}));
  }
  for (const std::int64_t width : {512, 760, 1024, 1536, 2048}) {
    cases.push_back(gated_norm_case({.rows = kTokens, .width = width, .heads = 8}));
  }
}

/// Gates of so many rows that blocks of 512 keep every multiprocessor of an H200 busy, two for the
/// outputs of each; and of too few. Odd numbers of sums, and a single row in the last block.
void add_gate_rows(Cases& cases) {
  const auto add = [&](LinearCase layer) {
    layer.layer = Layer::kGate;
    cases.push_back(linear_case(layer));
  };
  add({.rows = 32767, .in = 768, .out = 19});
  add({.rows = 32769, .in = 768, .out = 32, .bias = false, .write = Write::kAccumulate});
  add({.rows = 700, .in = 768, .out = 19});
  add({.rows = 700, .in = 768, .out = 70, .write = Write::kAccumulate});
  add({.rows = 700, .in = 33, .out = 40});
  add({.rows = 700, .in = 200, .out = 3, .write = Write::kAccumulate});
}

void add_vocabulary(Cases& cases) {
  // The weight is small enough for logits of a few nats: rounded to bf16, those of 30 would be off
  // by 0.1.
  cases.push_back(classifier_case({.rows = 100,
                                   .width = 768,
                                   .classes = kVocabulary,
                                   .chunk_rows = 64,
                                   .ignore_every = 7,
                                   .scale = 0.1}));
  cases.push_back(
      classifier_case({.rows = 64, .width = 512, .classes = kVocabulary, .scale = 0.1}));
  for (const std::int64_t rows : {1, 100}) {
    cases.push_back(linear_case({.rows = rows,
                                 .in = 768,
                                 .out = kVocabulary,
                                 .bias = false,
                                 .rounding = Rounding::kByRow,
                                 .layer = Layer::kScores}));
  }
  cases.push_back(cross_entropy_case({.rows = 70, .classes = kVocabulary, .ignore_every = 9}));
  // A few hundred classes share the probability: were all alike, their part of the gradient would
  // vanish in bf16 beside the target's.
  cases.push_back(cross_entropy_case({.rows = 70, .classes = kVocabulary, .scale = 100.0}));
  cases.push_back(cross_entropy_case({.rows = 9, .classes = 50257, .scale = 100.0}));
  cases.push_back(
      embedding_case({.batch = 8, .length = 512, .vocabulary = kVocabulary, .width = 768}));
  // Hundreds of tokens add to the same row.
  cases.push_back(embedding_case({.batch = 8, .length = 512, .vocabulary = 7, .width = 512}));
  cases.push_back(
      add_positions_case({.seq = {.batch = 8, .length = 512}, .width = 768, .positions = 1024}));
  cases.push_back(sinusoid_case({.seq = {.batch = 4, .length = 1024}, .width = 768}));
}

/// Rows in whole tiles of Hopper's own classifier, in several bands of them and in several chunks;
/// classes that fill the last tile in part. Logits are of tens of nats unless the weight is small.
void add_classifiers(Cases& cases) {
  cases.push_back(classifier_case({.rows = 256, .width = 320, .classes = 64}));
  cases.push_back(classifier_case({.rows = 512, .width = 256, .classes = 320}));
  cases.push_back(classifier_case({.rows = 512,
                                   .width = 512,
                                   .classes = 384,
                                   .ignore_every = 5,
                                   .scale = 0.1,
                                   .write = Write::kAccumulate}));
  cases.push_back(classifier_case({.rows = 1024,
                                   .width = 768,
                                   .classes = 576,
                                   .chunk_rows = 512,
                                   .ignore_every = 7,
                                   .write = Write::kAccumulate}));
  cases.push_back(classifier_case(
      {.rows = 1000, .width = 256, .classes = 320, .chunk_rows = 512, .scale = 0.2}));
  cases.push_back(classifier_case({.rows = 5120, .width = 256, .classes = 1344, .scale = 0.2}));
  cases.push_back(
      classifier_case({.rows = 256, .width = 768, .classes = kVocabulary, .scale = 0.1}));
}

void add_rotations(Cases& cases) {
  const Sequence long_seq{.batch = 2, .length = 1536};  // three chunks
  const Sequence seq{.batch = 2, .length = 512};
  const Sequence packed{.batch = 2,
                        .length = 1536,
                        .document_starts = {{0, 100, 512, 513, 1100, 1535}, {0, 511, 1024}}};
  for (const RotaryLayout layout : {RotaryLayout::kHalf, RotaryLayout::kInterleaved}) {
    for (const Sequence& each : {long_seq, seq, packed}) {
      cases.push_back(rotary_case({.seq = each, .heads = 12, .pairs = 32, .layout = layout}));
      cases.push_back(carope_case({.seq = each, .heads = 12, .pairs = 32, .layout = layout}));
    }
    cases.push_back(rotary_case({.seq = seq, .heads = 4, .pairs = 64, .layout = layout}));
    cases.push_back(carope_case(
        {.seq = packed, .heads = 4, .pairs = 64, .layout = layout, .exponent_start = 1}));
  }
  cases.push_back(carope_pieces_case(
      {.seq = {.batch = 2, .length = 1014}, .heads = 12, .pairs = 32}, {512, 1, 1, 500}));
}

void add_optimizer(Cases& cases) {
  constexpr std::int64_t kTable = kVocabulary * 768;
  cases.push_back(adamw_case({.elements = kTable, .decay = 0.1F, .updates = 1}));
  cases.push_back(gradient_norm_case({.elements = {kTable, 768, 1, 2304 * 768}}));
  cases.push_back(sum_case({.elements = 64 * 1024}));
}

}  // namespace

std::vector<OpCase> bf16_test_cases() {
  constexpr std::int64_t kWidestGate = 256;  // more heads than models have
  Cases cases;
  for (LinearCase layer : linear_test_cases()) {
    if (layer.out <= kWidestGate) {
      layer.layer = Layer::kGate;
      cases.push_back(linear_case(layer));
    }
    if (!layer.bias && layer.write == Write::kOverwrite) {
      layer.layer = Layer::kScores;
      cases.push_back(linear_case(layer));
    }
  }
  for (const std::int64_t elements : {1, 7, 16384, 40003}) {
    cases.push_back(adamw_case({.elements = elements, .rounded = true}));
  }
  cases.push_back(adamw_case({.elements = 40003,
                              .decay = 0.1F,
                              .updates = 3,
                              .cuts = {64, 20480, 20544, 24640},
                              .rounded = true}));
  return cases;
}

std::vector<OpCase> training_test_cases() {
  Cases cases;
  add_attention(cases);
  add_layers(cases);
  add_vocabulary(cases);
  add_classifiers(cases);
  add_rotations(cases);
  add_optimizer(cases);
  for (const std::int64_t heads : {8, 12}) {
    cases.push_back(
        linear_case({.rows = kTokens, .in = 64 * heads, .out = heads, .layer = Layer::kGate}));
  }
  add_gate_rows(cases);
  return cases;
}

}  // namespace carope::test
