#include "dist/nccl.h"

#include <cuda_runtime.h>
#include <nccl.h>

#include <algorithm>
#include <exception>
#include <mutex>
#include <string>
#include <utility>

#include "core/cuda_check.h"
#include "core/memory.h"
#include "dist/check_tensors.h"
#include "dist/mpi.h"
#include "dist/watch.h"

namespace carope::nccl {
namespace {

void check_nccl(ncclResult_t status, ncclComm_t comm, const char* call) {
  check<DeviceError>(status == ncclSuccess, "{} failed: {} ({})", call, ncclGetErrorString(status),
                     ncclGetLastError(comm));
}

/// Lets the watch see what went wrong inside of NCCL: its kernels would wait for ever.
class Health {
 public:
  /// Returns when nobody looks at what was there before.
  void set(ncclComm_t comm) {
    const std::scoped_lock lock(mutex_);
    comm_ = comm;
  }

  std::string ailment() {
    const std::scoped_lock lock(mutex_);
    ncclResult_t status = ncclSuccess;
    if (comm_ == nullptr || ncclCommGetAsyncError(comm_, &status) != ncclSuccess ||
        status == ncclSuccess || status == ncclInProgress) {
      return "";
    }
    return fmt::format("NCCL failed: {} ({})", ncclGetErrorString(status), ncclGetLastError(comm_));
  }

 private:
  std::mutex mutex_;
  ncclComm_t comm_ = nullptr;
};

ncclDataType_t type_of(const Tensor& values) {
  switch (values.dtype()) {
    case DType::kF32:
      return ncclFloat32;
    case DType::kF64:
      return ncclFloat64;
    default:
      return ncclUint8;
  }
}

/// How many of type_of() there are.
std::size_t count_of(const Tensor& values) {
  return type_of(values) == ncclUint8 ? values.bytes() : static_cast<std::size_t>(values.size());
}

/// Operations run on a stream of their own. Calls may block: should a rank be lost, the watch ends
/// the process, whatever it waits for.
class Ranks final : public Communicator {
 public:
  Ranks(const Launch& launch, int device, const ncclUniqueId& id, std::shared_ptr<void> watch,
        std::shared_ptr<Health> health)
      : launch_(launch), device_(device), watch_(std::move(watch)), health_(std::move(health)) {
    const cuda::CurrentDevice current(device_);
    int lowest = 0;
    int highest = 0;
    CUDA_CHECK(cudaDeviceGetStreamPriorityRange(&lowest, &highest));
    // What others wait for goes before what is computed beside it.
    CUDA_CHECK(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, highest));
    CUDA_CHECK(cudaEventCreateWithFlags(&ready_, cudaEventDisableTiming));
    CUDA_CHECK(cudaEventCreateWithFlags(&done_, cudaEventDisableTiming));
    check_nccl(ncclCommInitRank(&comm_, size(), id, rank()), nullptr, "ncclCommInitRank");
    health_->set(comm_);
  }

  ~Ranks() override {
    health_->set(nullptr);
    cudaSetDevice(device_);
    if (std::uncaught_exceptions() == exceptions_) {
      cudaStreamSynchronize(stream_);
      ncclCommDestroy(comm_);
    } else {
      ncclCommAbort(comm_);
    }
    cudaEventDestroy(done_);
    cudaEventDestroy(ready_);
    cudaStreamDestroy(stream_);
  }

  int rank() const override { return launch_.rank; }
  int size() const override { return launch_.world_size; }

  void all_reduce(Context& ctx, const Tensor& values) override {
    check_tensor(values);
    check_summable(values);
    follow(ctx);
    check_nccl(ncclAllReduce(values.raw(), values.raw(), count_of(values), type_of(values), ncclSum,
                             comm_, stream_),
               comm_, "ncclAllReduce");
  }

  void reduce_scatter(Context& ctx, const Tensor& values, const Tensor& own) override {
    check_tensor(values);
    check_tensor(own);
    check_summable(values);
    check_parts(values, own, size());
    follow(ctx);
    check_nccl(ncclReduceScatter(values.raw(), own.raw(), count_of(own), type_of(own), ncclSum,
                                 comm_, stream_),
               comm_, "ncclReduceScatter");
  }

  void all_gather(Context& ctx, const Tensor& own, const Tensor& values) override {
    check_tensor(values);
    check_tensor(own);
    check_parts(values, own, size());
    follow(ctx);
    check_nccl(ncclAllGather(own.raw(), values.raw(), count_of(own), type_of(own), comm_, stream_),
               comm_, "ncclAllGather");
  }

  void broadcast(Context& ctx, const Tensor& values, int root) override {
    check_tensor(values);
    check_root(root, size());
    follow(ctx);
    check_nccl(ncclBroadcast(values.raw(), values.raw(), count_of(values), type_of(values), root,
                             comm_, stream_),
               comm_, "ncclBroadcast");
  }

  void join(Context& ctx) override {
    const cuda::CurrentDevice current(device_);
    CUDA_CHECK(cudaEventRecord(done_, stream_));
    CUDA_CHECK(cudaStreamWaitEvent(static_cast<cudaStream_t>(ctx.stream()), done_));
  }

  void sum(std::span<double> values) override {
    if (values.empty()) {
      return;
    }
    double* room = room_for(values.size());
    upload(values, room);
    check_nccl(ncclAllReduce(room, room, values.size(), ncclFloat64, ncclSum, comm_, stream_),
               comm_, "ncclAllReduce");
    download(room, values);
  }

  std::vector<double> gather(std::span<const double> values) override {
    const auto ranks = static_cast<std::size_t>(size());
    std::vector<double> counts(ranks);
    const auto own = static_cast<double>(values.size());
    gather_equal({&own, 1}, counts);
    const auto most = static_cast<std::size_t>(*std::max_element(counts.begin(), counts.end()));
    std::vector<double> padded(values.begin(), values.end());
    padded.resize(most);
    std::vector<double> parts(most * ranks);
    gather_equal(padded, parts);
    std::vector<double> all;
    for (std::size_t i = 0; i < ranks; ++i) {
      const auto begin = parts.begin() + static_cast<std::ptrdiff_t>(i * most);
      all.insert(all.end(), begin, begin + static_cast<std::ptrdiff_t>(counts[i]));
    }
    return all;
  }

  void meet() override {
    double nothing = 0.0;
    sum({&nothing, 1});
  }

 private:
  void check_tensor(const Tensor& values) const {
    check_device(values, {DeviceKind::kCuda, device_});
  }

  /// Lets what is issued next wait for what the context was given before.
  void follow(Context& ctx) {
    const cuda::CurrentDevice current(device_);
    CUDA_CHECK(cudaEventRecord(ready_, static_cast<cudaStream_t>(ctx.stream())));
    CUDA_CHECK(cudaStreamWaitEvent(stream_, ready_));
  }

  void gather_equal(std::span<const double> own, std::span<double> all) {
    if (all.empty()) {
      return;
    }
    double* room = room_for(own.size() + all.size());
    upload(own, room);
    check_nccl(ncclAllGather(room, room + own.size(), own.size(), ncclFloat64, comm_, stream_),
               comm_, "ncclAllGather");
    download(room + own.size(), all);
  }

  double* room_for(std::size_t count) {
    if (room_.bytes() < count * sizeof(double)) {
      room_ = Memory({DeviceKind::kCuda, device_}, count * sizeof(double));
    }
    return static_cast<double*>(room_.data());
  }

  void upload(std::span<const double> from, double* to) {
    const cuda::CurrentDevice current(device_);
    CUDA_CHECK(
        cudaMemcpyAsync(to, from.data(), from.size_bytes(), cudaMemcpyHostToDevice, stream_));
  }

  void download(const double* from, std::span<double> to) {
    const cuda::CurrentDevice current(device_);
    CUDA_CHECK(cudaMemcpyAsync(to.data(), from, to.size_bytes(), cudaMemcpyDeviceToHost, stream_));
    CUDA_CHECK(cudaStreamSynchronize(stream_));
  }

  const Launch launch_;
  const int device_;
  const int exceptions_ = std::uncaught_exceptions();
  const std::shared_ptr<void> watch_;
  const std::shared_ptr<Health> health_;
  Memory room_;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t ready_ = nullptr;
  cudaEvent_t done_ = nullptr;
  ncclComm_t comm_ = nullptr;
};

std::string to_hex(const ncclUniqueId& id) {
  std::string text;
  for (const char byte : id.internal) {
    text += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  }
  return text;
}

ncclUniqueId from_hex(const std::string& text) {
  ncclUniqueId id{};
  check<ConfigError>(text.size() == 2 * sizeof(id.internal) &&
                         text.find_first_not_of("0123456789abcdef") == std::string::npos,
                     "rank 0 sent '{}' in the place of NCCL's number for this job", text);
  for (std::size_t i = 0; i < sizeof(id.internal); ++i) {
    id.internal[i] = static_cast<char>(std::stoi(text.substr(2 * i, 2), nullptr, 16));
  }
  return id;
}

}  // namespace

bool compiled() { return true; }

std::unique_ptr<Communicator> make_ranks(const Launch& launch, int device,
                                         std::chrono::seconds timeout) {
  const auto health = std::make_shared<Health>();
  const auto ailing = [health] { return health->ailment(); };
  ncclUniqueId id{};
  if (launch.rank == 0) {
    check_nccl(ncclGetUniqueId(&id), nullptr, "ncclGetUniqueId");
  }
  std::shared_ptr<void> watch;
  if (launch.launcher == Launcher::kOpenMpi && launch.address.empty() && mpi::compiled()) {
    std::shared_ptr<Communicator> by_mpi = mpi::make_ranks(launch, timeout, ailing);
    Context cpu = Context::cpu(1);
    by_mpi->broadcast(cpu, Tensor(&id, {{sizeof(id) / sizeof(std::int32_t)}, DType::kI32}), 0);
    by_mpi->join(cpu);
    watch = by_mpi;
  } else if (launch.world_size > 1) {
    std::string gift = to_hex(id);
    watch = meet_and_watch(launch, gift, timeout, ailing);
    id = from_hex(gift);
  }
  return std::make_unique<Ranks>(launch, device, id, std::move(watch), health);
}

}  // namespace carope::nccl
