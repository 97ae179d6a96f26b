#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>

#include "support/cases.h"
#include "support/op_run.h"

namespace carope::test {

using reference::Values;

std::string suffix(Write write) { return write == Write::kAccumulate ? "_accumulate" : ""; }

std::string describe(const reference::Sequence& seq) {
  std::string text = fmt::format("B{}_T{}", seq.batch, seq.length);
  if (!seq.document_starts.empty()) {
    text += "_documents";
    for (const auto& starts : seq.document_starts) {
      text += fmt::format("_{}", fmt::join(starts, "_"));
    }
  }
  return text + (seq.offset > 0 ? fmt::format("_from{}", seq.offset) : "") +
         (seq.offset_step > 0 ? fmt::format("_step{}", seq.offset_step) : "");
}

std::vector<std::int32_t> random_ids(const std::string& stream, std::int64_t size,
                                     std::int64_t count, std::int64_t ignore_every) {
  std::vector<std::int32_t> ids;
  for (std::int64_t i = 0; i < size; ++i) {
    const double fraction = 0.5 * (uniform(stream, static_cast<std::uint64_t>(i)) + 1.0);
    const bool ignored = ignore_every > 0 && i % ignore_every == 0;
    ids.push_back(ignored ? -1 : static_cast<std::int32_t>(fraction * static_cast<double>(count)));
  }
  return ids;
}

void add_layout(OpCase& op, const reference::Sequence& seq) {
  if (seq.offset > 0) {
    std::vector<std::int32_t> offsets;
    for (std::int64_t b = 0; b < seq.batch; ++b) {
      offsets.push_back(static_cast<std::int32_t>(seq.offset + b * seq.offset_step));
    }
    op.constants.push_back({{seq.batch}, offsets});
  }
  if (seq.document_starts.empty()) {
    return;
  }
  std::vector<std::int32_t> starts;
  for (std::int64_t n = 0; n < seq.tokens(); ++n) {
    starts.push_back(static_cast<std::int32_t>(seq.start_of(n / seq.length, n % seq.length)));
  }
  op.constants.push_back({{seq.batch, seq.length}, starts});
}

Sequence bind(const reference::Sequence& seq, const OpTensors& t) {
  return {.batch = seq.batch,
          .length = seq.length,
          .document_start = seq.document_starts.empty() ? Tensor{} : t.constants.back(),
          .offsets = seq.offset > 0 ? t.constants.back() : Tensor{}};
}

void add_piece_offsets(OpCase& op, const std::vector<std::int64_t>& pieces, std::int64_t batch) {
  std::int32_t seen = 0;
  for (const std::int64_t length : pieces) {
    op.constants.push_back(
        {{batch}, std::vector<std::int32_t>(static_cast<std::size_t>(batch), seen)});
    seen += static_cast<std::int32_t>(length);
  }
}

Values join_pieces(const std::vector<Values>& pieces, const std::vector<std::int64_t>& lengths,
                   std::int64_t batch) {
  const std::int64_t width = reference::size(pieces[0]) / (batch * lengths[0]);
  Values whole;
  for (std::int64_t b = 0; b < batch; ++b) {
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      const auto row = pieces[i].begin() + b * lengths[i] * width;
      whole.insert(whole.end(), row, row + lengths[i] * width);
    }
  }
  return whole;
}

std::vector<Values> split_pieces(const Values& whole, const std::vector<std::int64_t>& lengths,
                                 std::int64_t batch) {
  const std::int64_t length = std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
  const std::int64_t width = reference::size(whole) / (batch * length);
  std::vector<Values> pieces(lengths.size());
  auto next = whole.begin();
  for (std::int64_t b = 0; b < batch; ++b) {
    for (std::size_t i = 0; i < lengths.size(); ++i) {
      pieces[i].insert(pieces[i].end(), next, next + lengths[i] * width);
      next += lengths[i] * width;
    }
  }
  return pieces;
}

}  // namespace carope::test
