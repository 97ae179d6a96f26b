#include "model/batch.h"

#include <algorithm>
#include <limits>
#include <numeric>

namespace carope {
namespace {

void check_ids(const Tensor& ids, std::int64_t lowest, std::int64_t vocabulary, const char* what) {
  const auto* values = ids.data<std::int32_t>();
  for (std::int64_t n = 0; n < ids.size(); ++n) {
    check<ShapeError>(lowest <= values[n] && values[n] < vocabulary,
                      "{} {} at index {} is outside the vocabulary of {}; the data and the model "
                      "do not belong together",
                      what, values[n], n, vocabulary);
  }
}

std::int64_t count(const Tensor& targets) {
  const auto* ids = targets.data<std::int32_t>();
  return std::count_if(ids, ids + targets.size(), [](std::int32_t id) { return id >= 0; });
}

}  // namespace

void check_tokens(const Tensor& tokens, std::int64_t vocabulary) {
  check_ids(tokens, 0, vocabulary, "token");
}

std::vector<std::int64_t> count_targets(const Tensor& targets) {
  std::vector<std::int64_t> counts;
  for (std::int64_t row = 0; row < targets.rows(); ++row) {
    counts.push_back(count(targets.slice_rows(row, row + 1)));
  }
  return counts;
}

std::int64_t Batch::counted() const {
  return counts.empty() ? count(targets)
                        : std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
}

Batch Batch::slice(std::int64_t row, std::int64_t rows) const {
  const auto cut = [&](const Tensor& tensor) {
    return tensor ? tensor.slice_rows(row, row + rows) : tensor;
  };
  return {.seq = {.batch = rows,
                  .length = seq.length,
                  .document_start = cut(seq.document_start),
                  .offsets = seq.offsets ? cut(seq.offsets.reshape({seq.batch, 1})).reshape({rows})
                                         : Tensor{}},
          .tokens = cut(tokens),
          .targets = cut(targets),
          .counts = counts.empty()
                        ? counts
                        : std::vector(counts.begin() + row, counts.begin() + row + rows)};
}

Batch DeviceBatch::upload(Context& ctx, const Batch& host, std::int64_t vocabulary) {
  if (ctx.device() == Device{}) {
    return host;
  }
  check_tokens(host.tokens, vocabulary);
  if (host.targets) {
    constexpr std::int64_t kLowest = std::numeric_limits<std::int32_t>::min();
    check_ids(host.targets, kLowest, vocabulary, "target");
  }
  check_documents(host.seq);
  const auto same = [](const Tensor& a, const Tensor& b) {
    return static_cast<bool>(a) == static_cast<bool>(b) && a.shape() == b.shape();
  };
  if (!same(room_.tokens, host.tokens) || !same(room_.targets, host.targets) ||
      !same(room_.seq.document_start, host.seq.document_start)) {
    arena_ = Arena::plan(ctx.device(), [&](Arena& arena) {
      const auto room = [&](const Tensor& tensor) {
        return tensor ? arena.take({tensor.shape(), tensor.dtype()}) : Tensor{};
      };
      room_.tokens = room(host.tokens);
      room_.targets = room(host.targets);
      room_.seq.document_start = room(host.seq.document_start);
    });
  }
  Batch batch = room_;
  batch.seq = host.seq;
  batch.seq.document_start = room_.seq.document_start;
  carope::upload(ctx, host.tokens.raw(), batch.tokens);
  if (host.targets) {
    carope::upload(ctx, host.targets.raw(), batch.targets);
    batch.counts = count_targets(host.targets);
  }
  if (host.seq.document_start) {
    carope::upload(ctx, host.seq.document_start.raw(), batch.seq.document_start);
  }
  return batch;
}

}  // namespace carope
