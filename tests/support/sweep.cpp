#include "support/cases.h"

namespace carope::test {
namespace {

using Cases = std::vector<OpCase>;
using reference::Sequence;

// Sizes sit on, just before and just after what kernels are cut by: vectors of 8 and 16 floats,
// blocks of 8, 32 and 64 rows, tiles of 64 queries by 128 keys, chunks of tokens.
constexpr Write kWrites[] = {Write::kOverwrite, Write::kAccumulate};
constexpr RotaryLayout kLayouts[] = {RotaryLayout::kHalf, RotaryLayout::kInterleaved};

void add_linear(Cases& cases) {
  for (const LinearCase& layer : linear_test_cases()) {
    cases.push_back(linear_case(layer));
  }
  for (const Write write : kWrites) {
    cases.push_back(mlp_case({.rows = 35, .width = 5, .hidden = 20, .write = write}));
    cases.push_back(
        mlp_case({.rows = 17, .width = 6, .hidden = 25, .bias = false, .write = write}));
    cases.push_back(mlp_case({.rows = 70, .width = 12, .hidden = 70, .write = write}));
  }
  cases.push_back(mlp_case({.rows = 70, .width = 12, .hidden = 70, .slopes = true, .scale = 6.0}));
  cases.push_back(mlp_case({.rows = 1, .width = 1, .hidden = 1}));
  cases.push_back(mlp_case({.rows = 70, .width = 13, .hidden = 71, .rounding = Rounding::kByRow}));
  cases.push_back(mlp_case({.rows = 16, .width = 8, .hidden = 32, .scale = 6.0}));  // GELU's tails
  cases.push_back(mlp_case({.rows = 4, .width = 24, .hidden = 96, .scale = 6.0}));
  cases.push_back(gelu_case({.rows = 1, .width = 1}));
  cases.push_back(gelu_case({.rows = 17, .width = 9, .scale = 6.0}));
  cases.push_back(gelu_case({.rows = 70, .width = 64, .scale = 3.0}));
}

void add_norms(Cases& cases) {
  for (const Write write : kWrites) {
    cases.push_back(norm_case({.rows = 1, .width = 5, .write = write}));
    cases.push_back(norm_case({.rows = 17, .width = 24, .write = write}));
    cases.push_back(norm_case({.rows = 130, .width = 33, .write = write}));
    cases.push_back(residual_norm_case({.rows = 3, .in = 7, .width = 40, .write = write}));
    cases.push_back(residual_norm_case({.rows = 17, .in = 32, .width = 24, .write = write}));
    cases.push_back(residual_norm_case({.rows = 130, .in = 5, .width = 33, .write = write}));
  }
  cases.push_back(norm_case({.rows = 64, .width = 16}));
  cases.push_back(norm_case({.rows = 65, .width = 8}));
  cases.push_back(norm_case({.rows = 3, .width = 200, .mean = 2.0}));
  for (const Rounding rounding : {Rounding::kAsFastest, Rounding::kByRow}) {
    cases.push_back(residual_norm_case(
        {.rows = 64, .in = 16, .width = 16, .bias = false, .rounding = rounding}));
    cases.push_back(residual_norm_case({.rows = 1, .in = 64, .width = 128, .rounding = rounding}));
    cases.push_back(residual_norm_case({.rows = 4, .in = 24, .width = 64, .rounding = rounding}));
  }
  // Rows that several warps share.
  cases.push_back(norm_case({.rows = 9, .width = 1000}));
  cases.push_back(norm_case({.rows = 17, .width = 1528}));
  for (const Write write : kWrites) {
    cases.push_back(gated_norm_case({.rows = 7, .width = 40, .heads = 12, .write = write}));
  }
  cases.push_back(gated_norm_case({.rows = 1, .width = 32, .heads = 1}));
  cases.push_back(gated_norm_case({.rows = 9, .width = 33, .heads = 8}));
  cases.push_back(gated_norm_case({.rows = 70, .width = 32, .heads = 16, .bias = false}));
  cases.push_back(gated_norm_case({.rows = 8, .width = 40, .heads = 20}));
  cases.push_back(gated_norm_case({.rows = 8, .width = 40, .heads = 40}));
}

void add_embeddings(Cases& cases) {
  cases.push_back(embedding_case({.batch = 1, .length = 1, .vocabulary = 1, .width = 1}));
  cases.push_back(embedding_case({.batch = 2, .length = 7, .vocabulary = 5, .width = 6}));
  cases.push_back(embedding_case({.batch = 3, .length = 65, .vocabulary = 50, .width = 130}));
  cases.push_back(embedding_case({.batch = 1, .length = 64, .vocabulary = 300, .width = 64}));

  const std::vector<std::vector<std::int64_t>> documents{{0, 4, 5, 16}, {0, 1, 2}};
  for (const Write write : kWrites) {
    const auto add = [&](const Sequence& seq, std::int64_t width, std::int64_t positions) {
      cases.push_back(
          add_positions_case({.seq = seq, .width = width, .positions = positions, .write = write}));
    };
    add({.batch = 1, .length = 1}, 1, 1);
    add({.batch = 2, .length = 17}, 6, 17);
    add({.batch = 2, .length = 17, .document_starts = documents}, 6, 20);
    add({.batch = 3, .length = 65}, 70, 66);
    add({.batch = 2, .length = 3, .offset = 5}, 4, 9);
    add({.batch = 2, .length = 3, .offset = 1, .offset_step = 2}, 4, 9);
  }
  for (const float scale : {1.0F, 0.0283F}) {
    const auto add = [&](const Sequence& seq, std::int64_t width) {
      cases.push_back(sinusoid_case({.seq = seq, .width = width, .scale = scale}));
    };
    add({.batch = 1, .length = 1}, 2);
    add({.batch = 2, .length = 17}, 10);
    add({.batch = 2, .length = 17, .document_starts = documents}, 10);
    add({.batch = 1, .length = 65, .offset = 300}, 34);
    add({.batch = 2, .length = 200}, 24);
  }
}

void add_losses(Cases& cases) {
  cases.push_back(cross_entropy_case({.rows = 1, .classes = 1}));
  cases.push_back(cross_entropy_case({.rows = 3, .classes = 7}));
  cases.push_back(cross_entropy_case({.rows = 17, .classes = 33, .ignore_every = 4}));
  cases.push_back(cross_entropy_case({.rows = 8, .classes = 64, .scale = 12.0}));
  cases.push_back(cross_entropy_case({.rows = 9, .classes = 101, .scale = 3.0, .offset = 50.0}));
  cases.push_back(cross_entropy_case({.rows = 65, .classes = 300, .ignore_every = 7}));
  cases.push_back(cross_entropy_case({.rows = 5, .classes = 6, .ignore_every = 1}));

  for (const Write write : kWrites) {
    for (const std::int64_t chunk : {0, 1, 4, 7, 100}) {
      cases.push_back(classifier_case({.rows = 10,
                                       .width = 6,
                                       .classes = 19,
                                       .chunk_rows = chunk,
                                       .ignore_every = 3,
                                       .write = write}));
    }
    cases.push_back(
        classifier_case({.rows = 5, .width = 4, .classes = 6, .ignore_every = 1, .write = write}));
  }
  cases.push_back(classifier_case({.rows = 1, .width = 1, .classes = 2}));
  cases.push_back(classifier_case({.rows = 130, .width = 20, .classes = 70, .chunk_rows = 64}));
  cases.push_back(classifier_case({.rows = 300, .width = 5, .classes = 11}));
}

void add_rotary(Cases& cases) {
  for (const RotaryLayout layout : kLayouts) {
    const auto add = [&](const Sequence& seq, std::int64_t heads, std::int64_t pairs,
                         double base = 10000.0) {
      cases.push_back(rotary_case(
          {.seq = seq, .heads = heads, .pairs = pairs, .layout = layout, .base = base}));
    };
    add({.batch = 1, .length = 1}, 1, 1);
    add({.batch = 2, .length = 3}, 1, 4);
    add({.batch = 2, .length = 17}, 3, 5, 100.0);
    add({.batch = 2, .length = 33, .document_starts = {{0, 1, 2, 32}, {0, 16}}}, 2, 3);
    for (const std::int64_t pairs : {16, 32, 64, 512}) {  // the first three have loops of their own
      add({.batch = 1, .length = 20, .document_starts = {{0, 9}}}, 2, pairs);
    }
    add({.batch = 2, .length = 5, .offset = 1000}, 2, 9);
    add({.batch = 3, .length = 5, .offset = 10, .offset_step = 77}, 2, 8);
  }
}

void add_carope(Cases& cases) {
  for (const RotaryLayout layout : kLayouts) {
    for (const std::int64_t exponent_start : {0, 1}) {
      const auto add = [&](const Sequence& seq, std::int64_t heads, std::int64_t pairs,
                           std::int64_t chunk, double gate_scale = 2.0) {
        cases.push_back(carope_case({.seq = seq,
                                     .heads = heads,
                                     .pairs = pairs,
                                     .layout = layout,
                                     .exponent_start = exponent_start,
                                     .chunk = chunk,
                                     .gate_scale = gate_scale}));
      };
      add({.batch = 1, .length = 1}, 1, 1, 512);
      add({.batch = 2, .length = 3}, 1, 2, 1);
      for (const std::int64_t chunk : {1, 4, 7, 512}) {
        add({.batch = 2, .length = 17}, 2, 3, chunk, 12.0);
        // Documents that begin and end at edges of chunks, within them, and of length one.
        add({.batch = 2, .length = 17, .document_starts = {{0, 4, 5, 8, 11, 14, 16}, {0, 7, 8}}}, 2,
            3, chunk, 12.0);
      }
      add({.batch = 1, .length = 65}, 3, 9, 7);
      for (const std::int64_t pairs :
           {16, 32, 64, 512}) {  // the first three have loops of their own
        add({.batch = 1, .length = 20, .document_starts = {{0, 9}}}, 2, pairs, 8);
      }
      add({.batch = 1, .length = 130}, 1, 32, 64);
      add({.batch = 1, .length = 600, .document_starts = {{0, 100, 512, 513}}}, 1, 2, 512);
    }
  }
  for (const double offset : {-12.0, 12.0}) {  // every gate nearly shut or wide open
    cases.push_back(carope_case({.seq = {.batch = 1, .length = 17},
                                 .heads = 2,
                                 .pairs = 4,
                                 .chunk = 7,
                                 .gate_scale = 0.5,
                                 .gate_offset = offset}));
  }
  for (const RotaryLayout layout : kLayouts) {
    const auto add = [&](const Sequence& seq, std::int64_t chunk,
                         const std::vector<std::int64_t>& pieces) {
      cases.push_back(carope_pieces_case(
          {.seq = seq, .heads = 2, .pairs = 5, .layout = layout, .chunk = chunk}, pieces));
    };
    add({.batch = 2, .length = 17}, 4, {17});
    add({.batch = 2, .length = 17}, 4, {9, 1, 1, 6});
    add({.batch = 3, .length = 30}, 7, {7, 14, 1, 8});
  }
}

void add_rotations(Cases& cases) {
  for (const RotaryLayout layout : kLayouts) {
    for (const bool gated : {false, true}) {
      const auto add = [&](RotationCase c) {
        c.layout = layout;
        c.gated = gated;
        cases.push_back(rotation_case(c));
      };
      add({.seq = {.batch = 2, .length = 9}, .heads = 6, .key_heads = 2, .pairs = 8});
      add({.seq = {.batch = 2, .length = 19, .document_starts = {{0, 4, 5}, {0, 16}}},
           .heads = 4,
           .key_heads = 1,
           .pairs = 3,
           .idle = 4,
           .magnitude = 1.25F,
           .chunk = 7});
      add({.seq = {.batch = 1, .length = 130},
           .heads = 4,
           .key_heads = 4,
           .pairs = 16,
           .idle = 32,
           .ratios = gated,
           .chunk = 32});
      add({.seq = {.batch = 1, .length = 40},
           .heads = 6,
           .key_heads = 3,
           .pairs = 32,
           .ratios = gated});
    }
  }
}

void add_attention(Cases& cases) {
  for (const bool slopes : {false, true}) {
    const auto add = [&](const Sequence& seq, std::int64_t heads, std::int64_t dim,
                         double scale = 1.0) {
      cases.push_back(attention_case(
          {.seq = seq, .heads = heads, .dim = dim, .slopes = slopes, .scale = scale}));
    };
    for (const std::int64_t length : {1, 3, 17, 64, 65, 130, 200}) {
      add({.batch = 1, .length = length}, 1, 2);
      add({.batch = 2, .length = length}, 3, 5);
    }
    add({.batch = 2, .length = 9}, 2, 64);
    add({.batch = 1, .length = 70}, 2, 16, 4.0);  // sharp: almost all weight on a few keys
    // Documents that begin and end at edges of tiles, within them, and of length one.
    add({.batch = 2, .length = 17, .document_starts = {{0, 1, 2, 16}, {0, 9}}}, 2, 4);
    add({.batch = 2, .length = 200, .document_starts = {{0, 64, 128, 129}, {0, 63, 64, 190}}}, 2,
        6);
    add({.batch = 1, .length = 300, .document_starts = {{0, 20, 150}}}, 1, 4);

    const auto add_cached = [&](std::int64_t batch, const std::vector<std::int64_t>& pieces) {
      std::int64_t length = 0;
      for (const std::int64_t piece : pieces) {
        length += piece;
      }
      cases.push_back(attention_cached_case(
          {.seq = {.batch = batch, .length = length}, .heads = 3, .dim = 6, .slopes = slopes},
          pieces));
    };
    add_cached(1, {1});
    add_cached(2, {1, 1, 1});
    add_cached(2, {17});
    add_cached(2, {9, 1, 1, 6});
    add_cached(2, {64, 1, 65});
    add_cached(1, {130, 70, 1});
  }
}

void add_optimizer(Cases& cases) {
  for (const std::int64_t elements : {1, 7, 33, 16384, 40003}) {
    cases.push_back(adamw_case({.elements = elements}));
    cases.push_back(gradient_norm_case({.elements = {elements}}));
    cases.push_back(sum_case({.elements = elements}));
  }
  cases.push_back(gradient_norm_case({.elements = {5, 40003, 1, 256}}));
  cases.push_back(adamw_case({.elements = 40003,
                              .options = {.learning_rate = 3e-2F, .clip = 10.0},
                              .decay = 0.1F,
                              .updates = 3,
                              .cuts = {64, 20480, 20544, 24640}}));
  cases.push_back(
      adamw_case({.elements = 100, .options = {.learning_rate = 3e-2F}, .decay = 0.1F}));
  cases.push_back(adamw_case(
      {.elements = 100, .options = {.learning_rate = 3e-2F, .clip = 0.1}, .decay = 0.1F}));
  cases.push_back(adamw_case({.elements = 100, .options = {.learning_rate = 3e-2F, .clip = 1e3}}));
}

}  // namespace

std::vector<LinearCase> linear_test_cases() {
  std::vector<LinearCase> layers;
  for (const Write write : kWrites) {
    layers.push_back({.rows = 1, .in = 1, .out = 1, .write = write});
    layers.push_back({.rows = 3, .in = 5, .out = 7, .write = write});
    layers.push_back({.rows = 17, .in = 20, .out = 9, .bias = false, .write = write});
    layers.push_back({.rows = 65, .in = 33, .out = 130, .write = write});
    layers.push_back({.rows = 5, .in = 6, .out = 4, .frozen = true, .write = write});
  }
  layers.push_back({.rows = 64, .in = 64, .out = 64});
  layers.push_back({.rows = 1, .in = 100, .out = 300});
  layers.push_back({.rows = 300, .in = 7, .out = 2});    // as the gate of CARoPE
  layers.push_back({.rows = 530, .in = 3, .out = 140});  // several tiles either way
  layers.push_back({.rows = 4, .in = 700, .out = 3, .bias = false});
  // Few rows: one or several, few and many columns, and so many outputs that warps take several.
  layers.push_back({.rows = 1, .in = 72, .out = 37});
  layers.push_back({.rows = 3, .in = 1096, .out = 5});
  layers.push_back({.rows = 2, .in = 8, .out = 8201, .bias = false});
  // By row: what is left of blocks of rows, columns and terms, and more terms than stay in cache.
  const auto add_by_row = [&](std::int64_t rows, std::int64_t in, std::int64_t out, bool bias) {
    layers.push_back(
        {.rows = rows, .in = in, .out = out, .bias = bias, .rounding = Rounding::kByRow});
  };
  add_by_row(1, 1, 1, true);
  add_by_row(3, 5, 7, true);
  add_by_row(300, 7, 2, true);  // as the gate of CARoPE
  add_by_row(19, 21, 32, true);
  add_by_row(19, 21, 33, false);
  add_by_row(65, 64, 130, true);
  add_by_row(6, 1041, 5, true);
  add_by_row(2, 2100, 3, false);
  return layers;
}

std::vector<OpCase> all_test_cases() {
  Cases cases;
  add_linear(cases);
  add_norms(cases);
  add_embeddings(cases);
  add_losses(cases);
  add_rotary(cases);
  add_carope(cases);
  add_rotations(cases);
  add_attention(cases);
  add_optimizer(cases);
  return cases;
}

}  // namespace carope::test
