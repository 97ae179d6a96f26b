#include "ops/carope.h"

#include <bit>
#include <cmath>
#include <cstring>

#include "core/parallel.h"
#include "ops/rotate_cpu.h"

namespace carope::cpu {
namespace {

constexpr double kFraction = 0x1p-32;  // of one unit of a frequency

/// f^(p + exponent_start) for every pair, in fp64: a running sum of equal terms multiplies their
/// error by the number of tokens.
struct Powers {
  static constexpr std::int64_t kLanes = 8;
  static_assert(kMaxRotaryPairs % kLanes == 0);
  double values[kMaxRotaryPairs];

  void set(std::uint32_t frequency, std::int64_t pairs, std::int64_t exponent_start) {
    const double f = frequency * kFraction;
    double lanes[kLanes] = {1.0};
    for (std::int64_t i = 0; i < exponent_start; ++i) {
      lanes[0] *= f;
    }
    for (std::int64_t i = 1; i < kLanes; ++i) {
      lanes[i] = lanes[i - 1] * f;
    }
    const double f2 = f * f;
    const double f4 = f2 * f2;
    const double stride = f4 * f4;
    for (std::int64_t p = 0; p < pairs; p += kLanes) {
#pragma omp simd
      for (std::int64_t i = 0; i < kLanes; ++i) {
        values[p + i] = lanes[i];
        lanes[i] *= stride;
      }
    }
  }

  /// Adds each power, as radians, to the phase of its pair.
  void advance(std::uint32_t* phase, std::int64_t pairs) const {
    constexpr double kRounder = 0x1p52;  // adding it leaves the rounded integer in the low bits
#pragma omp simd
    for (std::int64_t p = 0; p < pairs; ++p) {
      const double turns = values[p] * kTurnsPerRadian + kRounder;
      phase[p] += static_cast<std::uint32_t>(std::bit_cast<std::uint64_t>(turns));
    }
  }
};

/// One head of one row over one chunk of tokens: what a task works on.
struct Span {
  const Carope& carope;
  const Sequence& seq;
  std::int64_t b, chunk, head;
  std::int64_t pairs;

  Span(const Carope& carope, const Sequence& seq, std::int64_t pairs, std::int64_t task)
      : carope(carope),
        seq(seq),
        b(task / carope.heads / carope.chunks(seq.length)),
        chunk(task / carope.heads % carope.chunks(seq.length)),
        head(task % carope.heads),
        pairs(pairs) {}

  static std::int64_t count(const Carope& carope, const Sequence& seq) {
    return seq.batch * carope.chunks(seq.length) * carope.heads;
  }

  std::int64_t begin() const { return chunk * carope.chunk; }
  std::int64_t end() const { return std::min(seq.length, begin() + carope.chunk); }
  bool starts_document(std::int64_t t) const {
    return seq.document_start && seq.start_of(b, t) == t;
  }

  /// Where this head's entry of a [B, T, H] tensor is.
  std::int64_t gate_index(std::int64_t t) const {
    return (b * seq.length + t) * carope.heads + head;
  }
  /// This head's query at token t of a [B, T, 3C] tensor; the key is `key_offset()` further on.
  float* query(const Tensor& qkv, std::int64_t t) const {
    return qkv.f32() + (b * seq.length + t) * qkv.cols() + head * 2 * pairs;
  }
  std::int64_t key_offset() const { return carope.heads * 2 * pairs; }

  /// This head's P entries of a [B, chunks, H, P] tensor, at this chunk or a later or earlier one.
  template <class T>
  T* at_chunk(const Tensor& tensor, std::int64_t c) const {
    return tensor.data<T>() + ((b * carope.chunks(seq.length) + c) * carope.heads + head) * pairs;
  }

  /// Calls visit(t, phase) for each token in order, with the phase after that token.
  template <class Visit>
  void scan(const CaropeSaved& saved, std::uint32_t* phase, const Visit& visit) const {
    const auto* frequency = saved.frequency.data<std::uint32_t>();
    Powers powers;
    for (std::int64_t t = begin(); t < end(); ++t) {
      if (starts_document(t)) {
        std::memset(phase, 0, sizeof(*phase) * pairs);
      }
      powers.set(frequency[gate_index(t)], pairs, carope.exponent_start);
      powers.advance(phase, pairs);
      visit(t, phase);
    }
  }
};

/// The gradient of every pair's phase at one token, from the rotated q and k, is added to `sums`.
void add_phase_gradient(const float* qk, const float* dqk, std::int64_t pairs, RotaryLayout layout,
                        double* sums) {
  const std::int64_t step = layout == RotaryLayout::kHalf ? 1 : 2;
  const std::int64_t partner = layout == RotaryLayout::kHalf ? pairs : 1;
#pragma omp simd
  for (std::int64_t p = 0; p < pairs; ++p) {
    const std::int64_t x = p * step;
    const std::int64_t y = x + partner;
    sums[p] += static_cast<double>(qk[x]) * dqk[y] - static_cast<double>(qk[y]) * dqk[x];
  }
}

/// Fills saved.carry: the phase before each chunk, from `state` or zero.
void scan_chunks(Context& ctx, const Carope& carope, const Sequence& seq, const CaropeSaved& saved,
                 const Tensor& state) {
  const std::int64_t pairs = saved.carry.cols();
  const std::int64_t chunks = carope.chunks(seq.length);
  if (chunks > 1) {
    // Each chunk's own sum, left in the place of the next chunk's carry.
    parallel_for(ctx, Span::count(carope, seq), [&](std::int64_t task) {
      const Span span(carope, seq, pairs, task);
      if (span.chunk + 1 < chunks) {
        auto* sum = span.at_chunk<std::uint32_t>(saved.carry, span.chunk + 1);
        std::memset(sum, 0, sizeof(*sum) * pairs);
        span.scan(saved, sum, [](std::int64_t, const std::uint32_t*) {});
      }
    });
  }
  parallel_for(ctx, seq.batch * carope.heads, [&](std::int64_t row) {
    const std::int64_t b = row / carope.heads;
    const Span span(carope, seq, pairs, b * chunks * carope.heads + row % carope.heads);
    auto* first = span.at_chunk<std::uint32_t>(saved.carry, 0);
    if (state) {
      std::memcpy(first, state.data<std::uint32_t>() + row * pairs, sizeof(*first) * pairs);
    } else {
      std::memset(first, 0, sizeof(*first) * pairs);
    }
    for (std::int64_t c = 1; c < chunks; ++c) {
      const std::int64_t last = c * carope.chunk - 1;
      const bool document_began =
          seq.document_start && seq.start_of(b, last) >= last + 1 - carope.chunk;
      if (!document_began) {
        const auto* before = span.at_chunk<std::uint32_t>(saved.carry, c - 1);
        auto* carry = span.at_chunk<std::uint32_t>(saved.carry, c);
        for (std::int64_t p = 0; p < pairs; ++p) {
          carry[p] += before[p];
        }
      }
    }
  });
}

/// For each chunk, the phase gradients of all later tokens of the document that runs past its end.
Tensor sum_later_gradients(Context& ctx, const Carope& carope, const Sequence& seq,
                           const Tensor& qkv, const Tensor& dqkv, std::int64_t pairs) {
  const std::int64_t chunks = carope.chunks(seq.length);
  const Tensor later = ctx.scratch({{seq.batch, chunks, carope.heads, pairs}, DType::kF64});
  parallel_for(ctx, Span::count(carope, seq), [&](std::int64_t task) {
    const Span span(carope, seq, pairs, task);
    if (span.chunk == chunks - 1) {
      std::memset(span.at_chunk<double>(later, span.chunk), 0, sizeof(double) * pairs);
    }
    if (span.chunk == 0) {
      return;
    }
    auto* sums = span.at_chunk<double>(later, span.chunk - 1);
    std::memset(sums, 0, sizeof(*sums) * pairs);
    for (std::int64_t t = span.begin(); t < span.end() && seq.start_of(span.b, t) < span.begin();
         ++t) {
      for (const std::int64_t offset : {std::int64_t{0}, span.key_offset()}) {
        add_phase_gradient(span.query(qkv, t) + offset, span.query(dqkv, t) + offset, pairs,
                           carope.layout, sums);
      }
    }
  });
  parallel_for(ctx, seq.batch * carope.heads, [&](std::int64_t row) {
    const std::int64_t b = row / carope.heads;
    const Span span(carope, seq, pairs, b * chunks * carope.heads + row % carope.heads);
    for (std::int64_t c = chunks - 2; c >= 0; --c) {
      const std::int64_t next_begin = (c + 1) * carope.chunk;
      const std::int64_t next_last = std::min(seq.length, next_begin + carope.chunk) - 1;
      if (seq.start_of(b, next_last) < next_begin) {
        const auto* after = span.at_chunk<double>(later, c + 1);
        auto* sums = span.at_chunk<double>(later, c);
        for (std::int64_t p = 0; p < pairs; ++p) {
          sums[p] += after[p];
        }
      }
    }
  });
  return later;
}

/// dz = df/dz · Σ_p e f^(e-1) G, with e = p + exponent_start and df/dz = -f² σ(z); the division by
/// f in f^(e-1) cancels against f², and σ(z) = 1 - exp(-softplus(z)) follows from f alone.
float logit_gradient(std::uint32_t frequency, const Powers& powers, const double* gradient,
                     std::int64_t pairs, std::int64_t exponent_start) {
  double sum = 0.0;
#pragma omp simd reduction(+ : sum)
  for (std::int64_t p = 0; p < pairs; ++p) {
    sum += static_cast<double>(p + exponent_start) * powers.values[p] * gradient[p];
  }
  const double f = frequency * kFraction;
  const double sigmoid = -std::expm1(1.0 - 1.0 / f);
  return static_cast<float>(-f * sigmoid * sum);
}

}  // namespace

void carope(Context& ctx, const Carope& carope, const Sequence& seq, const Tensor& logits,
            const Tensor& qkv, const CaropeSaved& saved, const Tensor& state) {
  constexpr std::int64_t kGates = 512;  // gates a task
  const std::int64_t pairs = saved.carry.cols();
  parallel_blocks(ctx, logits.size(), kGates, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      saved.frequency.data<std::uint32_t>()[i] = frequency_of_logit(logits.f32()[i]);
    }
  });
  scan_chunks(ctx, carope, seq, saved, state);
  parallel_for(ctx, Span::count(carope, seq), [&](std::int64_t task) {
    const Span span(carope, seq, pairs, task);
    std::uint32_t phase[kMaxRotaryPairs];
    std::memcpy(phase, span.at_chunk<std::uint32_t>(saved.carry, span.chunk),
                sizeof(*phase) * pairs);
    Rotation rotation;
    span.scan(saved, phase, [&](std::int64_t t, const std::uint32_t* now) {
      rotation.set(now, pairs, Direction::kForward);
      rotation.apply(span.query(qkv, t), pairs, carope.layout);
      rotation.apply(span.query(qkv, t) + span.key_offset(), pairs, carope.layout);
    });
    if (state && span.end() == seq.length) {
      std::memcpy(state.data<std::uint32_t>() + (span.b * carope.heads + span.head) * pairs, phase,
                  sizeof(*phase) * pairs);
    }
  });
}

void carope_backward(Context& ctx, const Carope& carope, const Sequence& seq,
                     const CaropeSaved& saved, const Tensor& qkv, const Tensor& dqkv,
                     const Tensor& dlogits) {
  const std::int64_t pairs = saved.carry.cols();
  const auto* frequency = saved.frequency.data<std::uint32_t>();
  const Tensor later = sum_later_gradients(ctx, carope, seq, qkv, dqkv, pairs);
  parallel_for(ctx, Span::count(carope, seq), [&](std::int64_t task) {
    const Span span(carope, seq, pairs, task);
    double
        gradient[kMaxRotaryPairs];  // of each pair's phase, summed over this and all later tokens
    std::memcpy(gradient, span.at_chunk<double>(later, span.chunk), sizeof(*gradient) * pairs);
    Powers powers;
    for (std::int64_t t = span.end() - 1; t >= span.begin(); --t) {
      for (const std::int64_t offset : {std::int64_t{0}, span.key_offset()}) {
        add_phase_gradient(span.query(qkv, t) + offset, span.query(dqkv, t) + offset, pairs,
                           carope.layout, gradient);
      }
      const std::int64_t gate = span.gate_index(t);
      powers.set(frequency[gate], pairs, carope.exponent_start);
      dlogits.f32()[gate] =
          logit_gradient(frequency[gate], powers, gradient, pairs, carope.exponent_start);
      if (span.starts_document(t)) {
        std::memset(gradient, 0, sizeof(*gradient) * pairs);
      }
    }
    std::uint32_t phase[kMaxRotaryPairs];
    std::memcpy(phase, span.at_chunk<std::uint32_t>(saved.carry, span.chunk),
                sizeof(*phase) * pairs);
    Rotation rotation;
    span.scan(saved, phase, [&](std::int64_t t, const std::uint32_t* now) {
      rotation.set(now, pairs, Direction::kBackward);
      rotation.apply(span.query(dqkv, t), pairs, carope.layout);
      rotation.apply(span.query(dqkv, t) + span.key_offset(), pairs, carope.layout);
    });
  });
}

}  // namespace carope::cpu
