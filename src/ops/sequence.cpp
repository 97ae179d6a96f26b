#include "ops/sequence.h"

namespace carope {

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
}

}  // namespace carope
