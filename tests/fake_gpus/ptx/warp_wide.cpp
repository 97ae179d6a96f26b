// Instructions by which lanes, warps and blocks hear of each other.
#include <bit>

#include "instructions.h"

namespace carope::ptx {
namespace {

int first_lane(const Warp& w) { return std::countr_zero(w.mask()); }

enum class Shuffle { kButterfly, kUp, kDown, kIndex };

/// Whether all lanes are there that those here name.
bool gather_named(Warp& w, const Instruction& i, const Operand& masks) {
  Mask wanted = 0;
  for_each_lane(w, [&](int lane) {
    const Mask own = w.in<Mask>(masks)[lane];
    if ((own >> lane & 1) == 0) {
      w.fail(i, lane, "the mask does not have the lane itself");
    }
    wanted |= own;
  });
  return w.gather(wanted);
}

template <Shuffle kHow>
void shuffle(Warp& w, const Instruction& i) {
  const bool tells = i[1].bytes == 0 && !i[1].constant;
  const int a = tells ? 2 : 1;
  if (!gather_named(w, i, i[a + 3])) {
    return;
  }
  std::uint32_t results[kLanes];
  Mask in_range = 0;
  for (int lane = 0; lane < kLanes; ++lane) {
    constexpr int kBits = 0x1F;
    const auto by = static_cast<int>(w.in<std::uint32_t>(i[a + 1])[lane] & kBits);
    const std::uint32_t limits = w.in<std::uint32_t>(i[a + 2])[lane];
    const int clamp = static_cast<int>(limits) & kBits;
    const int segment = static_cast<int>(limits >> 8) & kBits;
    const int most = (lane & segment) | (clamp & ~segment);
    int from = lane;
    bool valid = false;
    if constexpr (kHow == Shuffle::kUp) {
      from = lane - by;
      valid = from >= most;
    } else {
      from = kHow == Shuffle::kDown        ? lane + by
             : kHow == Shuffle::kButterfly ? lane ^ by
                                           : (lane & segment) | (by & ~segment);
      valid = from <= most;
    }
    from = valid ? from : lane;
    in_range |= static_cast<Mask>(valid) << lane;
    results[lane] =
        (w.mask() >> from & 1) != 0 ? w.in<std::uint32_t>(i[a])[from] : ~std::uint32_t{0};
  }
  for_each_lane(w, [&](int lane) { w.out<std::uint32_t>(i[0])[lane] = results[lane]; });
  if (tells) {
    w.set_predicate(i[1], in_range);
  }
}

void ballot(Warp& w, const Instruction& i) {
  if (gather_named(w, i, i[2])) {
    const Mask votes = w.predicate(i[1]) & w.mask();
    for_each_lane(w, [&](int lane) { w.out<Mask>(i[0])[lane] = votes & w.in<Mask>(i[2])[lane]; });
  }
}
/// Whether any lane of a mask says so, or none does not.
template <bool kAll>
void vote(Warp& w, const Instruction& i) {
  if (!gather_named(w, i, i[2])) {
    return;
  }
  const Mask votes = (kAll ? ~w.predicate(i[1]) : w.predicate(i[1])) & w.mask();
  Mask found = 0;
  for_each_lane(w, [&](int lane) {
    found |= static_cast<Mask>((votes & w.in<Mask>(i[2])[lane]) != 0) << lane;
  });
  w.set_predicate(i[0], kAll ? ~found : found);
}

void sync_warp(Warp& w, const Instruction& i) { gather_named(w, i, i[0]); }

/// A barrier of the block as a warp, all of whose lanes are there, names it.
struct Meeting {
  int barrier;
  unsigned wanted;  // warps; 0: all
  unsigned times;   // it had opened before
};
Meeting meeting(const Warp& w, const Instruction& i, const Operand& number, const Operand* count) {
  const int lane = first_lane(w);
  const std::uint32_t barrier = w.in<std::uint32_t>(number)[lane];
  const std::uint32_t threads = count != nullptr ? w.in<std::uint32_t>(*count)[lane] : 0;
  if (barrier >= Block::kBarriers || threads % kLanes != 0 || (count != nullptr && threads == 0)) {
    w.fail(i, lane, "a barrier that no block has, or not for whole warps");
  }
  const NamedBarrier& before = w.block().barriers[barrier];
  if (before.arrived > 0 && before.wanted != threads / kLanes) {
    w.fail(i, lane, "others who came to this barrier wait for another number of threads");
  }
  return {static_cast<int>(barrier), threads / kLanes, before.times};
}

void sync_block(Warp& w, const Instruction& i) {
  if (!w.gather(~Mask{0})) {
    return;
  }
  const Meeting m = meeting(w, i, i[0], i.count > 1 ? &i[1] : nullptr);
  if (!w.block().arrive(m.barrier, m.wanted, 0)) {
    w.wait_for(m.barrier, m.times);
  }
}
void pass_by(Warp& w, const Instruction& i) {
  if (w.gather(~Mask{0})) {
    const Meeting m = meeting(w, i, i[0], &i[1]);
    w.block().arrive(m.barrier, m.wanted, 0);
  }
}
/// Its result comes with the barrier's opening, to the last to arrive as to the others.
void count_in_block(Warp& w, const Instruction& i) {
  constexpr int kWithThreads = 4;
  if (!w.gather(~Mask{0})) {
    return;
  }
  const Meeting m = meeting(w, i, i[1], i.count == kWithThreads ? &i[2] : nullptr);
  const auto counted = static_cast<unsigned>(std::popcount(w.predicate(i[i.count - 1]) & w.mask()));
  w.block().arrive(m.barrier, m.wanted, counted);
  w.wait_for(m.barrier, m.times, &i[0]);
}

void arrive_at_cluster(Warp& w, const Instruction&) {
  if (w.gather(~Mask{0})) {
    w.cluster_arrivals = w.block().machine().cluster_times(w.block());
    w.block().machine().arrive_at_cluster(w.block());
  }
}
void wait_for_cluster(Warp& w, const Instruction&) {
  if (w.block().machine().cluster_times(w.block()) == w.cluster_arrivals) {
    w.let_others(true);
  }
}

void wait_for_kernels_before(Warp& w, const Instruction&) { w.waited |= w.mask(); }
void fence(Warp& w, const Instruction&) { w.block().fence(w.number()); }
void leave(Warp& w, const Instruction&) { w.leave(); }
void nothing(Warp&, const Instruction&) {}
void nothing_together(Warp& w, const Instruction&) { w.gather(~Mask{0}); }

}  // namespace

void add_warp_wide(Table& table) {
  table["shfl.sync.bfly.b32"] = &shuffle<Shuffle::kButterfly>;
  table["shfl.sync.up.b32"] = &shuffle<Shuffle::kUp>;
  table["shfl.sync.down.b32"] = &shuffle<Shuffle::kDown>;
  table["shfl.sync.idx.b32"] = &shuffle<Shuffle::kIndex>;
  table["vote.sync.ballot.b32"] = table["vote.ballot.sync.b32"] = &ballot;
  table["vote.sync.any.pred"] = &vote<false>;
  table["vote.sync.all.pred"] = &vote<true>;
  table["bar.warp.sync"] = &sync_warp;
  table["bar.sync"] = &sync_block;
  table["bar.arrive"] = &pass_by;
  table["bar.red.popc.u32"] = table["bar.red.or.pred"] = &count_in_block;
  table["barrier.cluster.arrive.release.aligned"] = &arrive_at_cluster;
  table["barrier.cluster.wait.acquire.aligned"] = &wait_for_cluster;
  table["ret"] = table["exit"] = &leave;
  table["griddepcontrol.wait"] = &wait_for_kernels_before;
  table["fence.proxy.async.shared::cta"] = &fence;
  for (const char* name : {"membar.gl", "membar.cta", "fence.mbarrier_init.release.cluster",
                           "griddepcontrol.launch_dependents", "prefetch.global.L2",
                           "cp.async.bulk.prefetch.tensor.2d.L2.global.tile"}) {
    table[name] = &nothing;
  }
  for (const char* name : {"wgmma.fence.sync.aligned", "setmaxnreg.inc.sync.aligned.u32",
                           "setmaxnreg.dec.sync.aligned.u32"}) {
    table[name] = &nothing_together;
  }
}

}  // namespace carope::ptx
