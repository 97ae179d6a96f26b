#include "ops/embedding.h"

#include "ops/dispatch.h"

namespace carope {

namespace cpu {
decltype(carope::embedding) embedding;
decltype(carope::embedding_backward) embedding_backward;
decltype(carope::add_positions) add_positions;
decltype(carope::add_positions_backward) add_positions_backward;
}  // namespace cpu

namespace cuda {
decltype(carope::embedding) embedding;
decltype(carope::embedding_backward) embedding_backward;
decltype(carope::add_positions) add_positions;
decltype(carope::add_positions_backward) add_positions_backward;
}  // namespace cuda

namespace {

void check_lookup(const Tensor& tokens, const Tensor& table, const Tensor& rows) {
  check<ShapeError>(tokens && table && rows, "a tensor of an embedding is missing");
  check<ShapeError>(
      table.shape().rank() == 2 && table.cols() == rows.cols() && tokens.size() == rows.rows(),
      "{} tokens cannot be looked up in a table {} to give {}", tokens.size(), table.shape(),
      rows.shape());
  if (tokens.device().kind != DeviceKind::kCpu) {
    return;  // who brought the tokens there has looked at them
  }
  const auto* ids = tokens.data<std::int32_t>();
  for (std::int64_t n = 0; n < tokens.size(); ++n) {
    check<ShapeError>(
        0 <= ids[n] && ids[n] < table.dim(0),
        "token {} at index {} is outside the vocabulary of {}; the data and the model do not "
        "belong together",
        ids[n], n, table.dim(0));
  }
}

void check_positions(const Sequence& seq, const Tensor& table, const Tensor& x) {
  check_sequence(seq, x, "the tensor that positions are added to");
  check<ShapeError>(table && table.shape().rank() == 2 && table.cols() == x.cols(),
                    "the table of positions has another width than the model");
  check<ConfigError>(longest_row(seq) <= table.dim(0),
                     "length = {} is past the {} positions of the table; use at most {}",
                     longest_row(seq), table.dim(0), table.dim(0));
}

}  // namespace

void embedding(Context& ctx, const Tensor& tokens, const Tensor& table, const Tensor& out) {
  check_lookup(tokens, table, out);
  dispatch(ctx, cpu::embedding, cuda::embedding, tokens, table, out);
}

void embedding_backward(Context& ctx, const Tensor& tokens, const Tensor& dout,
                        const Tensor& dtable) {
  check_lookup(tokens, dtable, dout);
  dispatch(ctx, cpu::embedding_backward, cuda::embedding_backward, tokens, dout, dtable);
}

void add_positions(Context& ctx, const Sequence& seq, const Tensor& table, const Tensor& x) {
  check_positions(seq, table, x);
  dispatch(ctx, cpu::add_positions, cuda::add_positions, seq, table, x);
}

void add_positions_backward(Context& ctx, const Sequence& seq, const Tensor& dx,
                            const Tensor& dtable, Write write) {
  check_positions(seq, dtable, dx);
  dispatch(ctx, cpu::add_positions_backward, cuda::add_positions_backward, seq, dx, dtable, write);
}

}  // namespace carope
