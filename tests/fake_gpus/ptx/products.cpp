// Products of matrices that a warp, or four together, hold in registers and in shared memory.
#include <bit>

#include "instructions.h"

namespace carope::ptx {
namespace {

constexpr int kDepth = 16;  // of a product: the elements that are summed over
constexpr int kRows = 16;   // of a warp's result

float low(std::uint32_t pair) { return std::bit_cast<float>(pair << 16); }
float high(std::uint32_t pair) { return std::bit_cast<float>(pair & 0xFFFF0000); }

/// Shared memory lies there in pieces of 16 bytes.
const std::uint16_t* piece_at(const Warp& w, const Instruction& i, std::uint32_t address,
                              int lane) {
  return reinterpret_cast<const std::uint16_t*>(
      w.memory(i, Space::kShared, address, Watched::kBytes, lane));
}

template <bool kTransposed>
void load_matrices(Warp& w, const Instruction& i) {
  if (!w.gather(~Mask{0})) {
    return;
  }
  for (int part = 0; part < 4; ++part) {
    std::uint16_t matrix[8][8];
    for (int row = 0; row < 8; ++row) {
      const int lane = 8 * part + row;
      std::memcpy(matrix[row],
                  piece_at(w, i, static_cast<std::uint32_t>(w.address(i[4], lane)), lane),
                  sizeof(matrix[row]));
    }
    for (int lane = 0; lane < kLanes; ++lane) {
      const int a = lane / 4;
      const int b = lane % 4 * 2;
      const std::uint32_t first = kTransposed ? matrix[b][a] : matrix[a][b];
      const std::uint32_t second = kTransposed ? matrix[b + 1][a] : matrix[a][b + 1];
      w.out<std::uint32_t>(i[part])[lane] = first | second << 16;
    }
  }
}

void store_matrices(Warp& w, const Instruction& i) {
  if (!w.gather(~Mask{0})) {
    return;
  }
  for (int part = 0; part < 4; ++part) {
    const std::uint32_t* const words = w.in<std::uint32_t>(i[part + 1]);
    for (int row = 0; row < 8; ++row) {
      const int lane = 8 * part + row;
      auto* const to = const_cast<std::uint16_t*>(
          piece_at(w, i, static_cast<std::uint32_t>(w.address(i[0], lane)), lane));
      std::memcpy(to, words + 4 * row, 4 * sizeof(std::uint32_t));
      w.block().note_write(reinterpret_cast<const std::byte*>(to), Watched::kBytes, w.number());
    }
  }
  w.fall_apart(false);
}

/// A warp's left factor: its rows.
using Left = float[kRows][kDepth];

void read_left(const Warp& w, const Operand* parts, Left& left) {
  for (int part = 0; part < 4; ++part) {
    const std::uint32_t* const words = w.in<std::uint32_t>(parts[part]);
    for (int a = 0; a < 8; ++a) {
      float* const to = left[a + part % 2 * 8] + part / 2 * 8;
      for (int b = 0; b < 4; ++b) {
        to[2 * b] = low(words[4 * a + b]);
        to[2 * b + 1] = high(words[4 * a + b]);
      }
    }
  }
}

/// Adds the product to what lanes hold as [4 n + 2 half + i] of row 8 half + lane / 4 and column
/// 8 n + 2 (lane % 4) + i; or replaces it.
template <int kColumns>
void multiply(const Warp& w, const Operand* to, const Operand* addend, const Left& left,
              const float (&right)[kDepth][kColumns], bool add) {
  float sums[kRows][kColumns];
  const auto each = [&](const auto& visit) {
    for (int n = 0; n < kColumns / 2; ++n) {
      for (int a = 0; a < 8; ++a) {
        float* const row = sums[n / 2 % 2 * 8 + a] + n / 4 * 8 + n % 2;
        for (int b = 0; b < 4; ++b) {
          visit(n, 4 * a + b, row[2 * b]);
        }
      }
    }
  };
  each([&](int n, int lane, float& sum) { sum = add ? w.in<float>(addend[n])[lane] : 0.0F; });
  for (int row = 0; row < kRows; ++row) {
    for (int k = 0; k < kDepth; ++k) {
      const float factor = left[row][k];
      for (int column = 0; column < kColumns; ++column) {
        sums[row][column] += factor * right[k][column];
      }
    }
  }
  each([&](int n, int lane, const float& sum) { w.out<float>(to[n])[lane] = sum; });
}

void warp_product(Warp& w, const Instruction& i) {
  constexpr int kColumns = 8;
  if (!w.gather(~Mask{0})) {
    return;
  }
  Left left;
  read_left(w, i.operands + 4, left);
  float right[kDepth][kColumns];
  for (int part = 0; part < 2; ++part) {
    const std::uint32_t* const words = w.in<std::uint32_t>(i[8 + part]);
    for (int lane = 0; lane < kLanes; ++lane) {
      const int k = lane % 4 * 2 + part * 8;
      right[k][lane / 4] = low(words[lane]);
      right[k + 1][lane / 4] = high(words[lane]);
    }
  }
  // A lane's four are [2 half + i] here.
  multiply<kColumns>(w, i.operands, i.operands + 10, left, right, true);
}

/// What a descriptor says of a factor in shared memory: rows of 128 bytes whose pieces of 16 are
/// permuted. What is read of it must stay until the product was waited for.
class Factor {
 public:
  Factor(Warp& w, const Instruction& i, std::uint64_t descriptor)
      : w_(w), i_(i), descriptor_(descriptor) {
    constexpr std::uint64_t kLayout = std::uint64_t{1} << 62 | std::uint64_t{1024 >> 4} << 32;
    constexpr std::uint64_t kFields = ~(std::uint64_t{0x3FFF} << 16 | 0x3FFF);
    if ((descriptor & kFields) != kLayout) {
      w.fail(i, 0, "a factor's layout that is not known");
    }
  }

  /// Calls visit(row, column, value) for the elements from `first` on, `count` of the result by
  /// kDepth of the sum.
  template <class Visit>
  void read(bool along_sum, int first, int count, const Visit& visit) const {
    constexpr int kPiece = 8;  // elements
    if (along_sum) {
      for (int k = 0; k < kDepth; ++k) {
        for (int n = first; n < first + count; n += kPiece) {
          const std::uint16_t* const piece = at(static_cast<std::uint32_t>(k * 128 + n % 64 * 2),
                                                static_cast<std::uint32_t>(n / 64) * next());
          for (int j = 0; j < kPiece; ++j) {
            visit(n - first + j, k, low(piece[j]));
          }
        }
      }
      return;
    }
    for (int n = first; n < first + count; ++n) {
      for (int k = 0; k < kDepth; k += kPiece) {
        const std::uint16_t* const piece = at(static_cast<std::uint32_t>(n * 128 + k * 2), 0);
        for (int j = 0; j < kPiece; ++j) {
          visit(n - first, k + j, low(piece[j]));
        }
      }
    }
  }

 private:
  std::uint32_t next() const { return static_cast<std::uint32_t>(descriptor_ >> 16 & 0x3FFF) << 4; }
  const std::uint16_t* at(std::uint32_t offset, std::uint32_t farther) const {
    const std::uint32_t address =
        (static_cast<std::uint32_t>(descriptor_ & 0x3FFF) << 4) + offset + farther;
    const std::uint16_t* const found = piece_at(w_, i_, address ^ (address >> 7 & 7) << 4, 0);
    const auto* const bytes = reinterpret_cast<const std::byte*>(found);
    if (w_.block().is_unfenced(bytes, Watched::kBytes)) {
      w_.fail(i_, 0, "a factor was written, and not fenced");
    }
    w_.factors.push_back({Watched(bytes), w_.product_groups});
    return found;
  }

  Warp& w_;
  const Instruction& i_;
  std::uint64_t descriptor_;
};

template <int kColumns>
void group_product(Warp& w, const Instruction& i) {
  if (!w.gather(~Mask{0})) {
    return;
  }
  constexpr int kSums = kColumns / 2;
  const auto is_set = [&](const Operand& from) { return *w.in<std::uint32_t>(from) != 0; };
  Left left;
  const Operand* next = i.operands + kSums;
  const bool in_registers = next[0].bytes == 4;
  const Operand* const right_at = next + (in_registers ? 4 : 1);
  if (in_registers) {
    read_left(w, next, left);
  } else {
    Factor(w, i, *w.in<std::uint64_t>(next[0]))
        .read(is_set(right_at[4]), w.number() % 4 * kRows, kRows,
              [&](int row, int k, float value) { left[row][k] = value; });
  }
  static thread_local float right[kDepth][kColumns];
  Factor(w, i, *w.in<std::uint64_t>(right_at[0]))
      .read(is_set(i[i.count - 1]), 0, kColumns,
            [&](int column, int k, float value) { right[k][column] = value; });
  multiply<kColumns>(w, i.operands, i.operands, left, right, (w.predicate(right_at[1]) & 1) != 0);
}

void close_products(Warp& w, const Instruction&) {
  if (w.gather(~Mask{0})) {
    ++w.product_groups;
  }
}
void wait_for_products(Warp& w, const Instruction& i) {
  if (!w.gather(~Mask{0})) {
    return;
  }
  const int pending = static_cast<int>(*w.in<std::uint32_t>(i[0]));
  std::erase_if(w.factors, [&](const Warp::Factor& factor) {
    const bool over = factor.group < w.product_groups - pending;
    if (over && factor.piece.changed()) {
      w.fail(i, 0, "a factor changed before the product was done");
    }
    return over;
  });
}

}  // namespace

void add_products(Table& table) {
  table["ldmatrix.sync.aligned.m8n8.x4.shared.b16"] = &load_matrices<false>;
  table["ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16"] = &load_matrices<true>;
  table["stmatrix.sync.aligned.m8n8.x4.shared.b16"] = &store_matrices;
  table["mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32"] = &warp_product;
  table["wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16"] = &group_product<64>;
  table["wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16"] = &group_product<128>;
  table["wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16"] = &group_product<256>;
  table["wgmma.commit_group.sync.aligned"] = &close_products;
  table["wgmma.wait_group.sync.aligned"] = &wait_for_products;
}

}  // namespace carope::ptx
