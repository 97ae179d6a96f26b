// Instructions by which lanes, warps and blocks hear of each other.
#include <bit>

#include "instructions.h"

namespace carope::ptx {
namespace {

int first_lane(const Warp& w) { return std::countr_zero(w.mask()); }

enum class Shuffle { kButterfly, kUp, kDown, kIndex };

template <Shuffle kHow>
void shuffle(Warp& w, const Instruction& i) {
  const bool tells = i[1].bytes == 0 && !i[1].constant;
  const int a = tells ? 2 : 1;
  if (!w.gather(w.in<std::uint32_t>(i[a + 3])[first_lane(w)])) {
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
  for (int lane = 0; lane < kLanes; ++lane) {
    if ((w.mask() >> lane & 1) != 0) {
      w.out<std::uint32_t>(i[0])[lane] = results[lane];
    }
  }
  if (tells) {
    w.set_predicate(i[1], in_range);
  }
}

void set_words(Warp& w, const Operand& to, std::uint32_t value) {
  for (int lane = 0; lane < kLanes; ++lane) {
    if ((w.mask() >> lane & 1) != 0) {
      w.out<std::uint32_t>(to)[lane] = value;
    }
  }
}

void ballot(Warp& w, const Instruction& i) {
  if (w.gather(w.in<std::uint32_t>(i[2])[first_lane(w)])) {
    set_words(w, i[0], w.predicate(i[1]) & w.mask());
  }
}
void any(Warp& w, const Instruction& i) {
  if (w.gather(w.in<std::uint32_t>(i[2])[first_lane(w)])) {
    w.set_predicate(i[0], (w.predicate(i[1]) & w.mask()) != 0 ? ~Mask{0} : 0);
  }
}
void all(Warp& w, const Instruction& i) {
  if (w.gather(w.in<std::uint32_t>(i[2])[first_lane(w)])) {
    w.set_predicate(i[0], (w.predicate(i[1]) & w.mask()) == w.mask() ? ~Mask{0} : 0);
  }
}

void sync_warp(Warp& w, const Instruction& i) {
  w.gather(w.in<std::uint32_t>(i[0])[first_lane(w)]);
}

unsigned lanes(const Warp& w) { return static_cast<unsigned>(std::popcount(w.mask())); }
int number(const Warp& w, const Operand& from) {
  return static_cast<int>(w.in<std::uint32_t>(from)[first_lane(w)]);
}

void sync_block(Warp& w, const Instruction& i) {
  const int barrier = number(w, i[0]);
  const unsigned times = w.block().barriers[barrier].times;
  const auto wanted = static_cast<unsigned>(i.count > 1 ? number(w, i[1]) : 0);
  if (!w.block().arrive(barrier, lanes(w), wanted, 0)) {
    w.wait_for(barrier, times);
  }
}
void pass_by(Warp& w, const Instruction& i) {
  w.block().arrive(number(w, i[0]), lanes(w), static_cast<unsigned>(number(w, i[1])), 0);
}
/// Its result comes with the barrier's opening, to the last to arrive as to the others.
void count_in_block(Warp& w, const Instruction& i) {
  const int barrier = number(w, i[1]);
  const unsigned times = w.block().barriers[barrier].times;
  const auto counted = static_cast<unsigned>(std::popcount(w.predicate(i[i.count - 1]) & w.mask()));
  w.block().arrive(barrier, lanes(w), 0, counted);
  w.wait_for(barrier, times);
}

void arrive_at_cluster(Warp& w, const Instruction&) {
  if (w.gather(~Mask{0})) {
    w.cluster_arrivals = w.block().machine().cluster_times(w.block());
    w.block().machine().arrive_at_cluster(w.block(), lanes(w));
  }
}
void wait_for_cluster(Warp& w, const Instruction&) {
  if (w.block().machine().cluster_times(w.block()) == w.cluster_arrivals) {
    w.let_others(true);
  }
}

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
  table["vote.sync.any.pred"] = &any;
  table["vote.sync.all.pred"] = &all;
  table["bar.warp.sync"] = &sync_warp;
  table["bar.sync"] = &sync_block;
  table["bar.arrive"] = &pass_by;
  table["bar.red.popc.u32"] = table["bar.red.or.pred"] = &count_in_block;
  table["barrier.cluster.arrive.release.aligned"] = &arrive_at_cluster;
  table["barrier.cluster.wait.acquire.aligned"] = &wait_for_cluster;
  table["ret"] = table["exit"] = &leave;
  for (const char* name : {"membar.gl", "membar.cta", "fence.proxy.async.shared::cta",
                           "fence.mbarrier_init.release.cluster", "griddepcontrol.wait",
                           "griddepcontrol.launch_dependents", "prefetch.global.L2",
                           "cp.async.bulk.prefetch.tensor.2d.L2.global.tile"}) {
    table[name] = &nothing;
  }
  for (const char* name : {"wgmma.fence.sync.aligned", "wgmma.commit_group.sync.aligned",
                           "wgmma.wait_group.sync.aligned", "setmaxnreg.inc.sync.aligned.u32",
                           "setmaxnreg.dec.sync.aligned.u32"}) {
    table[name] = &nothing_together;
  }
}

}  // namespace carope::ptx
