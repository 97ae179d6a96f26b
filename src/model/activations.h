#pragma once

#include <vector>

#include "core/arena.h"
#include "model/config.h"
#include "ops/attention.h"
#include "ops/linear.h"
#include "ops/norm.h"
#include "position/encoding.h"

namespace carope {

/// What a block leaves between its forward and its backward pass. N = B T.
struct BlockActivations {
  Tensor residual;               // [N, C] the block's input
  Normed normed_in;              // [N, C]
  Tensor qkv;                    // [N, 3C] q and k rotated
  std::vector<Tensor> position;  // the encoding's saved()
  Tensor attended;               // [N, C]
  Tensor logsumexp;              // [B, H, T]
  Tensor residual_mid;           // [N, C] after attention
  Normed normed_mid;             // [N, C]
  SavedGelu mlp_gelu;            // [N, 4C]
  Tensor mlp_hidden;             // [N, 4C]
};

/// Memory that every block uses in turn.
struct SharedActivations {
  Tensor normed;                 // [N, C] the norms' results, where blocks do not keep them
  Tensor mlp_hidden;             // [N, 4C] likewise
  Tensor logits;                 // [rows of a chunk, V]
  std::vector<Tensor> position;  // the encoding's workspace()
  Tensor dresidual;              // [N, C]
  Tensor dnormed;                // [N, C]
  Tensor dattended;              // [N, C]
  Tensor dqkv;                   // [N, 3C]
  Tensor dmlp;                   // [N, 4C]
  Tensor dembedding;             // [N, C] only where the encoding reads the embedding
};

enum class Purpose : std::uint8_t {
  kTraining,     // every block keeps its activations
  kRecomputing,  // as in training, but blocks share what the backward pass can cheaply make again
  kInference,    // all blocks share one set
};

/// All memory of a forward and a backward pass over [B, T] tokens, planned once.
struct Activations {
  Activations(const GptConfig& config, const PositionEncoding& encoding, std::int64_t batch,
              std::int64_t length, Purpose purpose, Device device, DType compute);

  Purpose purpose;
  std::int64_t batch, length;
  Tensor embedding;  // [N, C] before the first block
  std::vector<BlockActivations> blocks;
  SharedActivations shared;
  Tensor final_residual;  // [N, C]
  Normed final_normed;    // [N, C]
  Tensor losses;          // [N]
  Tensor total_loss;      // [1] f64, over as many batches as a step has

  std::size_t bytes() const { return arena_.bytes(); }

 private:
  Arena arena_;
};

/// What a model remembers of the tokens it has seen, when a sequence comes in pieces.
struct DecodeState {
  DecodeState(const GptConfig& config, const PositionEncoding& encoding, std::int64_t batch,
              std::int64_t capacity, Device device, DType compute);

  struct Layer {
    KeyValueCache cache;
    std::vector<Tensor> position;  // the encoding's decode_state()
  };
  std::vector<Layer> layers;
  std::int64_t seen = 0;  // tokens

  /// Forgets what was seen, so that other sequences can begin.
  void restart();

 private:
  Arena arena_;
};

}  // namespace carope
