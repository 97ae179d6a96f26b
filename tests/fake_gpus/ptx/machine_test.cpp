// The machine that runs kernels on a GPU that computes, by kernels of a few lines: that it does
// what they say, and that it notices what it is there to notice.
#include "machine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fmt/format.h>

#include <array>
#include <numeric>

namespace carope::ptx {
namespace {

using testing::Contains;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

/// 64 numbers that kernels read and write.
class Memory {
 public:
  Memory() {
    std::iota(values.begin(), values.end(), 0);
    allocations().add(address(), sizeof(values));
  }
  ~Memory() { allocations().remove(address()); }
  std::uintptr_t address() const { return reinterpret_cast<std::uintptr_t>(values.data()); }

  alignas(16) std::array<std::uint32_t, 64> values{};
};

/// A kernel whose parameter is an address, %rd1. Each thread has its number in %r1, and where that
/// of the numbers lies in %rd2.
Kernel kernel_of(const std::string& body) {
  return parse_kernel(fmt::format(R"(
.visible .entry test(
	.param .u64 test_param_0
)
{{
	.reg .pred 	%p<10>;
	.reg .b32 	%r<20>;
	.reg .f32 	%f<40>;
	.reg .b64 	%rd<10>;
	.shared .align 16 .b8 room[256];
	ld.param.u64 	%rd1, [test_param_0];
	mov.u32 	%r1, %tid.x;
	mul.wide.u32 	%rd3, %r1, 4;
	add.s64 	%rd2, %rd1, %rd3;
	{}
	ret;
}}
)",
                                  body),
                      "test");
}

void launch(const std::string& body, Memory& memory, const Launch& how) {
  const Kernel kernel = kernel_of(body);
  std::array<std::byte, 8> parameters;
  const std::uint64_t address = memory.address();
  std::memcpy(parameters.data(), &address, sizeof(address));
  Machine(kernel, how, parameters).run();
}
void run(const std::string& body, Memory& memory, unsigned threads = 32, unsigned blocks = 1) {
  launch(body, memory, {.grid = {blocks}, .block = {threads}});
}

std::string fault_of(const std::string& body, const Launch& how = {.block = {32}}) {
  Memory memory;
  try {
    launch(body, memory, how);
  } catch (const Fault& fault) {
    return fault.what();
  }
  return "(none)";
}

TEST(PtxMachine, LanesThatPartMeetAgain) {
  Memory memory;
  // Each lane goes round as often as its number says; then all are counted together.
  run(R"(mov.u32 %r2, 0;
    setp.eq.s32 %p1, %r1, 0;
    @%p1 bra $done;
$again:
    add.s32 %r2, %r2, 3;
    sub.s32 %r1, %r1, 1;
    setp.ne.s32 %p2, %r1, 0;
    @%p2 bra $again;
$done:
    setp.ge.s32 %p3, %r2, 0;
    vote.sync.ballot.b32 %r3, %p3, -1;
    popc.b32 %r4, %r3;
    mad.lo.s32 %r5, %r4, 1000, %r2;
    st.global.u32 [%rd2], %r5;)",
      memory);
  for (std::uint32_t lane = 0; lane < kLanes; ++lane) {
    EXPECT_EQ(memory.values[lane], 32000 + 3 * lane);
  }
}

TEST(PtxMachine, SumsOverABlockThroughSharedMemory) {
  Memory memory;
  run(R"(ld.global.u32 %r2, [%rd2];
    mov.u32 %r3, room;
    shl.b32 %r4, %r1, 2;
    add.s32 %r5, %r3, %r4;
    st.shared.u32 [%r5], %r2;
    bar.sync 0;
    xor.b32 %r6, %r1, 63;
    shl.b32 %r7, %r6, 2;
    add.s32 %r8, %r3, %r7;
    ld.shared.u32 %r9, [%r8];
    st.global.u32 [%rd2], %r9;)",
      memory, 64);
  EXPECT_EQ(memory.values.front(), 63U);
  EXPECT_EQ(memory.values.back(), 0U);
}

TEST(PtxMachine, NoWarpCanRelyOnHavingGoneAfterAnother) {
  constexpr unsigned kBlocks = 16;
  for (const int writer : {0, 32}) {
    Memory memory;
    // One warp's thread writes to shared memory and one of the other reads, and neither waits.
    run(fmt::format(R"(mov.u32 %r2, room;
    setp.eq.s32 %p1, %r1, {};
    @%p1 st.shared.u32 [%r2], 1;
    setp.eq.s32 %p2, %r1, {};
    @!%p2 bra $away;
    ld.shared.u32 %r3, [%r2];
    mov.u32 %r4, %ctaid.x;
    mul.wide.u32 %rd4, %r4, 4;
    add.s64 %rd5, %rd1, %rd4;
    st.global.u32 [%rd5], %r3;
$away:)",
                    writer, 32 - writer),
        memory, 64, kBlocks);
    EXPECT_THAT(std::span(memory.values).first<kBlocks>(), Contains(UINT32_MAX)) << writer;
    EXPECT_THAT(std::span(memory.values).first<kBlocks>(), Contains(1U)) << writer;
  }
}

TEST(PtxMachine, RoundsAsTheGpuDoes) {
  Memory memory;
  run(R"(mov.f32 %f1, 0f3F808000;
    mov.f32 %f2, 0f3F818000;
    cvt.rn.bf16x2.f32 %r2, %f2, %f1;
    st.global.u32 [%rd1], %r2;
    mov.f32 %f3, 0f4B000001;
    mov.f32 %f4, 0fBF000000;
    fma.rm.f32 %f5, %f4, 0f3F800000, %f3;
    st.global.f32 [%rd1+4], %f5;
    mov.u32 %r3, -7;
    shr.s32 %r4, %r3, 1;
    st.global.u32 [%rd1+8], %r4;
    cvt.s64.s32 %rd4, %r3;
    cvt.s64.s32 %rd5, %rd4;
    st.global.u64 [%rd1+16], %rd5;)",
      memory);
  EXPECT_EQ(memory.values[0], 0x3F823F80);  // to even: 1.00390625 down, 1.01171875 up
  EXPECT_EQ(memory.values[1], 0x4B000000);  // 8388608.5, and down
  EXPECT_EQ(memory.values[2], static_cast<std::uint32_t>(-4));
  EXPECT_EQ(memory.values[4], static_cast<std::uint32_t>(-7));
  EXPECT_EQ(memory.values[5], ~0U);
}

TEST(PtxMachine, MultipliesOnTensorCores) {
  Memory memory;
  // All of a is 1 and b is the number of its column, so c is 16 times that.
  run(R"(mov.u32 %r2, 0x3F803F80;
    shr.u32 %r3, %r1, 2;
    cvt.rn.f32.u32 %f1, %r3;
    cvt.rn.bf16x2.f32 %r4, %f1, %f1;
    mov.f32 %f2, 0f00000000;
    mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%f3,%f4,%f5,%f6}, {%r2,%r2,%r2,%r2}, {%r4,%r4}, {%f2,%f2,%f2,%f2};
    cvt.rzi.s32.f32 %r5, %f4;
    st.global.u32 [%rd2], %r5;)",
      memory);
  for (std::uint32_t lane = 0; lane < kLanes; ++lane) {
    EXPECT_EQ(memory.values[lane], 16 * (lane % 4 * 2 + 1));
  }
}

constexpr const char* kCopy = R"(mov.u32 %r2, room;
    shl.b32 %r3, %r1, 2;
    add.s32 %r4, %r2, %r3;
    setp.ge.s32 %p1, %r1, 4;
    @%p1 bra $ready;
    shl.b32 %r5, %r1, 4;
    add.s32 %r6, %r2, %r5;
    mul.wide.u32 %rd4, %r1, 16;
    add.s64 %rd5, %rd1, %rd4;
    cp.async.cg.shared.global [%r6], [%rd5], 16, 16;
    cp.async.commit_group;
    {}
$ready:
    bar.warp.sync -1;
    ld.shared.u32 %r7, [%r4];
    setp.lt.s32 %p2, %r1, 16;
    selp.b32 %r8, %r7, 5, %p2;
    st.global.u32 [%rd2], %r8;)";

TEST(PtxMachine, CopiesArriveWhenTheyAreWaitedForAndNotBefore) {
  Memory memory;
  run(fmt::format(fmt::runtime(kCopy), "cp.async.wait_group 0;"), memory);
  EXPECT_EQ(memory.values[0], 0U);
  EXPECT_EQ(memory.values[15], 15U);
  run(fmt::format(fmt::runtime(kCopy), ""), memory);
  for (std::size_t i = 0; i < 16; ++i) {
    EXPECT_EQ(memory.values[i], ~0U) << "nobody had waited";
  }
}

TEST(PtxMachine, ABarrierOpensWithTheBytesItExpects) {
  Memory memory;
  run(R"(mov.u32 %r2, room;
    add.s32 %r3, %r2, 128;
    setp.ne.s32 %p1, %r1, 0;
    @%p1 bra $wait;
    mbarrier.init.shared.b64 [%r3], 1;
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r3], 64;
    cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r2], [%rd1], 64, [%r3];
$wait:
    bar.warp.sync -1;
    mbarrier.try_wait.parity.shared.b64 %p2, [%r3], 0;
    @!%p2 bra $wait;
    ld.shared.u32 %r4, [%r2+60];
    st.global.u32 [%rd2], %r4;)",
      memory);
  EXPECT_THAT(std::vector(memory.values.begin(), memory.values.begin() + kLanes), Each(15U));
}

constexpr const char* kBulkCopy = R"(mov.u32 %r2, room;
    add.s32 %r3, %r2, 128;
    setp.ne.s32 %p1, %r1, 0;
    @%p1 bra $away;
    {}
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r3], 64;
    cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r2], [%rd1], 64, [%r3];
    {}
$away:)";
constexpr const char* kSetUp = "mbarrier.init.shared.b64 [%r3], 1;";
constexpr const char* kWait = R"($wait:
    mbarrier.try_wait.parity.shared.b64 %p2, [%r3], 0;
    @!%p2 bra $wait;)";

TEST(PtxMachine, NoticesCopiesThatAreNotTakenCareOf) {
  const auto fault = [](const std::string& before, const std::string& after) {
    return fault_of(fmt::format(fmt::runtime(kBulkCopy), before, after));
  };
  EXPECT_EQ(fault(kSetUp, kWait), "(none)");
  EXPECT_THAT(fault("", kWait), HasSubstr("a barrier that nobody has set up"));
  EXPECT_THAT(fault(kSetUp, ""), HasSubstr("ends before what is copied to it has come"));
  EXPECT_THAT(fault(kSetUp, std::string("st.global.u32 [%rd1], 7;") + kWait),
              HasSubstr("the source of a copy changed"));
  EXPECT_THAT(
      fault_of(fmt::format(fmt::runtime(kCopy), "st.global.u32 [%rd5], 7; cp.async.wait_group 0;")),
      HasSubstr("the source of a copy changed"));
}

TEST(PtxMachine, NoLaneCanRelyOnOthersOfItsWarp) {
  constexpr unsigned kBlocks = 1024;
  // Each lane writes a number for its neighbour; some block says whether all had theirs.
  constexpr const char* kExchange = R"(mov.u32 %r2, room;
    shl.b32 %r3, %r1, 2;
    add.s32 %r4, %r2, %r3;
    st.shared.u32 [%r4], 1;
    {}
    xor.b32 %r5, %r4, 4;
    ld.shared.u32 %r6, [%r5];
    setp.ne.s32 %p1, %r6, 1;
    @%p1 st.global.u32 [%rd2], 12345;)";
  Memory memory;
  run(fmt::format(fmt::runtime(kExchange), "bar.warp.sync -1;"), memory, 32, kBlocks);
  EXPECT_THAT(memory.values, Not(Contains(12345U)));
  run(fmt::format(fmt::runtime(kExchange), ""), memory, 32, kBlocks);
  EXPECT_THAT(memory.values, Contains(12345U));
}

TEST(PtxMachine, NoticesWarpsThatDoNotAgreeOnABarrier) {
  const Launch two_warps{.block = {64}};
  EXPECT_THAT(fault_of("bar.sync 1, 33;", two_warps), HasSubstr("not for whole warps"));
  EXPECT_THAT(fault_of("bar.sync 16;", two_warps), HasSubstr("that no block has"));
  EXPECT_THAT(fault_of(R"(setp.lt.s32 %p1, %r1, 32;
    @%p1 bra $few;
    bar.sync 1, 64;
    bra $away;
$few:
    bar.sync 1, 96;
$away:)",
                       two_warps),
              HasSubstr("wait for another number of threads"));
}

TEST(PtxMachine, NoticesKernelsThatBeginEarlyAndDoNotWait) {
  const Launch early{.block = {32}, .early = true};
  const std::string wait = "griddepcontrol.wait;";
  const std::string store = "st.global.u32 [%rd2], %r1;";
  EXPECT_THAT(fault_of(store, early), HasSubstr("the kernels before were not waited for"));
  EXPECT_EQ(fault_of(wait + store, early), "(none)");

  Memory memory;
  run("griddepcontrol.launch_dependents;" + store, memory);
  const std::string load = "ld.global.u32 %r2, [%rd2];";
  EXPECT_THROW(launch(load, memory, early), Fault);
  EXPECT_NO_THROW(launch(wait + load, memory, early));
  run("griddepcontrol.launch_dependents;" + store, memory);
  EXPECT_NO_THROW(launch(load, memory, {.block = {32}})) << "that begins when all are done";
}

TEST(PtxMachine, NoticesFactorsThatAProductDoesNotHaveYet) {
  constexpr unsigned kThreads = 128;
  // One product of what lies at the next multiple of 1024 bytes, and what is done before and after.
  const auto fault = [](const std::string& fence, const std::string& wait) {
    std::string sums;
    for (int i = 0; i < 32; ++i) {
      sums += fmt::format("{}%f{}", i == 0 ? "" : ",", i);
    }
    const std::string body = fmt::format(R"(mov.u32 %r2, room;
    add.s32 %r2, %r2, 1023;
    and.b32 %r2, %r2, -1024;
    shl.b32 %r3, %r1, 6;
    add.s32 %r4, %r2, %r3;
    mov.u32 %r5, 0;
    st.shared.v4.u32 [%r4], {{%r5,%r5,%r5,%r5}};
    st.shared.v4.u32 [%r4+16], {{%r5,%r5,%r5,%r5}};
    st.shared.v4.u32 [%r4+32], {{%r5,%r5,%r5,%r5}};
    st.shared.v4.u32 [%r4+48], {{%r5,%r5,%r5,%r5}};
    {}
    bar.sync 0;
    shr.u32 %r6, %r2, 4;
    cvt.u64.u32 %rd4, %r6;
    or.b64 %rd5, %rd4, 4611686293305294848;
    setp.ne.s32 %p1, %r5, 0;
    wgmma.fence.sync.aligned;
    wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {{{}}}, %rd5, %rd5, %p1, 1, 1, 0, 0;
    wgmma.commit_group.sync.aligned;
    {}
    st.shared.u32 [%r4], %r1;
    wgmma.wait_group.sync.aligned 0;)",
                                         fence, sums, wait);
    return fault_of(body, {.block = {kThreads}, .dynamic_shared = 16384});
  };
  const std::string fence = "fence.proxy.async.shared::cta;";
  const std::string wait = "wgmma.wait_group.sync.aligned 0; bar.sync 0;";
  EXPECT_EQ(fault(fence, wait), "(none)");
  EXPECT_THAT(fault("", wait), HasSubstr("a factor was written, and not fenced"));
  EXPECT_THAT(fault(fence, ""), HasSubstr("a factor changed before the product was done"));
}

TEST(PtxMachine, NamesAddressesThatAreNobodys) {
  EXPECT_THAT(fault_of("ld.global.u32 %r2, [%rd1+256];"),
              HasSubstr("thread 0 of block (0, 0, 0) at 'ld.global.u32 %r2, [%rd1+256]': 4 bytes"));
  EXPECT_THAT(fault_of("st.global.u32 [%rd1+-4], %r1;"), HasSubstr("are in no allocation"));
  EXPECT_THAT(fault_of("mov.u32 %r2, room; ld.shared.u32 %r3, [%r2+256];"),
              HasSubstr("outside shared memory"));
  EXPECT_THAT(fault_of("ld.global.u64 %rd4, [%rd1+4];"), HasSubstr("is no multiple of 8"));
}

TEST(PtxMachine, SaysThatAllThreadsWait) {
  EXPECT_THAT(fault_of(R"(setp.eq.s32 %p1, %r1, 3;
    @%p1 bra $away;
    bar.sync 1, 64;
$away:)"),
              HasSubstr("all threads wait, and nothing comes"));
  EXPECT_THAT(fault_of(R"(mov.u32 %r2, room;
    mbarrier.init.shared.b64 [%r2], 64;
$again:
    mbarrier.try_wait.parity.shared.b64 %p1, [%r2], 0;
    @!%p1 bra $again;)"),
              HasSubstr("all threads wait, and nothing comes"));
}

TEST(PtxMachine, RefusesWhatItDoesNotKnow) {
  EXPECT_THAT(fault_of("tanh.approx.f32 %f1, %f2;"), HasSubstr("no machine does 'tanh.approx.f32"));
}

}  // namespace
}  // namespace carope::ptx
