// Copies to shared memory that arrive later, and the barriers there that count them.
#include <algorithm>
#include <bit>

#include "instructions.h"
#include "tensor_map.h"

namespace carope::ptx {
namespace {

/// What the eight bytes of a barrier hold here.
struct Barrier {
  std::uint16_t wanted, missing;
  std::int32_t phase : 1, bytes : 31;

  void settle() {
    if (missing == 0 && bytes == 0) {
      missing = wanted;
      phase = ~phase;
    }
  }
};
static_assert(sizeof(Barrier) == 8);

constexpr std::uint16_t kNone = 0xFFFF;  // threads wanted where nobody has written

Barrier& memory_of_barrier(Warp& w, const Instruction& i, std::uint64_t at, int lane) {
  return *reinterpret_cast<Barrier*>(w.memory(i, Space::kShared, at, sizeof(Barrier), lane));
}
Barrier& barrier_at(Warp& w, const Instruction& i, std::uint64_t at, int lane) {
  Barrier& found = memory_of_barrier(w, i, at, lane);
  if (found.wanted == kNone) {
    w.fail(i, lane, "a barrier that nobody has set up");
  }
  return found;
}

void init_barrier(Warp& w, const Instruction& i) {
  for_each_lane(w, [&](int lane) {
    const std::uint32_t count = w.in<std::uint32_t>(i[1])[lane];
    if (count == 0 || count >= kNone) {
      w.fail(i, lane, "a barrier for no thread, or for more than there are");
    }
    const auto threads = static_cast<std::uint16_t>(count);
    memory_of_barrier(w, i, w.address(i[0], lane), lane) = {threads, threads, 0, 0};
  });
}

void arrive_at(Warp& w, const Instruction& i, int lane, Barrier& barrier, std::uint32_t times) {
  if (barrier.missing < times) {
    w.fail(i, lane, "more threads arrive at a barrier than it waits for");
  }
  barrier.missing = static_cast<std::uint16_t>(barrier.missing - times);
  barrier.settle();
}
void arrive(Warp& w, const Instruction& i) {
  for_each_lane(w, [&](int lane) {
    arrive_at(w, i, lane, barrier_at(w, i, w.address(i[1], lane), lane),
              i.count > 2 ? w.in<std::uint32_t>(i[2])[lane] : 1);
  });
  w.block().machine().note_event();
}
void arrive_and_expect(Warp& w, const Instruction& i) {
  for_each_lane(w, [&](int lane) {
    Barrier& barrier = barrier_at(w, i, w.address(i[1], lane), lane);
    barrier.bytes += w.in<std::int32_t>(i[2])[lane];
    arrive_at(w, i, lane, barrier, 1);
  });
  w.block().machine().note_event();
}

/// Whether the phase of a parity is over.
Mask opened(Warp& w, const Instruction& i) {
  Mask result = 0;
  for_each_lane(w, [&](int lane) {
    const Barrier& barrier = barrier_at(w, i, w.address(i[1], lane), lane);
    const bool now = barrier.phase != 0;
    result |= static_cast<Mask>(now != ((w.in<std::uint32_t>(i[2])[lane] & 1) != 0)) << lane;
  });
  return result;
}
void test(Warp& w, const Instruction& i) {
  w.set_predicate(i[0], opened(w, i));
  w.note_look();
}
void wait(Warp& w, const Instruction& i) {
  const Mask open = opened(w, i);
  w.set_predicate(i[0], open);
  if ((open & w.mask()) != w.mask()) {
    w.let_others(false);
  }
}

void map_to_peer(Warp& w, const Instruction& i) {
  for_each_lane(w, [&](int lane) {
    w.out<std::uint32_t>(i[0])[lane] =
        w.in<std::uint32_t>(i[1])[lane] | (w.in<std::uint32_t>(i[2])[lane] + 1) << kRankBit;
  });
}

[[noreturn]] void fail_for_change(const Kernel& kernel) {
  throw Fault(kernel.name + ": the source of a copy changed before it had come");
}

/// Of each lane, which waits for its own.
void copy(Warp& w, const Instruction& i) {
  for_each_lane(w, [&](int lane) {
    const auto bytes = static_cast<std::size_t>(w.in<std::uint32_t>(i[2])[lane]);
    const auto some = static_cast<std::size_t>(w.in<std::uint32_t>(i[i.count - 1])[lane]);
    const std::uint64_t from = w.address(i[1], lane);
    if (some > bytes || from % bytes != 0 || (some > 0 && !allocations().has(from, some))) {
      w.fail(i, lane, "a copy of more than it may be, or from no allocation");
    }
    const auto* const source = reinterpret_cast<const std::byte*>(from);
    std::byte* const target = w.memory(i, Space::kShared, w.address(i[0], lane), bytes, lane);
    w.copies.push_back(
        {lane, target, source, {source, source + some}, bytes - some, w.copy_groups[lane]});
    std::fill_n(target, bytes, kUnwritten);
  });
}
void close_copies(Warp& w, const Instruction&) {
  for_each_lane(w, [&](int lane) { ++w.copy_groups[lane]; });
}
void finish_copies(Warp& w, int pending, bool unclosed) {
  std::erase_if(w.copies, [&](const Warp::Copy& c) {
    const bool over =
        (w.mask() >> c.lane & 1) != 0 && (unclosed || c.group < w.copy_groups[c.lane] - pending);
    if (over) {
      if (!std::equal(c.begun.begin(), c.begun.end(), c.from)) {
        fail_for_change(w.block().kernel());
      }
      std::fill_n(std::copy(c.begun.begin(), c.begun.end(), c.to), c.zeros, std::byte{0});
      w.block().note_write(c.to, c.begun.size() + c.zeros, w.number());
    }
    return over;
  });
}
void wait_for_copies(Warp& w, const Instruction& i) {
  finish_copies(w, static_cast<int>(*w.in<std::uint32_t>(i[0])), false);
}
void wait_for_all_copies(Warp& w, const Instruction&) { finish_copies(w, 0, true); }

/// A copy that the machine makes to a block: `read` gives the bytes it brings, now as well as when
/// they come. Until then the target has nothing.
template <class Read>
void begin_copy(Block& block, std::byte* target, Barrier& barrier, const Read& read) {
  std::vector<std::byte> begun = read();
  std::fill_n(target, begun.size(), kUnwritten);
  block.machine().add_copy(block, [=, &block, &barrier, begun = std::move(begun)] {
    if (read() != begun) {
      fail_for_change(block.kernel());
    }
    std::copy(begun.begin(), begun.end(), target);
    barrier.bytes -= static_cast<std::int32_t>(begun.size());
    barrier.settle();
    block.machine().note_event();
  });
}

void copy_bytes(Warp& w, const Instruction& i) {
  for_each_lane(w, [&](int lane) {
    constexpr std::size_t kPiece = 16;
    const auto bytes = static_cast<std::size_t>(w.in<std::uint32_t>(i[2])[lane]);
    const std::uint64_t to = w.address(i[0], lane);
    const std::uint64_t from = w.address(i[1], lane);
    if (to % kPiece != 0 || from % kPiece != 0 || bytes % kPiece != 0) {
      w.fail(i, lane, "a copy that is not in pieces of 16 bytes");
    }
    std::byte* const target = w.block().shared(static_cast<std::uint32_t>(to), bytes);
    if (target == nullptr || !allocations().has(from, bytes)) {
      w.fail(i, lane, "a copy from or to memory that is not there");
    }
    if (w.block().is_unfenced(target, bytes)) {
      w.fail(i, lane, "a copy to where was written, and not fenced");
    }
    begin_copy(w.block(), target, barrier_at(w, i, w.address(i[3], lane), lane), [=] {
      const auto* const source = reinterpret_cast<const std::byte*>(from);
      return std::vector<std::byte>(source, source + bytes);
    });
  });
}

constexpr std::uint32_t kElement = 2;

/// Rows of 128 bytes whose pieces of 16 are permuted; zeros where the matrix ends.
std::vector<std::byte> read_tile(std::uint32_t address, const TensorMap& map, std::int32_t column,
                                 std::int32_t row) {
  constexpr std::uint32_t kPiece = 16;
  const std::uint32_t row_bytes = map.tile_columns * kElement;
  std::vector<std::byte> tile(std::size_t{row_bytes} * map.tile_rows);
  for (std::uint32_t y = 0; y < map.tile_rows; ++y) {
    for (std::uint32_t x = 0; x < row_bytes; x += kElement) {
      const std::int64_t from_row = row + static_cast<std::int64_t>(y);
      const std::int64_t from_column = column + static_cast<std::int64_t>(x / kElement);
      std::uint16_t value = 0;
      if (from_row >= 0 && from_row < static_cast<std::int64_t>(map.rows) && from_column >= 0 &&
          from_column < static_cast<std::int64_t>(map.columns)) {
        std::memcpy(&value,
                    reinterpret_cast<const std::byte*>(map.address) +
                        static_cast<std::uint64_t>(from_row) * map.row_bytes +
                        static_cast<std::uint64_t>(from_column) * kElement,
                    kElement);
      }
      const std::uint32_t at = address + y * row_bytes + x;
      std::memcpy(tile.data() + ((at ^ (at >> 7 & 7) * kPiece) - address), &value, kElement);
    }
  }
  return tile;
}

/// Operands: the shared address, the map, column, row, the barrier and, where all blocks of some
/// get it, these as bits.
template <bool kForMany>
void copy_tile(Warp& w, const Instruction& i) {
  for_each_lane(w, [&](int lane) {
    TensorMap map;
    std::memcpy(&map, w.memory(i, Space::kGeneric, w.address(i[1], lane), 64, lane), sizeof(map));
    const auto column = w.in<std::int32_t>(i[2])[lane];
    const auto row = w.in<std::int32_t>(i[3])[lane];
    const auto to = static_cast<std::uint32_t>(w.address(i[0], lane));
    const auto barrier = static_cast<std::uint32_t>(w.address(i[4], lane));
    const std::size_t bytes = std::size_t{map.tile_columns} * map.tile_rows * kElement;
    const std::uint64_t source = (map.rows - 1) * map.row_bytes + map.columns * kElement;
    constexpr std::uint32_t kRoom = 1024;
    if (to % kRoom != 0 || !allocations().has(map.address, source)) {
      w.fail(i, lane, "a tile whose shared address is no multiple of 1024, or of no allocation");
    }
    const unsigned own = w.block().rank();
    const unsigned mask = kForMany ? w.in<std::uint16_t>(i[5])[lane] : 1U << own;
    for (unsigned rank = 0; mask >> rank != 0; ++rank) {
      if ((mask >> rank & 1) == 0) {
        continue;
      }
      Block& block = w.block().machine().peer(w.block(), rank);
      std::byte* const target = block.shared(to, bytes);
      auto* const counts = reinterpret_cast<Barrier*>(block.shared(barrier, sizeof(Barrier)));
      if (target == nullptr || counts == nullptr || counts->wanted == kNone) {
        w.fail(i, lane, "a tile to memory that is not there, or with no barrier");
      }
      if (block.is_unfenced(target, bytes)) {
        w.fail(i, lane, "a tile to where was written, and not fenced");
      }
      begin_copy(block, target, *counts, [=] { return read_tile(to, map, column, row); });
    }
  });
}

}  // namespace

void add_copies(Table& table) {
  table["mbarrier.init.shared.b64"] = &init_barrier;
  table["mbarrier.arrive.shared.b64"] = table["mbarrier.arrive.shared::cluster.b64"] = &arrive;
  table["mbarrier.arrive.expect_tx.shared::cta.b64"] = &arrive_and_expect;
  table["mbarrier.test_wait.parity.shared.b64"] = &test;
  table["mbarrier.try_wait.parity.shared.b64"] = &wait;
  table["mapa.shared::cluster.u32"] = &map_to_peer;
  table["cp.async.cg.shared.global"] = table["cp.async.ca.shared.global"] = &copy;
  table["cp.async.commit_group"] = &close_copies;
  table["cp.async.wait_group"] = &wait_for_copies;
  table["cp.async.wait_all"] = &wait_for_all_copies;
  table["cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"] = &copy_bytes;
  const std::string tile =
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes";
  table[tile] = &copy_tile<false>;
  table[tile + ".multicast::cluster"] = &copy_tile<true>;
}

}  // namespace carope::ptx
