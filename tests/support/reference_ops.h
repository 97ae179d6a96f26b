#pragma once

#include <cmath>
#include <complex>
#include <cstdint>
#include <numbers>
#include <vector>

#include "ops/rotary.h"

// Every operation once more, written from the mathematics as plain loops over complex numbers: the
// real part of a result is the result, and where an input has a tiny imaginary part, that of the
// result is its derivative times that part. Nothing here calls into the library.
namespace carope::reference {

using Complex = std::complex<double>;
using Values = std::vector<Complex>;  // a tensor, row-major

inline std::size_t index(std::int64_t i) { return static_cast<std::size_t>(i); }
inline std::int64_t size(const Values& values) { return static_cast<std::int64_t>(values.size()); }

/// How tokens lie along time. Row b holds documents that start at `document_starts[b]`.
struct Sequence {
  std::int64_t batch = 1;
  std::int64_t length = 1;
  std::vector<std::vector<std::int64_t>> document_starts{};  // empty: one document a row
  std::int64_t offset = 0;                                   // tokens that row 0 has seen before
  std::int64_t offset_step = 0;  // and how many more each row has than the one before it

  std::int64_t tokens() const { return batch * length; }

  std::int64_t start_of(std::int64_t b, std::int64_t t) const {
    std::int64_t start = 0;
    if (!document_starts.empty()) {
      for (const std::int64_t candidate : document_starts[index(b)]) {
        if (candidate <= t) {
          start = candidate;
        }
      }
    }
    return start;
  }
  std::int64_t position_of(std::int64_t b, std::int64_t t) const {
    return offset + b * offset_step + t - start_of(b, t);
  }
};

inline Values add(const Values& a, const Values& b) {
  Values sum(a.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    sum[i] = a[i] + b[i];
  }
  return sum;
}

/// y [N, out] = x [N, in] weightᵀ + bias; an empty bias is zero.
inline Values linear(const Values& x, const Values& weight, const Values& bias, std::int64_t in) {
  const std::int64_t rows = size(x) / in;
  const std::int64_t out = size(weight) / in;
  Values y(index(rows * out));
  for (std::int64_t n = 0; n < rows; ++n) {
    for (std::int64_t o = 0; o < out; ++o) {
      Complex sum = bias.empty() ? Complex{} : bias[index(o)];
      for (std::int64_t i = 0; i < in; ++i) {
        sum += x[index(n * in + i)] * weight[index(o * in + i)];
      }
      y[index(n * out + o)] = sum;
    }
  }
  return y;
}

/// GPT-2's approximation of the GELU.
inline Values gelu(const Values& x) {
  const double scale = std::sqrt(2.0 / std::numbers::pi);
  Values y(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    y[i] = 0.5 * x[i] * (1.0 + std::tanh(scale * (x[i] + 0.044715 * x[i] * x[i] * x[i])));
  }
  return y;
}

/// Its derivative at the real parts, by a complex step.
inline Values gelu_derivative(Values x) {
  constexpr double kStep = 1e-30;
  for (Complex& value : x) {
    value = {value.real(), kStep};
  }
  Values slopes = gelu(x);
  for (Complex& slope : slopes) {
    slope = slope.imag() / kStep;
  }
  return slopes;
}

struct Normed {
  Values y, mean, rstd;
};

inline Normed layer_norm(const Values& x, const Values& gain, const Values& bias) {
  constexpr double kEpsilon = 1e-5;
  const std::int64_t width = size(gain);
  const std::int64_t rows = size(x) / width;
  const auto divisor = static_cast<double>(width);
  Normed normed{Values(x.size()), Values(index(rows)), Values(index(rows))};
  for (std::int64_t n = 0; n < rows; ++n) {
    Complex mean = 0.0;
    for (std::int64_t c = 0; c < width; ++c) {
      mean += x[index(n * width + c)] / divisor;
    }
    Complex variance = 0.0;
    for (std::int64_t c = 0; c < width; ++c) {
      const Complex centred = x[index(n * width + c)] - mean;
      variance += centred * centred / divisor;
    }
    const Complex rstd = 1.0 / std::sqrt(variance + kEpsilon);
    for (std::int64_t c = 0; c < width; ++c) {
      const std::size_t i = index(n * width + c);
      normed.y[i] = (x[i] - mean) * rstd * gain[index(c)] + bias[index(c)];
    }
    normed.mean[index(n)] = mean;
    normed.rstd[index(n)] = rstd;
  }
  return normed;
}

inline Values embedding(const std::vector<std::int32_t>& tokens, const Values& table,
                        std::int64_t width) {
  Values rows;
  for (const std::int32_t token : tokens) {
    const auto row = table.begin() + token * width;
    rows.insert(rows.end(), row, row + width);
  }
  return rows;
}

/// x + table[position], for x [B, T, width].
inline Values add_positions(const Sequence& seq, const Values& table, Values x) {
  const std::int64_t width = size(x) / seq.tokens();
  for (std::int64_t n = 0; n < seq.tokens(); ++n) {
    const std::int64_t position = seq.position_of(n / seq.length, n % seq.length);
    for (std::int64_t c = 0; c < width; ++c) {
      x[index(n * width + c)] += table[index(position * width + c)];
    }
  }
  return x;
}

/// x + scale times the fixed sines and cosines of each position, for x [B, T, width].
inline Values add_sinusoid(const Sequence& seq, double scale, Values x) {
  const std::int64_t width = size(x) / seq.tokens();
  for (std::int64_t n = 0; n < seq.tokens(); ++n) {
    const auto position = static_cast<double>(seq.position_of(n / seq.length, n % seq.length));
    for (std::int64_t c = 0; c < width; c += 2) {
      const double frequency =
          std::pow(10000.0, -static_cast<double>(c) / static_cast<double>(width));
      x[index(n * width + c)] += scale * std::sin(position * frequency);
      x[index(n * width + c + 1)] += scale * std::cos(position * frequency);
    }
  }
  return x;
}

/// RoPE's phases [B, T, H, P]: a token's first appearance already turns by one increment.
inline Values rope_phase(const Sequence& seq, std::int64_t heads,
                         const std::vector<double>& frequencies) {
  Values phase;
  for (std::int64_t n = 0; n < seq.tokens(); ++n) {
    const auto turns = static_cast<double>(seq.position_of(n / seq.length, n % seq.length) + 1);
    for (std::int64_t h = 0; h < heads; ++h) {
      for (const double frequency : frequencies) {
        phase.emplace_back(turns * frequency);
      }
    }
  }
  return phase;
}

inline std::vector<double> frequencies_of(std::int64_t pairs, double base) {
  std::vector<double> frequencies;
  for (std::int64_t p = 0; p < pairs; ++p) {
    frequencies.push_back(std::pow(base, -static_cast<double>(p) / static_cast<double>(pairs)));
  }
  return frequencies;
}

inline Values rope_phase(const Sequence& seq, std::int64_t heads, std::int64_t pairs, double base) {
  return rope_phase(seq, heads, frequencies_of(pairs, base));
}

/// CARoPE's phases [B, T, H, P]: Σ over the document up to and including t of f^(p + start), where
/// f = 1 / (softplus(logit) + 1). logits [B, T, H].
inline Values carope_phase(const Sequence& seq, std::int64_t heads, std::int64_t pairs,
                           std::int64_t exponent_start, const Values& logits) {
  Values phase(index(seq.tokens() * heads * pairs));
  for (std::int64_t b = 0; b < seq.batch; ++b) {
    for (std::int64_t t = 0; t < seq.length; ++t) {
      for (std::int64_t h = 0; h < heads; ++h) {
        const std::int64_t gate = (b * seq.length + t) * heads + h;
        const Complex f = 1.0 / (std::log(1.0 + std::exp(logits[index(gate)])) + 1.0);
        Complex power = 1.0;
        for (std::int64_t i = 0; i < exponent_start; ++i) {
          power *= f;
        }
        for (std::int64_t p = 0; p < pairs; ++p) {
          const bool first = seq.start_of(b, t) == t;
          const Complex before = first ? 0.0 : phase[index((gate - heads) * pairs + p)];
          phase[index(gate * pairs + p)] = before + power;
          power *= f;
        }
      }
    }
  }
  return phase;
}

/// Rotates q and k of qkv [B, T, 3C] by phase [B, T, H, P]: the first 2P channels of each head.
inline Values rotate(std::int64_t heads, std::int64_t pairs, RotaryLayout layout,
                     const Values& phase, Values qkv, double magnitude = 1.0) {
  const std::int64_t tokens = size(phase) / (heads * pairs);
  const std::int64_t width = size(qkv) / (3 * tokens);
  const std::int64_t dim = width / heads;
  for (std::int64_t n = 0; n < tokens; ++n) {
    for (std::int64_t h = 0; h < heads; ++h) {
      for (std::int64_t p = 0; p < pairs; ++p) {
        const Complex angle = phase[index((n * heads + h) * pairs + p)];
        const Complex cosine = magnitude * std::cos(angle);
        const Complex sine = magnitude * std::sin(angle);
        for (const std::int64_t part : {0, 1}) {  // q, then k
          const std::int64_t head = n * 3 * width + part * width + h * dim;
          const bool half = layout == RotaryLayout::kHalf;
          Complex& x = qkv[index(head + (half ? p : 2 * p))];
          Complex& y = qkv[index(head + (half ? p + pairs : 2 * p + 1))];
          const Complex turned = x * cosine - y * sine;
          y = x * sine + y * cosine;
          x = turned;
        }
      }
    }
  }
  return qkv;
}

struct Attended {
  Values out;        // [B, T, C]
  Values logsumexp;  // [B, H, T]
};

/// Causal attention within each document of qkv [B, T, 3C]; `slopes` [H] may be empty.
inline Attended attention(const Sequence& seq, std::int64_t heads,
                          const std::vector<double>& slopes, const Values& qkv) {
  const std::int64_t width = size(qkv) / seq.tokens() / 3;
  const std::int64_t dim = width / heads;
  const double scale = 1.0 / std::sqrt(static_cast<double>(dim));
  Attended result{Values(index(seq.tokens() * width)),
                  Values(index(seq.batch * heads * seq.length))};
  Values weights(index(seq.length));
  for (std::int64_t b = 0; b < seq.batch; ++b) {
    for (std::int64_t h = 0; h < heads; ++h) {
      // Where channel d of this head's q (0), k (1) or v (2) at token t is.
      const auto at = [&](int part, std::int64_t t, std::int64_t d) {
        return index(((b * seq.length + t) * 3 + part) * width + h * dim + d);
      };
      for (std::int64_t t = 0; t < seq.length; ++t) {
        const std::int64_t start = seq.start_of(b, t);
        double largest = -1e300;
        for (std::int64_t s = start; s <= t; ++s) {
          Complex score = 0.0;
          for (std::int64_t d = 0; d < dim; ++d) {
            score += qkv[at(0, t, d)] * qkv[at(1, s, d)];
          }
          score *= scale;
          if (!slopes.empty()) {
            score -= slopes[index(h)] * static_cast<double>(t - s);
          }
          weights[index(s)] = score;
          largest = std::max(largest, score.real());
        }
        Complex sum = 0.0;
        for (std::int64_t s = start; s <= t; ++s) {
          weights[index(s)] = std::exp(weights[index(s)] - largest);
          sum += weights[index(s)];
        }
        for (std::int64_t d = 0; d < dim; ++d) {
          Complex mixed = 0.0;
          for (std::int64_t s = start; s <= t; ++s) {
            mixed += weights[index(s)] * qkv[at(2, s, d)];
          }
          result.out[index((b * seq.length + t) * width + h * dim + d)] = mixed / sum;
        }
        result.logsumexp[index((b * heads + h) * seq.length + t)] = largest + std::log(sum);
      }
    }
  }
  return result;
}

/// -log softmax(logits [N, V])[target] of each row; zero where the target is negative.
inline Values cross_entropy(const Values& logits, const std::vector<std::int32_t>& targets) {
  const std::int64_t rows = static_cast<std::int64_t>(targets.size());
  const std::int64_t classes = size(logits) / rows;
  Values losses(targets.size());
  for (std::int64_t n = 0; n < rows; ++n) {
    const std::int32_t target = targets[index(n)];
    if (target < 0) {
      continue;
    }
    const Complex* row = logits.data() + n * classes;
    double largest = row[0].real();
    for (std::int64_t v = 1; v < classes; ++v) {
      largest = std::max(largest, row[v].real());
    }
    Complex sum = 0.0;
    for (std::int64_t v = 0; v < classes; ++v) {
      sum += std::exp(row[v] - largest);
    }
    losses[index(n)] = largest + std::log(sum) - row[target];
  }
  return losses;
}

}  // namespace carope::reference
