#include "ops/normed_linear.h"

namespace carope {

namespace cuda {
/// Returns false, having done nothing, unless there is one row, of a common width.
bool normed_row(Context& ctx, const NormedLinear& args);
}  // namespace cuda

void normed_linear(Context& ctx, const NormedLinear& args, Rounding rounding) {
  check<ShapeError>(args.x && args.weight && args.y && args.weight.cols() == args.x.cols(),
                    "a layer and the norm before it do not fit together");
  check_shape(args.y, {args.x.rows(), args.weight.rows()}, "the result of a layer behind a norm");
  if (ctx.device().kind == DeviceKind::kCuda && cuda::normed_row(ctx, args)) {
    if (args.gate.weight) {
      linear(ctx, args.normed.y, args.gate.weight, args.gate.bias, args.gate.logits);
    }
    return;
  }
  layer_norm(ctx, args.x, args.norm, args.normed, args.gate);
  if (args.gelu.values) {
    linear_gelu(ctx, args.normed.y, args.weight, args.bias, args.gelu, args.y, rounding);
  } else {
    linear(ctx, args.normed.y, args.weight, args.bias, args.y, rounding);
  }
}

}  // namespace carope
