#include "dist/launch.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <limits>
#include <optional>

#include "core/error.h"

namespace carope {
namespace {

/// How one launcher names its variables.
struct Variables {
  const char* rank;
  const char* world_size;
  const char* local_rank;
  Launcher launcher;
};

constexpr Variables kOpenMpi = {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
                                "OMPI_COMM_WORLD_LOCAL_RANK", Launcher::kOpenMpi};
constexpr Variables kSlurm = {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID",
                              Launcher::kSlurm};
constexpr Variables kTorchrun = {"RANK", "WORLD_SIZE", "LOCAL_RANK", Launcher::kTorchrun};

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

/// The number that a variable holds; 0 where it is not set.
std::int64_t number(const char* name, std::int64_t most = std::numeric_limits<int>::max()) {
  const std::string text = variable(name);
  if (text.empty()) {
    return 0;
  }
  std::int64_t value = 0;
  const auto result = std::from_chars(text.data(), text.data() + text.size(), value);
  check<ConfigError>(
      result.ec == std::errc{} && result.ptr == text.data() + text.size() && 0 <= value &&
          value <= most,
      "{} = '{}' in the environment is not a number from 0 to {}; unset it or start with a "
      "launcher",
      name, text, most);
  return value;
}

std::optional<Launch> read(const Variables& names) {
  const bool ranked = std::getenv(names.rank) != nullptr;
  const bool sized = std::getenv(names.world_size) != nullptr;
  if (!ranked || !sized) {
    check<ConfigError>(!sized || number(names.world_size) <= 1,
                       "{} = {} in the environment, but {} is not set; start with a launcher that "
                       "sets both, or unset it",
                       names.world_size, variable(names.world_size), names.rank);
    return std::nullopt;
  }
  Launch launch;
  launch.rank = static_cast<int>(number(names.rank));
  launch.world_size = static_cast<int>(number(names.world_size));
  launch.launcher = names.launcher;
  check<ConfigError>(launch.rank < launch.world_size,
                     "{} = {} and {} = {} in the environment do not fit together", names.rank,
                     launch.rank, names.world_size, launch.world_size);
  // Without a word about it there is one machine.
  launch.local_rank = std::getenv(names.local_rank) != nullptr
                          ? static_cast<int>(number(names.local_rank))
                          : launch.rank;
  return launch;
}

/// Where a launcher shows rank 0 to be. What the user says, MASTER_ADDR, goes before all.
void find_meeting_place(Launch& launch) {
  constexpr int kPorts = 65535;
  // Ports that are not given to programs which ask for any; jobs that share a machine differ.
  constexpr int kFirstPort = 20000;
  constexpr int kPortsForJobs = 10000;
  const std::string run = variable("TORCHELASTIC_RUN_ID");
  launch.address = variable("MASTER_ADDR");
  launch.port = static_cast<int>(number("MASTER_PORT", kPorts));
  if (launch.launcher == Launcher::kTorchrun) {
    // torchrun itself listens at MASTER_PORT, and says so.
    launch.port += variable("TORCHELASTIC_USE_AGENT_STORE") == "True" ? 1 : 0;
    launch.job = run.empty() ? "-" : run;
  }
  if (launch.launcher == Launcher::kSlurm) {
    constexpr std::int64_t kAny = std::numeric_limits<std::int64_t>::max();
    launch.job = fmt::format("{}.{}", variable("SLURM_JOB_ID"), variable("SLURM_STEP_ID"));
    if (launch.address.empty()) {
      launch.address = first_host(variable("SLURM_STEP_NODELIST"));
    }
    if (launch.port == 0) {
      const std::int64_t job = number("SLURM_JOB_ID", kAny) % kPortsForJobs;
      const std::int64_t step = number("SLURM_STEP_ID", kAny) % kPortsForJobs;
      launch.port = kFirstPort + static_cast<int>((job + step) % kPortsForJobs);
    }
  }
  std::replace(launch.job.begin(), launch.job.end(), ' ', '_');
}

}  // namespace

Launch launch_from_environment() {
  const std::optional<Launch> torchrun = read(kTorchrun);
  // mpirun leaves what Slurm says to the daemons by which it starts processes on other machines.
  std::optional<Launch> launch = read(kOpenMpi);
  launch = launch ? launch : read(kSlurm);
  if (torchrun) {
    const bool same =
        launch && launch->rank == torchrun->rank && launch->world_size == torchrun->world_size;
    check<ConfigError>(
        !launch || same || launch->launcher != Launcher::kOpenMpi ||
            std::getenv("TORCHELASTIC_RUN_ID") != nullptr,
        "the environment says rank {} of {} (OMPI_COMM_WORLD_RANK) and rank {} of {} (RANK); unset "
        "those of the launcher that did not start this process",
        launch ? launch->rank : 0, launch ? launch->world_size : 0, torchrun->rank,
        torchrun->world_size);
    launch = same ? launch : torchrun;
  }
  if (!launch) {
    return {};
  }
  find_meeting_place(*launch);
  return *launch;
}

int gpu_of_rank(const Launch& launch, int visible) {
  if (visible == 1) {
    return 0;
  }
  check<ConfigError>(launch.local_rank < visible,
                     "rank {} is number {} (LOCAL_RANK) on {}, which has {} GPUs; start at most as "
                     "many ranks on a machine as it has GPUs",
                     launch.rank, launch.local_rank, host_name(), visible);
  return launch.local_rank;
}

std::string host_name() {
  std::array<char, 256> name{};
  gethostname(name.data(), name.size() - 1);
  std::string host(name.data());
  std::replace(host.begin(), host.end(), ' ', '_');
  return host.empty() ? "unnamed" : host;
}

std::string speaker() {
  try {
    const Launch launch = launch_from_environment();
    return launch.world_size == 1 ? "" : fmt::format("rank {} on {}: ", launch.rank, host_name());
  } catch (const ConfigError&) {
    return "";
  }
}

std::string first_host(const std::string& hosts) {
  std::string first;
  for (std::size_t i = 0; i < hosts.size() && hosts[i] != ','; ++i) {
    if (hosts[i] != '[') {
      first += hosts[i];
      continue;
    }
    const std::size_t end = hosts.find(']', i);
    const std::string numbers = hosts.substr(i + 1, end - i - 1);
    first += numbers.substr(0, numbers.find_first_of(",-"));
    if (end == std::string::npos) {
      break;
    }
    i = end;
  }
  return first;
}

}  // namespace carope
