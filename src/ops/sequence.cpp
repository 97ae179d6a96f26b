#include "ops/sequence.h"

#include <algorithm>

namespace carope {

void check_documents(const Sequence& seq) {
  if (!seq.document_start) {
    return;
  }
  check_shape(seq.document_start, {seq.batch, seq.length}, "document_start");
  if (seq.document_start.device().kind != DeviceKind::kCpu) {
    return;  // who brought them there has looked at them
  }
  for (std::int64_t b = 0; b < seq.batch; ++b) {
    for (std::int64_t t = 0; t < seq.length; ++t) {
      const std::int64_t start = seq.start_of(b, t);
      check<ShapeError>(
          start == t || (t > 0 && start == seq.start_of(b, t - 1)),
          "document_start = {} at token {} of row {}: it must be {} or, where a document "
          "begins, {}",
          start, t, b, t > 0 ? seq.start_of(b, t - 1) : 0, t);
    }
  }
}

void check_sequence(const Sequence& seq, const Tensor& tensor, const char* name) {
  check<ShapeError>(static_cast<bool>(tensor), "{} is missing", name);
  check<ShapeError>(tensor.rows() == seq.tokens(),
                    "{} has {} rows, expected {} sequences of {} tokens", name, tensor.rows(),
                    seq.batch, seq.length);
  if (seq.document_start) {
    check_shape(seq.document_start, {seq.batch, seq.length}, "document_start");
    check<ShapeError>(!seq.offsets,
                      "packed documents cannot continue what earlier calls have seen");
  }
  if (seq.offsets) {
    check_shape(seq.offsets, {seq.batch}, "the offsets of a sequence");
  }
}

std::int64_t longest_row(const Sequence& seq) {
  std::int64_t seen = 0;
  if (seq.offsets && seq.offsets.device().kind == DeviceKind::kCpu) {
    for (std::int64_t b = 0; b < seq.batch; ++b) {
      seen = std::max(seen, seq.offset_of(b));
    }
  }
  return seen + seq.length;
}

}  // namespace carope
