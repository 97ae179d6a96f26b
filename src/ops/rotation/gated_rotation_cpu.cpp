#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "core/parallel.h"
#include "ops/gate.h"
#include "ops/rotation/rotate_cpu.h"

namespace carope::cpu {
namespace {

constexpr double kFraction = 0x1p-32;  // one unit of a frequency
constexpr std::int64_t kLanes = 8;     // fp64 numbers a vector

constexpr std::int64_t kGates = 512;  // gates a task
constexpr double kRounder = 0x1p52;   // adding it leaves the rounded integer in the low bits

std::uint32_t low_bits(double value) {
  return static_cast<std::uint32_t>(std::bit_cast<std::uint64_t>(value));
}

struct Math {
  static double abs(double x) { return std::abs(x); }
  static double exp_of_negative(double x) { return exp_f64(x); }
  static double log1p(double x) { return log1p_f64(x); }
  static double max(double a, double b) { return std::max(a, b); }
  static double divide(double a, double b) { return a / b; }
};

/// f for one vector of gates. All frequencies come from here, so that they do not depend on where
/// in a sequence, or in how many pieces, they are computed. A NaN logit gives some number.
void frequency_vector(const float* logits, std::uint32_t* frequency) {
  constexpr double kOne = 0x1p32;
  constexpr double kLargest = kOne - 1.0;
#pragma omp simd
  for (std::int64_t i = 0; i < kLanes; ++i) {
    const double z = logits[i];
    const double fraction = gate::frequency<Math>(z, gate::decayed<Math>(z), kOne);
    frequency[i] = low_bits((fraction < kLargest ? fraction : kLargest) + kRounder);
  }
}

/// The frequencies of one head along time, computed a vector at a time as they are asked for.
class FrequencyReader {
 public:
  /// `logits` is the head's first gate; `stride` leads to its next token's, `count` says how many
  /// there are.
  FrequencyReader(const float* logits, std::int64_t stride, std::int64_t count)
      : logits_(logits), stride_(stride), count_(count) {}

  std::uint32_t operator()(std::int64_t i) {
    if (i / kLanes != loaded_) {
      load(i / kLanes);
    }
    return values_[i % kLanes];
  }

 private:
  void load(std::int64_t vector) {
    float gates[kLanes] = {};
    const std::int64_t first = vector * kLanes;
    for (std::int64_t i = 0; i < std::min(kLanes, count_ - first); ++i) {
      gates[i] = logits_[(first + i) * stride_];
    }
    frequency_vector(gates, values_);
    loaded_ = vector;
  }

  const float* logits_;
  std::int64_t stride_;
  std::int64_t count_;
  std::int64_t loaded_ = -1;
  std::uint32_t values_[kLanes] = {};
};

/// Multiplies each gate's gradient, which is Σ_p e ratio f^e G_p, by what turns it into
/// dz = df/dz Σ_p e ratio f^(e-1) G_p with df/dz = -f² σ(z).
void scale_by_gate_slope(Context& ctx, const Tensor& logits, const Tensor& dlogits) {
  const float* z = logits.f32();
  float* gradient = dlogits.f32();
  parallel_blocks(ctx, dlogits.size(), kGates, [&](std::int64_t begin, std::int64_t end) {
#pragma omp simd
    for (std::int64_t i = begin; i < end; ++i) {
      const double logit = z[i];
      const double decayed = gate::decayed<Math>(logit);
      const double slope =
          gate::sigmoid<Math>(logit, decayed) / (gate::softplus<Math>(logit, decayed) + 1.0);
      gradient[i] = static_cast<float>(-slope * gradient[i]);
    }
  });
}

/// f^(p + exponent_start) for every pair, in fp64: a running sum of equal terms multiplies their
/// error by the number of tokens.
template <class Count>
struct Powers {
  static_assert(kMaxRotaryPairs % kLanes == 0);

  Count pairs;
  alignas(64) double values[kMaxRotaryPairs];

  explicit Powers(Count count) : pairs(count) {}

  void set(std::uint32_t frequency, std::int64_t exponent_start) {
    const double f = frequency * kFraction;
    const double f2 = f * f;
    const double f4 = f2 * f2;
    const double stride = f4 * f4;
    double first = 1.0;
    for (std::int64_t i = 0; i < exponent_start; ++i) {
      first *= f;
    }
    // One vector register: eight scalar stores read back as a vector would stall every token.
    using Lanes [[gnu::vector_size(kLanes * sizeof(double))]] = double;
    Lanes lanes{1.0, f, f2, f2 * f, f4, f4 * f, f4 * f2, f4 * f2 * f};
    lanes *= first;
    for (std::int64_t p = 0; p < pairs; p += kLanes) {
      std::memcpy(values + p, &lanes, sizeof(lanes));
      lanes *= stride;
    }
  }

  /// Adds each power times its factor, which makes turns of it, to the phase of its pair.
  void advance(std::uint32_t* phase, const double* turns) const {
#pragma omp simd
    for (std::int64_t p = 0; p < pairs; ++p) {
      phase[p] += low_bits(values[p] * turns[p] + kRounder);
    }
  }
};

/// What the pairs of every head and token have in common.
struct PairFactors {
  alignas(64) double turns[kMaxRotaryPairs];      // of a power of f: ratio * kTurnsPerRadian
  alignas(64) double exponents[kMaxRotaryPairs];  // ratio * (p + exponent_start)

  explicit PairFactors(const Rotation& rotation) {
    for (std::int64_t p = 0; p < rotation.pairs; ++p) {
      const double ratio = rotation.ratios ? rotation.ratios.data<double>()[p] : 1.0;
      turns[p] = ratio * kTurnsPerRadian;
      exponents[p] = ratio * static_cast<double>(p + rotation.exponent_start);
    }
  }
};

/// The operation on one sequence, for one number of pairs.
template <class Count>
class Kernel {
 public:
  Kernel(Context& ctx, const Rotation& rotation, const Sequence& seq, Count pairs)
      : ctx_(ctx),
        rotation_(rotation),
        seq_(seq),
        logits_(rotation.logits.f32()),
        carry_(rotation.carry.data<std::uint32_t>()),
        factors_(rotation),
        pairs_(pairs),
        heads_(rotation.k.count),
        group_(rotation.q.count / rotation.k.count),
        chunks_(rotation.chunks(seq.length)) {}

  void forward() const {
    std::uint32_t* state = rotation_.state ? rotation_.state.data<std::uint32_t>() : nullptr;
    scan_chunks(state);
    for_each_span(0, [&](const Span& span) {
      alignas(64) std::uint32_t phase[kMaxRotaryPairs];
      rotate(span, Direction::kForward, rotation_.q, rotation_.k, phase);
      pass_on_nan(span);
      if (state != nullptr && span.end == seq_.length) {
        copy(phase, state + (span.b * heads_ + span.head) * pairs_);
      }
    });
  }

  void backward(const RotationGradients& gradients) const {
    const double* later = sum_later_torque(gradients);
    for_each_span(0, [&](const Span& span) {
      gate_backward(span, gradients, later + chunk_index(span, span.chunk));
      alignas(64) std::uint32_t phase[kMaxRotaryPairs];
      rotate(span, Direction::kBackward, gradients.dq, gradients.dk, phase);
    });
  }

 private:
  /// One key head of one row over one chunk of tokens, with the query heads that share it: what a
  /// task works on.
  struct Span {
    std::int64_t b, chunk, head;
    std::int64_t begin, end;  // tokens
  };

  Span span_at(std::int64_t b, std::int64_t chunk, std::int64_t head) const {
    const std::int64_t begin = chunk * rotation_.chunk;
    return {b, chunk, head, begin, std::min(seq_.length, begin + rotation_.chunk)};
  }

  /// Calls visit(span) for every span from the chunk `first` on, on all threads.
  template <class Visit>
  void for_each_span(std::int64_t first, const Visit& visit) const {
    const std::int64_t chunks = chunks_ - first;
    parallel_for(ctx_, seq_.batch * chunks * heads_, [&](std::int64_t task) {
      const std::int64_t chunk = task / heads_;
      visit(span_at(chunk / chunks, first + chunk % chunks, task % heads_));
    });
  }

  bool starts_document(std::int64_t b, std::int64_t t) const {
    return seq_.document_start && seq_.start_of(b, t) == t;
  }

  // Where a span's entries are, in a tensor [B, T, K] or [B, T, K, P], and in [B, chunks, K, P].
  std::int64_t gate_index(const Span& span, std::int64_t t) const {
    return (span.b * seq_.length + t) * heads_ + span.head;
  }
  std::int64_t phase_index(const Span& span, std::int64_t t) const {
    return gate_index(span, t) * pairs_;
  }
  std::int64_t chunk_index(const Span& span, std::int64_t chunk) const {
    return ((span.b * chunks_ + chunk) * heads_ + span.head) * pairs_;
  }
  std::int64_t first_query(const Span& span) const { return span.head * group_; }

  FrequencyReader frequencies(const Span& span) const {
    return {logits_ + gate_index(span, span.begin), heads_, span.end - span.begin};
  }

  template <class T>
  void copy(const T* from, T* to) const {
    std::memcpy(to, from, sizeof(T) * pairs_);
  }
  template <class T>
  void zero(T* values) const {
    std::memset(values, 0, sizeof(T) * pairs_);
  }

  /// Calls visit(t) for each token in order, with `phase` advanced to that token.
  template <class Visit>
  void scan(const Span& span, std::uint32_t* phase, const Visit& visit) const {
    Powers powers(pairs_);
    FrequencyReader frequency = frequencies(span);
    for (std::int64_t t = span.begin; t < span.end; ++t) {
      if (starts_document(span.b, t)) {
        zero(phase);
      }
      powers.set(frequency(t - span.begin), rotation_.exponent_start);
      powers.advance(phase, factors_.turns);
      visit(t);
    }
  }

  /// Rotates a span of q and k, or of their gradients, in place; `phase` ends as the phase after
  /// the span's last token. The forward pass keeps every phase that is asked for.
  void rotate(const Span& span, Direction direction, const Heads& q, const Heads& k,
              std::uint32_t* phase) const {
    std::uint16_t* rounded = rotation_.phases && direction == Direction::kForward
                                 ? rotation_.phases.data<std::uint16_t>()
                                 : nullptr;
    copy(carry_ + chunk_index(span, span.chunk), phase);
    SinesOfHead sines(pairs_);
    scan(span, phase, [&](std::int64_t t) {
      sines.set(phase, direction, rotation_.magnitude);
      for (std::int64_t i = 0; i < group_; ++i) {
        sines.rotate(q.at<float>(span.b, t, first_query(span) + i), rotation_.layout);
      }
      sines.rotate(k.at<float>(span.b, t, span.head), rotation_.layout);
      if (rounded != nullptr) {
        round(phase, rounded + phase_index(span, t));
      }
    });
  }

  /// To 2^-16 turns.
  void round(const std::uint32_t* phase, std::uint16_t* rounded) const {
    std::transform(phase, phase + pairs_, rounded,
                   [](std::uint32_t turns) { return (turns + 0x8000U) >> 16; });
  }

  /// A phase in turns cannot be NaN, so a NaN logit is put into the query: it must reach the loss.
  void pass_on_nan(const Span& span) const {
    for (std::int64_t t = span.begin; t < span.end; ++t) {
      const float logit = logits_[gate_index(span, t)];
      if (std::isnan(logit)) {
        *rotation_.q.at<float>(span.b, t, first_query(span)) = logit;
      }
    }
  }

  /// Fills the carries: the phase before each chunk, from `state` or zero.
  void scan_chunks(const std::uint32_t* state) const {
    // First the sum of the chunk before, on all threads, then the sums of all before that one.
    for_each_span(1, [&](const Span& span) {
      std::uint32_t* sum = carry_ + chunk_index(span, span.chunk);
      zero(sum);
      scan(span_at(span.b, span.chunk - 1, span.head), sum, [](std::int64_t) {});
    });
    for (std::int64_t row = 0; row < seq_.batch * heads_; ++row) {
      const Span first = span_at(row / heads_, 0, row % heads_);
      std::uint32_t* carry = carry_ + chunk_index(first, 0);
      if (state != nullptr) {
        copy(state + row * pairs_, carry);
      } else {
        zero(carry);
      }
      for (std::int64_t chunk = 1; chunk < chunks_; ++chunk) {
        const Span before = span_at(first.b, chunk - 1, first.head);
        if (seq_.document_start && seq_.start_of(before.b, before.end - 1) >= before.begin) {
          continue;  // a document began in the chunk before: its sum is the whole phase
        }
        add(carry_ + chunk_index(first, chunk - 1), carry_ + chunk_index(first, chunk));
      }
    }
  }

  template <class From, class To>
  void add(const From* from, To* to) const {
#pragma omp simd
    for (std::int64_t p = 0; p < pairs_; ++p) {
      to[p] += from[p];
    }
  }

  /// Adds the gradient of every pair's phase at one token, which needs only the rotated q and k.
  void add_torque(const Span& span, std::int64_t t, const RotationGradients& gradients,
                  double* sums) const {
    for (std::int64_t i = 0; i < group_; ++i) {
      const std::int64_t head = first_query(span) + i;
      add_torque(rotation_.q.at<const float>(span.b, t, head),
                 gradients.dq.at<const float>(span.b, t, head), sums);
    }
    add_torque(rotation_.k.at<const float>(span.b, t, span.head),
               gradients.dk.at<const float>(span.b, t, span.head), sums);
  }
  void add_torque(const float* x, const float* dx, double* sums) const {
    if (rotation_.layout == RotaryLayout::kHalf) {
      add_torque<1>(x, dx, pairs_, sums);
    } else {
      add_torque<2>(x, dx, 1, sums);
    }
  }
  /// Pairs are kStep elements apart, and a pair's elements `partner`.
  template <std::int64_t kStep>
  void add_torque(const float* x, const float* dx, std::int64_t partner, double* sums) const {
#pragma omp simd
    for (std::int64_t p = 0; p < pairs_; ++p) {
      const std::int64_t i = p * kStep;
      const std::int64_t j = i + partner;
      sums[p] += x[i] * dx[j] - x[j] * dx[i];
    }
  }

  /// For each chunk, the phase gradients of all later tokens of the document that runs past its
  /// end, as [B, chunks, K, P].
  const double* sum_later_torque(const RotationGradients& gradients) const {
    const Tensor scratch = ctx_.scratch({{seq_.batch, chunks_, heads_, pairs_}, DType::kF64});
    auto* later = scratch.data<double>();
    for_each_span(1, [&](const Span& span) {
      double* sums = later + chunk_index(span, span.chunk - 1);
      zero(sums);
      for (std::int64_t t = span.begin; t < span.end && seq_.start_of(span.b, t) < span.begin;
           ++t) {
        add_torque(span, t, gradients, sums);
      }
    });
    for (std::int64_t row = 0; row < seq_.batch * heads_; ++row) {
      const Span last = span_at(row / heads_, chunks_ - 1, row % heads_);
      zero(later + chunk_index(last, last.chunk));
      for (std::int64_t chunk = chunks_ - 2; chunk >= 0; --chunk) {
        const Span next = span_at(last.b, chunk + 1, last.head);
        if (seq_.start_of(next.b, next.end - 1) < next.begin) {
          add(later + chunk_index(next, chunk + 1), later + chunk_index(next, chunk));
        }
      }
    }
    return later;
  }

  /// Writes Σ_p e ratio f^e G_p for each token of a span, where e = p + exponent_start and G_p is
  /// the sum of the phase gradients from the token to the end of its document.
  void gate_backward(const Span& span, const RotationGradients& gradients,
                     const double* later) const {
    float* dlogits = gradients.dlogits.f32();
    alignas(64) double gradient[kMaxRotaryPairs];
    copy(later, gradient);
    Powers powers(pairs_);
    FrequencyReader frequency = frequencies(span);
    for (std::int64_t t = span.end - 1; t >= span.begin; --t) {
      add_torque(span, t, gradients, gradient);
      powers.set(frequency(t - span.begin), rotation_.exponent_start);
      double sum = 0.0;
#pragma omp simd reduction(+ : sum)
      for (std::int64_t p = 0; p < pairs_; ++p) {
        sum += factors_.exponents[p] * powers.values[p] * gradient[p];
      }
      dlogits[gate_index(span, t)] = static_cast<float>(sum);
      if (starts_document(span.b, t)) {
        zero(gradient);
      }
    }
  }

  Context& ctx_;
  const Rotation& rotation_;
  const Sequence& seq_;
  const float* logits_;   // [B, T, K]
  std::uint32_t* carry_;  // [B, chunks, K, P]
  PairFactors factors_;
  Count pairs_;
  std::int64_t heads_;  // key heads
  std::int64_t group_;  // query heads that share a key head
  std::int64_t chunks_;
};

}  // namespace

void rotate_gated(Context& ctx, const Rotation& rotation, const Sequence& seq) {
  with_pairs(rotation.pairs, [&](auto pairs) { Kernel(ctx, rotation, seq, pairs).forward(); });
}

void rotate_gated_backward(Context& ctx, const Rotation& rotation, const Sequence& seq,
                           const RotationGradients& gradients) {
  with_pairs(rotation.pairs,
             [&](auto pairs) { Kernel(ctx, rotation, seq, pairs).backward(gradients); });
  scale_by_gate_slope(ctx, rotation.logits, gradients.dlogits);
}

}  // namespace carope::cpu
