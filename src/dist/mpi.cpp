#include "dist/mpi.h"

#include <fmt/ranges.h>
#include <mpi.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <iterator>
#include <limits>
#include <numeric>
#include <optional>
#include <random>
#include <sstream>
#include <thread>
#include <utility>

#include "dist/check_tensors.h"
#include "dist/watch.h"
#include "dist/worker.h"

namespace carope::mpi {
namespace {

void check_mpi(int status, const char* call) {
  if (status != MPI_SUCCESS) {
    std::array<char, MPI_MAX_ERROR_STRING> text{};
    int length = 0;
    MPI_Error_string(status, text.data(), &length);
    throw Error(fmt::format("{} failed: {}", call, text.data()));
  }
}

MPI_Datatype number_type(const Tensor& values) {
  return values.dtype() == DType::kF32 ? MPI_FLOAT : MPI_DOUBLE;
}

/// Elements that are only carried.
MPI_Datatype type_of_size(const Tensor& values) {
  switch (size_of(values.dtype())) {
    case 2:
      return MPI_UINT16_T;
    case 4:
      return MPI_UINT32_T;
    default:
      return MPI_UINT64_T;
  }
}

int count_of(const Tensor& values) {
  check<ShapeError>(values.size() <= std::numeric_limits<int>::max(),
                    "MPI carries at most 2^31 - 1 elements at once, not {}; share smaller tensors",
                    values.size());
  return static_cast<int>(values.size());
}

/// Every call of MPI is made by one thread, which is also what lets it go on beside the caller.
class Ranks final : public Communicator {
 public:
  Ranks(const Launch& launch, std::chrono::seconds timeout, std::function<std::string()> ailing)
      : launch_(launch), timeout_(timeout) {
    worker_.give([this] { start(); });
    wait_for_all();
    watch_ = std::make_unique<Watch>(launch.rank, meet_peers(), timeout, std::move(ailing));
  }

  ~Ranks() override {
    if (std::uncaught_exceptions() == exceptions_) {
      worker_.give([] { MPI_Finalize(); });
    }
  }

  int rank() const override { return launch_.rank; }
  int size() const override { return launch_.world_size; }

  void all_reduce(Context&, const Tensor& values) override {
    check_device(values, {});
    check_summable(values);
    give("MPI_Allreduce", [=, count = count_of(values)] {
      return MPI_Allreduce(MPI_IN_PLACE, values.raw(), count, number_type(values), MPI_SUM,
                           MPI_COMM_WORLD);
    });
  }

  void reduce_scatter(Context&, const Tensor& values, const Tensor& own) override {
    check_device(values, {});
    check_device(own, {});
    check_summable(values);
    check_parts(values, own, size());
    count_of(values);
    give("MPI_Reduce_scatter_block", [=, this, count = count_of(own)] {
      // MPI wants the sum elsewhere than what it is made of.
      const bool inside = own.raw() == part(values, own);
      if (inside && kept_.bytes() < own.bytes()) {
        kept_ = Memory({}, own.bytes());
      }
      void* sum = inside ? kept_.data() : own.raw();
      const int status = MPI_Reduce_scatter_block(values.raw(), sum, count, number_type(values),
                                                  MPI_SUM, MPI_COMM_WORLD);
      if (inside) {
        std::memcpy(own.raw(), sum, own.bytes());
      }
      return status;
    });
  }

  void all_gather(Context&, const Tensor& own, const Tensor& values) override {
    check_device(values, {});
    check_device(own, {});
    check_parts(values, own, size());
    count_of(values);
    give("MPI_Allgather", [=, this, count = count_of(own)] {
      const bool inside = own.raw() == part(values, own);
      return MPI_Allgather(inside ? MPI_IN_PLACE : own.raw(), count, type_of_size(own),
                           values.raw(), count, type_of_size(own), MPI_COMM_WORLD);
    });
  }

  void broadcast(Context&, const Tensor& values, int root) override {
    check_device(values, {});
    check_root(root, size());
    give("MPI_Bcast", [=, count = count_of(values)] {
      return MPI_Bcast(values.raw(), count, type_of_size(values), root, MPI_COMM_WORLD);
    });
  }

  void join(Context&) override { worker_.wait(); }

  void sum(std::span<double> values) override {
    give("MPI_Allreduce", [=] {
      return MPI_Allreduce(MPI_IN_PLACE, values.data(), static_cast<int>(values.size()), MPI_DOUBLE,
                           MPI_SUM, MPI_COMM_WORLD);
    });
    worker_.wait();
  }

  std::vector<double> gather(std::span<const double> values) override {
    const auto own = static_cast<int>(values.size());
    std::vector<int> counts(static_cast<std::size_t>(size()));
    give("MPI_Allgather", [&] {
      return MPI_Allgather(&own, 1, MPI_INT, counts.data(), 1, MPI_INT, MPI_COMM_WORLD);
    });
    worker_.wait();
    std::vector<int> begins(counts.size());
    std::exclusive_scan(counts.begin(), counts.end(), begins.begin(), 0);
    std::vector<double> all(static_cast<std::size_t>(begins.back() + counts.back()));
    give("MPI_Allgatherv", [&] {
      return MPI_Allgatherv(values.data(), own, MPI_DOUBLE, all.data(), counts.data(),
                            begins.data(), MPI_DOUBLE, MPI_COMM_WORLD);
    });
    worker_.wait();
    return all;
  }

  void meet() override {
    give("MPI_Barrier", [] { return MPI_Barrier(MPI_COMM_WORLD); });
    worker_.wait();
  }

 private:
  template <class Call>
  void give(const char* name, Call call) {
    worker_.give([this, name, call = std::move(call)] {
      const int status = call();
      if (status != MPI_SUCCESS) {
        std::this_thread::sleep_for(timeout_);  // if a rank is lost, the watch says which
      }
      check_mpi(status, name);
    });
  }

  /// Waits for what is done before ranks watch each other. MPI would wait for ever for a rank that
  /// does not come.
  void wait_for_all() {
    const std::chrono::milliseconds patience = patience_for(timeout_);
    if (!worker_.wait_for(patience)) {
      end_at_once(rank(),
                  fmt::format("MPI has not brought {} ranks together within {} s (--timeout); "
                              "see which of them does not run, or on which machine",
                              size(), std::chrono::duration<double>(patience).count()));
    }
  }

  /// Where to meet is what rank 0 says over MPI.
  std::vector<Peer> meet_peers() {
    constexpr std::size_t kAddresses = 16;
    std::optional<Listener> listener;
    std::array<char, 2048> said{};
    if (rank() == 0) {
      listener.emplace(0);
      std::random_device random;
      const std::string text =
          fmt::format("{} {:08x}{:08x} {} {}", listener->port(), random(), random(), host_name(),
                      fmt::join(own_addresses(kAddresses), " "));
      text.copy(said.data(), said.size() - 1);
    }
    give("MPI_Bcast", [&] {
      return MPI_Bcast(said.data(), static_cast<int>(said.size()), MPI_CHAR, 0, MPI_COMM_WORLD);
    });
    wait_for_all();
    std::istringstream words(said.data());
    Launch met = launch_;
    words >> met.port >> met.job;
    if (listener) {
      return let_ranks_in(*listener, met, "-", patience_for(timeout_));
    }
    std::vector<std::string> addresses(std::istream_iterator<std::string>(words), {});
    if (addresses.at(0) == host_name()) {
      addresses.insert(addresses.begin(), "127.0.0.1");
    }
    std::vector<Peer> peers;
    peers.push_back(join_first_rank(addresses, met.port, met, patience_for(timeout_)).peer);
    return peers;
  }

  const void* part(const Tensor& values, const Tensor& own) const {
    return static_cast<const std::byte*>(values.raw()) +
           own.bytes() * static_cast<std::size_t>(rank());
  }

  void start() {
    int before = 0;
    check_mpi(MPI_Initialized(&before), "MPI_Initialized");
    check<Error>(before == 0, "a process can join its ranks by MPI only once");
    // A thread that waits for other ranks must leave its core to those that compute.
    setenv("OMPI_MCA_mpi_yield_when_idle", "1", 0);
    int threads = 0;
    check_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &threads), "MPI_Init_thread");
    check<ConfigError>(threads >= MPI_THREAD_FUNNELED,
                       "this MPI cannot be used by a program with threads; use OpenMPI");
    check_mpi(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN),
              "MPI_Comm_set_errhandler");
    int rank = 0;
    int size = 0;
    check_mpi(MPI_Comm_rank(MPI_COMM_WORLD, &rank), "MPI_Comm_rank");
    check_mpi(MPI_Comm_size(MPI_COMM_WORLD, &size), "MPI_Comm_size");
    check<ConfigError>(
        rank == launch_.rank && size == launch_.world_size,
        "the launcher says that this is rank {} of {}, but MPI that it is {} of {}; start it with "
        "the mpirun of the MPI that it was built with, or with srun --mpi=pmix",
        launch_.rank, launch_.world_size, rank, size);
  }

  const Launch launch_;
  const std::chrono::seconds timeout_;
  const int exceptions_ = std::uncaught_exceptions();
  std::unique_ptr<Watch> watch_;  // until MPI has ended, and past this where it cannot
  Memory kept_;
  Worker worker_;
};

}  // namespace

bool compiled() { return true; }

std::unique_ptr<Communicator> make_ranks(const Launch& launch, std::chrono::seconds timeout,
                                         std::function<std::string()> ailing) {
  return std::make_unique<Ranks>(launch, timeout, std::move(ailing));
}

}  // namespace carope::mpi
