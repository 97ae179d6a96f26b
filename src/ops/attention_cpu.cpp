#include "ops/attention.h"

#include <cmath>
#include <cstring>
#include <limits>

#include "ops/matmul/matmul_cpu.h"
#include "ops/simd_cpu.h"

namespace carope::cpu {
namespace {

constexpr std::int64_t kQueries = 64;  // rows of a tile of scores
constexpr std::int64_t kKeys = 128;    // columns of a tile of scores

/// One head of one batch row.
struct Head {
  Matrix q;  // [T, D]
  Matrix k;  // [offset + T, D]
  Matrix v;  // [offset + T, D]
  std::int64_t dim;
  float scale;
  float slope;
  Rounding rounding = Rounding::kAsFastest;
};

/// The rectangle of scores between a block of queries and a block of keys. Queries count from the
/// first new token, keys from the first key.
struct ScoreTile {
  std::int64_t query, queries;
  std::int64_t key, keys;

  MatmulShape times_dim(std::int64_t dim) const { return {queries, keys, dim}; }

  /// The columns of the tile that row i may see: [first, last).
  struct Visible {
    std::int64_t first, last;
  };
  Visible visible(const Sequence& seq, std::int64_t b, std::int64_t i) const {
    const std::int64_t t = query + i;
    const std::int64_t first = seq.start_of(b, t) - key;
    const std::int64_t last = seq.offset_of(b) + t + 1 - key;
    return {std::clamp<std::int64_t>(first, 0, keys), std::clamp<std::int64_t>(last, 0, keys)};
  }
};

/// Calls visit(tile) for every tile of scores that the block of queries at `query` may see, left to
/// right.
template <class Visit>
void for_each_tile(const Sequence& seq, std::int64_t b, std::int64_t query, const Visit& visit) {
  const std::int64_t queries = std::min(kQueries, seq.length - query);
  const std::int64_t first =
      seq.start_of(b, query);  // documents are in order: no later query sees less far
  const std::int64_t last = seq.offset_of(b) + query + queries;
  for (std::int64_t key = first; key < last; key += kKeys) {
    visit(ScoreTile{query, queries, key, std::min(kKeys, last - key)});
  }
}

void scale_row(float* row, std::int64_t dim, float factor) {
#pragma omp simd
  for (std::int64_t d = 0; d < dim; ++d) {
    row[d] *= factor;
  }
}

/// scores = scale q kᵀ - slope * distance, for a whole tile; entries that are not visible are
/// meaningless.
void score(const Head& head, std::int64_t offset, const ScoreTile& tile, float* scores) {
  Matrix keys = head.k.at(tile.key, 0);
  keys.transposed = true;
  const MatmulShape shape = tile.times_dim(head.dim);
  if (head.rounding == Rounding::kByRow) {
    sgemm_by_row(shape, head.q.at(tile.query, 0), keys, {scores, kKeys}, Write::kOverwrite);
    for (std::int64_t i = 0; i < tile.queries; ++i) {
      scale_row(scores + i * kKeys, tile.keys, head.scale);
    }
  } else {
    sgemm(shape, head.q.at(tile.query, 0), keys, {scores, kKeys}, Write::kOverwrite, head.scale);
  }
  if (head.slope == 0.0F) {
    return;
  }
  for (std::int64_t i = 0; i < tile.queries; ++i) {
    const auto distance = static_cast<float>(offset + tile.query + i - tile.key);
#pragma omp simd
    for (std::int64_t j = 0; j < tile.keys; ++j) {
      float& value = scores[i * kKeys + j];
      value = multiply_add(head.slope, static_cast<float>(j) - distance, value);
    }
  }
}

/// Replaces the visible part of a row of scores by exp(score - shift) and the rest by zero; returns
/// the sum.
float exponentiate(float* row, const ScoreTile& tile, ScoreTile::Visible visible, float shift) {
  std::fill(row, row + visible.first, 0.0F);
  std::fill(row + visible.last, row + tile.keys, 0.0F);
  float sum = 0.0F;
#pragma omp simd reduction(+ : sum)
  for (std::int64_t j = visible.first; j < visible.last; ++j) {
    row[j] = exp_f32(row[j] - shift);
    sum += row[j];
  }
  return sum;
}

/// The online softmax of one row: what it has seen so far.
struct RunningSoftmax {
  float max = -std::numeric_limits<float>::infinity();
  float sum = 0.0F;

  /// Takes in a row of scores, leaving exponentials; returns the factor by which earlier results
  /// shrink.
  float take(float* row, const ScoreTile& tile, ScoreTile::Visible visible) {
    float largest = max;
#pragma omp simd reduction(max : largest)
    for (std::int64_t j = visible.first; j < visible.last; ++j) {
      largest = std::max(largest, row[j]);
    }
    const float shrink = max == largest ? 1.0F : std::exp(max - largest);
    max = largest;
    sum = sum * shrink + exponentiate(row, tile, visible, largest);
    return shrink;
  }
};

/// Attention of one block of queries; `logsumexp`, if given, has one entry a query of the sequence.
void attend(const Head& head, const Sequence& seq, std::int64_t b, std::int64_t query,
            const Matrix& out, float* logsumexp) {
  alignas(64) float scores[kQueries * kKeys];
  RunningSoftmax softmax[kQueries];
  const std::int64_t queries = std::min(kQueries, seq.length - query);
  const Matrix rows = out.at(query, 0);
  Write write = Write::kOverwrite;
  for_each_tile(seq, b, query, [&](const ScoreTile& tile) {
    score(head, seq.offset_of(b), tile, scores);
    for (std::int64_t i = 0; i < queries; ++i) {
      const float shrink = softmax[i].take(scores + i * kKeys, tile, tile.visible(seq, b, i));
      if (write == Write::kAccumulate && shrink != 1.0F) {
        scale_row(rows.data + i * rows.stride, head.dim, shrink);
      }
    }
    sgemm({queries, head.dim, tile.keys}, {scores, kKeys}, head.v.at(tile.key, 0), rows, write,
          head.rounding);
    write = Write::kAccumulate;
  });
  for (std::int64_t i = 0; i < queries; ++i) {
    scale_row(rows.data + i * rows.stride, head.dim, 1.0F / softmax[i].sum);
    if (logsumexp != nullptr) {
      logsumexp[query + i] = softmax[i].max + std::log(softmax[i].sum);
    }
  }
}

/// Row b, head h of a [B, T, 3C] tensor: which = 0 for q, 1 for k, 2 for v.
Matrix part_of(const Tensor& qkv, const Sequence& seq, std::int64_t b, std::int64_t h,
               std::int64_t dim, int which) {
  return {qkv.f32() + b * seq.length * qkv.cols() + which * qkv.cols() / 3 + h * dim, qkv.cols()};
}

Matrix head_of(const Tensor& rows, std::int64_t b, std::int64_t h, std::int64_t dim) {
  return {rows.f32() + b * rows.dim(1) * rows.cols() + h * dim, rows.cols()};
}

Head head_of_qkv(const Attention& attention, const Sequence& seq, const Tensor& qkv, std::int64_t b,
                 std::int64_t h) {
  const std::int64_t dim = qkv.cols() / 3 / attention.heads;
  return {.q = part_of(qkv, seq, b, h, dim, 0),
          .k = part_of(qkv, seq, b, h, dim, 1),
          .v = part_of(qkv, seq, b, h, dim, 2),
          .dim = dim,
          .scale = attention.score_scale / std::sqrt(static_cast<float>(dim)),
          .slope = attention.slopes ? attention.slopes.f32()[h] : 0.0F};
}

Matrix transpose(Matrix matrix) { return {matrix.data, matrix.stride, !matrix.transposed}; }

/// The whole backward pass of one head of one batch row.
void head_backward(const Head& head, const Sequence& seq, std::int64_t b, const float* logsumexp,
                   const Matrix& out, const Matrix& dout, const Head& gradient) {
  alignas(64) float probabilities[kQueries * kKeys];
  alignas(64) float dscores[kQueries * kKeys];
  for (const Matrix& part : {gradient.q, gradient.k, gradient.v}) {
    for (std::int64_t t = 0; t < seq.length; ++t) {
      std::memset(part.data + t * part.stride, 0, sizeof(float) * head.dim);
    }
  }
  for (std::int64_t query = 0; query < seq.length; query += kQueries) {
    float mean[kQueries];  // of dscores under the probabilities: Σ_d out · dout
    for (std::int64_t i = 0; i < std::min(kQueries, seq.length - query); ++i) {
      const float* o = out.at(query + i, 0).data;
      const float* d = dout.at(query + i, 0).data;
      float sum = 0.0F;
#pragma omp simd reduction(+ : sum)
      for (std::int64_t c = 0; c < head.dim; ++c) {
        sum += o[c] * d[c];
      }
      mean[i] = sum;
    }
    for_each_tile(seq, b, query, [&](const ScoreTile& tile) {
      const Matrix p{probabilities, kKeys};
      const Matrix ds{dscores, kKeys};
      score(head, 0, tile, probabilities);
      sgemm(tile.times_dim(head.dim), dout.at(query, 0), transpose(head.v.at(tile.key, 0)), ds,
            Write::kOverwrite);
      for (std::int64_t i = 0; i < tile.queries; ++i) {
        float* row = probabilities + i * kKeys;
        float* drow = dscores + i * kKeys;
        exponentiate(row, tile, tile.visible(seq, b, i), logsumexp[query + i]);
#pragma omp simd
        for (std::int64_t j = 0; j < tile.keys; ++j) {
          drow[j] = row[j] * (drow[j] - mean[i]);
        }
      }
      const MatmulShape by_key{tile.keys, head.dim, tile.queries};
      const MatmulShape by_query{tile.queries, head.dim, tile.keys};
      sgemm(by_key, transpose(p), dout.at(query, 0), gradient.v.at(tile.key, 0),
            Write::kAccumulate);
      sgemm(by_query, ds, head.k.at(tile.key, 0), gradient.q.at(query, 0), Write::kAccumulate,
            head.scale);
      sgemm(by_key, transpose(ds), head.q.at(query, 0), gradient.k.at(tile.key, 0),
            Write::kAccumulate, head.scale);
    });
  }
}

}  // namespace

void attention(Context& ctx, const Attention& attention, const Sequence& seq, const Tensor& qkv,
               const Tensor& out, const Tensor& logsumexp) {
  const std::int64_t blocks = (seq.length + kQueries - 1) / kQueries;
  const Tensor result = out.reshape({seq.batch, seq.length, out.cols()});
  parallel_for(ctx, seq.batch * attention.heads * blocks, [&](std::int64_t task) {
    const std::int64_t row = task / blocks;
    const std::int64_t b = row / attention.heads;
    const std::int64_t h = row % attention.heads;
    const Head head = head_of_qkv(attention, seq, qkv, b, h);
    attend(head, seq, b, task % blocks * kQueries, head_of(result, b, h, head.dim),
           logsumexp.f32() + row * seq.length);
  });
}

void attention_backward(Context& ctx, const Attention& attention, const Sequence& seq,
                        const AttentionBackward& args) {
  const Shape shape{seq.batch, seq.length, args.out.cols()};
  parallel_for(ctx, seq.batch * attention.heads, [&](std::int64_t row) {
    const std::int64_t b = row / attention.heads;
    const std::int64_t h = row % attention.heads;
    const Head head = head_of_qkv(attention, seq, args.qkv, b, h);
    head_backward(head, seq, b, args.logsumexp.f32() + row * seq.length,
                  head_of(args.out.reshape(shape), b, h, head.dim),
                  head_of(args.dout.reshape(shape), b, h, head.dim),
                  head_of_qkv(attention, seq, args.dqkv, b, h));
  });
}

void attention_cached(Context& ctx, const Attention& attention, const Sequence& seq,
                      const Tensor& qkv, const KeyValueCache& cache, const Tensor& out) {
  const std::int64_t width = out.cols();
  const std::int64_t blocks = (seq.length + kQueries - 1) / kQueries;
  const Tensor result = out.reshape({seq.batch, seq.length, width});
  for (std::int64_t b = 0; b < seq.batch; ++b) {
    for (std::int64_t t = 0; t < seq.length; ++t) {
      const float* row = qkv.f32() + (b * seq.length + t) * 3 * width;
      const std::int64_t slot = (b * cache.keys.dim(1) + seq.offset_of(b) + t) * width;
      std::memcpy(cache.keys.f32() + slot, row + width, sizeof(float) * width);
      std::memcpy(cache.values.f32() + slot, row + 2 * width, sizeof(float) * width);
    }
  }
  parallel_for(ctx, seq.batch * attention.heads * blocks, [&](std::int64_t task) {
    const std::int64_t row = task / blocks;
    const std::int64_t b = row / attention.heads;
    const std::int64_t h = row % attention.heads;
    Head head = head_of_qkv(attention, seq, qkv, b, h);
    head.k = head_of(cache.keys, b, h, head.dim);
    head.v = head_of(cache.values, b, h, head.dim);
    head.rounding = Rounding::kByRow;
    attend(head, seq, b, task % blocks * kQueries, head_of(result, b, h, head.dim), nullptr);
  });
}

}  // namespace carope::cpu
