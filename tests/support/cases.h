#pragma once

#include <vector>

#include "ops/adamw.h"
#include "ops/rotation.h"
#include "ops/rounding.h"
#include "support/op_case.h"

// One function an operation: the case for the given sizes.
namespace carope::test {

/// What a layer is in a bf16 model.
enum class Layer : std::uint8_t {
  kDense,
  kGate,    // of CARoPE: all but its input is fp32
  kScores,  // a classifier's that is not trained: only its result is fp32
};
struct LinearCase {
  std::int64_t rows, in, out;
  bool bias = true;
  bool frozen = false;  // no gradient of the weight
  Write write = Write::kOverwrite;
  Rounding rounding = Rounding::kAsFastest;
  Layer layer = Layer::kDense;
};
OpCase linear_case(const LinearCase& c);

/// A layer with a GELU and the layer after it, whose backward pass goes through the GELU.
struct MlpCase {
  std::int64_t rows, width, hidden;
  bool bias = true;
  bool slopes = false;  // saved of the GELU
  double scale = 1.0;   // of the input
  Write write = Write::kOverwrite;
  Rounding rounding = Rounding::kAsFastest;
};
OpCase mlp_case(const MlpCase& c);

struct GeluCase {
  std::int64_t rows, width;
  double scale = 1.0;  // of the input
};
OpCase gelu_case(const GeluCase& c);

struct NormCase {
  std::int64_t rows, width;
  double mean = 0.0;  // of the input
  Write write = Write::kOverwrite;
};
OpCase norm_case(const NormCase& c);

/// A layer that adds to a residual, and the norm of that.
struct ResidualNormCase {
  std::int64_t rows, in, width;
  bool bias = true;
  Write write = Write::kOverwrite;
  Rounding rounding = Rounding::kAsFastest;
};
OpCase residual_norm_case(const ResidualNormCase& c);

/// A layer norm with a gate behind it.
struct GatedNormCase {
  std::int64_t rows, width, heads;
  bool bias = true;  // of the gate
  Write write = Write::kOverwrite;
};
OpCase gated_norm_case(const GatedNormCase& c);

struct EmbeddingCase {
  std::int64_t batch, length, vocabulary, width;
};
OpCase embedding_case(const EmbeddingCase& c);

struct LossCase {
  std::int64_t rows, classes;
  double scale = 1.0;  // of the logits
  double offset = 0.0;
  std::int64_t ignore_every = 0;  // every so manyth target is not counted; 0: all are
};
OpCase cross_entropy_case(const LossCase& c);

struct ClassifierCase {
  std::int64_t rows, width, classes;
  std::int64_t chunk_rows = 0;
  std::int64_t ignore_every = 0;
  double scale = 1.0;  // of the weight
  Write write = Write::kOverwrite;
};
OpCase classifier_case(const ClassifierCase& c);

struct PositionsCase {
  reference::Sequence seq;
  std::int64_t width;
  std::int64_t positions;  // rows of the table
  Write write = Write::kOverwrite;
};
OpCase add_positions_case(const PositionsCase& c);

struct SinusoidCase {
  reference::Sequence seq;
  std::int64_t width;
  float scale = 1.0F;
};
OpCase sinusoid_case(const SinusoidCase& c);

struct RotaryCase {
  reference::Sequence seq;
  std::int64_t heads, pairs;
  RotaryLayout layout = RotaryLayout::kHalf;
  double base = 10000.0;
};
OpCase rotary_case(const RotaryCase& c);

struct CaropeCase {
  reference::Sequence seq;
  std::int64_t heads, pairs;
  RotaryLayout layout = RotaryLayout::kHalf;
  std::int64_t exponent_start = 0;
  std::int64_t chunk = 512;
  double gate_scale = 2.0;  // gate logits
  double gate_offset = 0.0;
};
OpCase carope_case(const CaropeCase& c);

/// The sequence comes in pieces of these lengths, and a phase state links them.
OpCase carope_pieces_case(const CaropeCase& c, const std::vector<std::int64_t>& pieces);

/// A rotation as other models have it: query heads that share key heads, channels that do not turn,
/// constant ratios, and heads that lie apart.
struct RotationCase {
  reference::Sequence seq;
  std::int64_t heads, key_heads, pairs;
  std::int64_t idle = 0;  // channels of a head that do not turn
  RotaryLayout layout = RotaryLayout::kHalf;
  bool gated = true;
  bool ratios = false;
  float magnitude = 1.0F;
  std::int64_t chunk = 512;

  std::int64_t head_dim() const { return 2 * pairs + idle; }
};
OpCase rotation_case(const RotationCase& c);

struct AttentionCase {
  reference::Sequence seq;
  std::int64_t heads, dim;
  bool slopes = false;
  double scale = 1.0;  // of qkv
};
OpCase attention_case(const AttentionCase& c);

/// The sequence comes in pieces of these lengths through a key-value cache with room to spare.
OpCase attention_cached_case(const AttentionCase& c, const std::vector<std::int64_t>& pieces);

struct AdamwCase {
  std::int64_t elements;
  Adamw options{.learning_rate = 1e-3F};
  float decay = 0.0F;  // of every second slot, from the first
  std::int64_t updates = 10;
  std::vector<std::int64_t> cuts{};  // where the elements are cut into slots
  bool rounded = false;              // a bf16 copy of the values is kept too
};
OpCase adamw_case(const AdamwCase& c);

struct GradientNormCase {
  std::vector<std::int64_t> elements;  // of each gradient
};
OpCase gradient_norm_case(const GradientNormCase& c);

struct SumCase {
  std::int64_t elements;
  double scale = 0.25;
};
OpCase sum_case(const SumCase& c);

/// The layers of the sweep, to be had as gates too.
std::vector<LinearCase> linear_test_cases();
/// Every operation at every shape that the tests sweep over.
std::vector<OpCase> all_test_cases();
/// What there is in a bf16 model besides.
std::vector<OpCase> bf16_test_cases();
/// Every operation at the shapes of training, which are too large for the reference.
std::vector<OpCase> training_test_cases();

// What the functions above share.

/// "_accumulate" or nothing.
std::string suffix(Write write);
/// E.g. "B2_T17_documents".
std::string describe(const reference::Sequence& seq);
/// Tokens or targets below `count`; every `ignore_every`th is -1.
std::vector<std::int32_t> random_ids(const std::string& stream, std::int64_t size,
                                     std::int64_t count, std::int64_t ignore_every = 0);
/// Adds the sequence's document starts or its offsets to the constants of a case, if it has any.
void add_layout(OpCase& op, const reference::Sequence& seq);
/// Adds the offsets of pieces of a sequence, [B] each, to the constants of a case.
void add_piece_offsets(OpCase& op, const std::vector<std::int64_t>& pieces, std::int64_t batch);
/// The sequence as operations take it; its document starts or offsets are the last of the
/// constants.
Sequence bind(const reference::Sequence& seq, const OpTensors& t);
/// Pieces [B, T_i, width] one after another along time, and back.
reference::Values join_pieces(const std::vector<reference::Values>& pieces,
                              const std::vector<std::int64_t>& lengths, std::int64_t batch);
std::vector<reference::Values> split_pieces(const reference::Values& whole,
                                            const std::vector<std::int64_t>& lengths,
                                            std::int64_t batch);

}  // namespace carope::test
