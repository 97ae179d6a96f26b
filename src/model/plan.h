#pragma once

#include <string>

#include "core/context.h"
#include "model/config.h"
#include "ops/attention.h"
#include "ops/rounding.h"

namespace carope {

/// What a pass over a batch of tokens is for.
enum class Purpose : std::uint8_t {
  kTraining,     // every block keeps its activations
  kRecomputing,  // as in training, but blocks share what the backward pass can cheaply make again
  kEvaluation,   // whole sequences, forward only: all blocks share one set of activations
  kPrefill,      // as in evaluation, but the tokens continue a decode state, and become part of it
  kDecoding,     // likewise, one token a row
};
const char* to_string(Purpose purpose);

/// A pass, as its caller describes it.
struct Pass {
  std::int64_t batch = 1;   // B
  std::int64_t length = 1;  // T
  Purpose purpose = Purpose::kTraining;
  bool documents = false;  // whether rows are packed documents, whose attention stays within each

  bool trains() const { return purpose <= Purpose::kRecomputing; }
  /// Whether the tokens continue a decode state.
  bool continues() const { return purpose >= Purpose::kPrefill; }
  std::int64_t tokens() const { return batch * length; }

  friend bool operator==(const Pass&, const Pass&) = default;
};

/// Where q and k are rotated.
enum class RotatedBy : std::uint8_t {
  kNothing,
  kAttention,      // by the kernel that attends
  kOwnKernel,      // by a kernel of their own, before attention
  kHostFunctions,  // vector by vector on the host: slow
};

/// What the backward pass of a GELU needs of its input.
enum class KeptOfGelu : std::uint8_t { kNothing, kInput, kSlope };

/// Which kernels serve a pass and what is kept of it. It is made once; the memory plan, the forward
/// and the backward pass read it.
struct Plan {
  Pass pass;
  Device device{};
  DType compute = DType::kF32;
  std::int64_t head_dim = 0;

  RotatedBy rotated_by = RotatedBy::kNothing;
  bool fused_attention = false;  // whether rotate_and_attend() serves, also without a rotation
  bool keeps_phases = false;     // of each token, for the backward pass of that kernel
  KeptOfGelu gelu = KeptOfGelu::kNothing;
  bool shares_activations = false;  // whether blocks share what can be made again
  Rounding rounding = Rounding::kAsFastest;
  std::int64_t logit_rows = 0;  // rows of logits that exist at once
};

Plan make_plan(const GptConfig& config, const Encoding& encoding, Device device, DType compute,
               const Pass& pass);

/// Which kernels rotate q and k in such a pass, and which attend.
std::string rotation_kernels(const Plan& plan);
std::string attention_kernels(const Plan& plan);
/// The kernels of each part of a pass and what it keeps, a line each.
std::string describe(const Plan& plan);

}  // namespace carope
