#include "dist/launch.h"

#include <charconv>
#include <cstdlib>
#include <cstring>

#include "core/error.h"

namespace carope {
namespace {

/// How one launcher names its variables.
struct Variables {
  const char* rank;
  const char* world_size;
};

constexpr Variables kLaunchers[] = {{"RANK", "WORLD_SIZE"},
                                    {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
                                    {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS"}};

int parse(const char* name, const char* text) {
  int value = 0;
  const char* end = text + std::strlen(text);
  const auto result = std::from_chars(text, end, value);
  check<ConfigError>(
      result.ec == std::errc{} && result.ptr == end,
      "{} = '{}' in the environment is not a number; unset it or start with a launcher", name,
      text);
  return value;
}

}  // namespace

Launch launch_from_environment() {
  for (const Variables& launcher : kLaunchers) {
    const char* rank = std::getenv(launcher.rank);
    const char* world_size = std::getenv(launcher.world_size);
    if (rank == nullptr || world_size == nullptr) {
      continue;
    }
    const Launch launch{parse(launcher.rank, rank), parse(launcher.world_size, world_size)};
    check<ConfigError>(0 <= launch.rank && launch.rank < launch.world_size,
                       "{} = {} and {} = {} in the environment do not fit together", launcher.rank,
                       launch.rank, launcher.world_size, launch.world_size);
    return launch;
  }
  return {};
}

void require_single_process(const Launch& launch) {
  check<ConfigError>(
      launch.world_size == 1,
      "{} processes were launched, but this program runs as one; start it without a launcher",
      launch.world_size);
}

}  // namespace carope
