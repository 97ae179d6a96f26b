#include "ops/sequence.h"

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
    check<ShapeError>(seq.offset == 0, "packed documents cannot be decoded from offset {}",
                      seq.offset);
  }
  if (seq.offset_on_device) {
    check_shape(seq.offset_on_device, {1}, "the offset on the device");
    check<ShapeError>(seq.length == 1, "{} tokens cannot be recorded for other offsets; 1 can",
                      seq.length);
  }
}

}  // namespace carope
