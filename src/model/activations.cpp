#include "model/activations.h"

#include <algorithm>

namespace carope {
namespace {

std::vector<Tensor> take_all(Arena& arena, const std::vector<TensorSpec>& specs) {
  std::vector<Tensor> tensors;
  tensors.reserve(specs.size());
  for (const TensorSpec& spec : specs) {
    tensors.push_back(arena.take(spec));
  }
  return tensors;
}

/// `y` is where the result goes.
Normed take_normed(Arena& arena, const Tensor& y) {
  return {.y = y, .mean = arena.take({y.rows()}), .rstd = arena.take({y.rows()})};
}

/// How many rows of logits exist at once. On the CPU, few enough to stay in the cache where the
/// vocabulary is small, and enough to keep a matrix product busy where it is large. On a GPU about
/// as many as 4 GiB of bf16 hold in training, where each part adds to the gradient of the whole
/// table, and otherwise 1 GiB of fp32: in equal parts, but for what makes them whole tiles of a
/// product.
std::int64_t logit_rows(std::int64_t rows, std::int64_t vocabulary, bool training, Device device) {
  if (device.kind == DeviceKind::kCuda) {
    const std::int64_t most = std::int64_t{1} << (training ? 31 : 28);
    const std::int64_t parts = (rows * vocabulary + most - 1) / most;
    constexpr std::int64_t kTile = 256;
    return std::min(rows, (rows + parts * kTile - 1) / (parts * kTile) * kTile);
  }
  constexpr std::int64_t kElements = std::int64_t{2} << 20;
  constexpr std::int64_t kFewest = 256;
  return std::min(rows, std::max(kFewest, kElements / vocabulary));
}

}  // namespace

Activations::Activations(const GptConfig& config, const PositionEncoding& encoding,
                         std::int64_t batch, std::int64_t length, Purpose purpose, Device device,
                         DType compute)
    : purpose(purpose), batch(batch), length(length) {
  const Sequence seq{.batch = batch, .length = length};
  const std::int64_t rows = seq.tokens();
  const std::int64_t width = config.width;
  const bool training = purpose != Purpose::kInference;
  const bool keeps = purpose != Purpose::kRecomputing;  // each block its norms' results and GELU's

  // Of a slope the GELU's result cannot be made again.
  const bool slopes =
      purpose == Purpose::kTraining && prefers_slopes(device, compute, rows, width, 4 * width);

  const auto normed = [&](Arena& arena) {
    return take_normed(arena, keeps ? arena.take({{rows, width}, compute}) : shared.normed);
  };
  const auto block = [&](Arena& arena, const Tensor& residual) {
    return BlockActivations{
        .residual = residual,
        .normed_in = normed(arena),
        .qkv = arena.take({{rows, 3 * width}, compute}),
        .position = take_all(arena, encoding.saved(seq)),
        .attended = arena.take({{rows, width}, compute}),
        .logsumexp = arena.take({batch, config.heads, length}),
        .residual_mid = arena.take({{rows, width}, compute}),
        .normed_mid = normed(arena),
        .mlp_gelu = {arena.take({{rows, 4 * width}, compute}), slopes},
        .mlp_hidden = keeps ? arena.take({{rows, 4 * width}, compute}) : shared.mlp_hidden};
  };

  arena_ = Arena::plan(device, [&](Arena& arena) {
    embedding = arena.take({{rows, width}, compute});
    shared = {};
    if (!keeps) {
      shared.normed = arena.take({{rows, width}, compute});
      shared.mlp_hidden = arena.take({{rows, 4 * width}, compute});
    }
    blocks.clear();
    if (training) {
      for (std::int64_t layer = 0; layer < config.layers; ++layer) {
        blocks.push_back(
            block(arena, layer == 0 ? embedding : arena.take({{rows, width}, compute})));
      }
    } else {
      // Blocks add to the residual by turns in two places, the first of which is the embedding's
      // unless that must outlive it.
      const Tensor residual =
          encoding.reads_embedding() ? arena.take({{rows, width}, compute}) : embedding;
      blocks.assign(static_cast<std::size_t>(config.layers), block(arena, residual));
      blocks.front().residual = embedding;
    }
    final_residual = training ? arena.take({{rows, width}, compute}) : blocks.back().residual;
    final_normed = take_normed(arena, arena.take({{rows, width}, compute}));
    losses = arena.take({rows});
    total_loss = arena.take({{1}, DType::kF64});
    // What is sampled from or scored comes unrounded; a training step reads and writes its logits.
    shared.logits =
        arena.take({{logit_rows(rows, config.vocabulary, training, device), config.vocabulary},
                    training ? compute : DType::kF32});
    shared.position = take_all(arena, encoding.workspace(seq));
    if (training) {
      shared.dresidual = arena.take({{rows, width}, compute});
      shared.dnormed = arena.take({{rows, width}, compute});
      shared.dattended = arena.take({{rows, width}, compute});
      shared.dqkv = arena.take({{rows, 3 * width}, compute});
      shared.dmlp = arena.take({{rows, 4 * width}, compute});
      if (encoding.reads_embedding()) {
        shared.dembedding = arena.take({{rows, width}, compute});
      }
    }
  });
}

DecodeState::DecodeState(const GptConfig& config, const PositionEncoding& encoding,
                         std::int64_t batch, std::int64_t capacity, Device device, DType compute) {
  arena_ = Arena::plan(device, [&](Arena& arena) {
    layers.clear();
    for (std::int64_t layer = 0; layer < config.layers; ++layer) {
      layers.push_back({.cache = {.keys = arena.take({{batch, capacity, config.width}, compute}),
                                  .values = arena.take({{batch, capacity, config.width}, compute})},
                        .position = take_all(arena, encoding.decode_state(batch))});
    }
  });
  arena_.clear();
}

void DecodeState::restart() {
  arena_.clear();
  seen = 0;
}

}  // namespace carope
