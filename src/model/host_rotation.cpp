#include "model/host_rotation.h"

#include <fmt/format.h>

#include <utility>

namespace carope {
namespace {

/// Whether a context has warned that this is slow. Only rank 0 warns.
struct Warning {
  explicit Warning(const Context& ctx) : given(!ctx.speaks()) {}

  bool given;
};

/// A tensor's copy in this process's memory.
template <class T>
struct HostCopy {
  std::vector<T> values;
  Tensor tensor;

  HostCopy(Context& ctx, const Tensor& from) {
    if (from) {
      values.resize(from.bytes() / sizeof(T));
      download(ctx, from, values.data());
      tensor = Tensor(values.data(), {from.shape(), from.dtype()});
    }
  }
};

float to_float(float value) { return value; }
void store(float value, float& to) { to = value; }
void store(float value, Bf16& to) { to = to_bf16(value); }

template <class T>
void map_heads(const Sequence& seq, const CustomTurns::Map& map, const Heads& heads) {
  std::vector<float> vector(static_cast<std::size_t>(heads.dim));
  for (std::int64_t b = 0; b < seq.batch; ++b) {
    for (std::int64_t t = 0; t < seq.length; ++t) {
      for (std::int64_t h = 0; h < heads.count; ++h) {
        T* values = heads.at<T>(b, t, h);
        for (std::size_t i = 0; i < vector.size(); ++i) {
          vector[i] = to_float(values[i]);
        }
        map(seq.position_of(b, t), vector);
        for (std::size_t i = 0; i < vector.size(); ++i) {
          store(vector[i], values[i]);
        }
      }
    }
  }
}

}  // namespace

void rotate_on_host(Context& ctx, const Sequence& seq, const CustomTurns::Map& map, const Heads& q,
                    const Heads& k, const Tensor& qkv) {
  if (!std::exchange(ctx.state<Warning>().given, true)) {
    fmt::print(stderr, "warning: this encoding rotates by functions on the host, which is slow\n");
  }
  HostCopy<std::byte> rows(ctx, qkv);
  const HostCopy<std::int32_t> starts(ctx, seq.document_start);
  const HostCopy<std::int32_t> offsets(ctx, seq.offsets);
  wait(ctx);
  Sequence here = seq;
  here.document_start = starts.tensor;
  here.offsets = offsets.tensor;
  for (Heads heads : {q, k}) {
    const auto begin = static_cast<std::byte*>(heads.data) - static_cast<std::byte*>(qkv.raw());
    heads.data = rows.values.data() + begin;
    if (qkv.dtype() == DType::kBF16) {
      map_heads<Bf16>(here, map, heads);
    } else {
      map_heads<float>(here, map, heads);
    }
  }
  upload(ctx, rows.values.data(), qkv);
  wait(ctx);  // the copy is about to end
}

}  // namespace carope
