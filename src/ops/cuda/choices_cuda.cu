#include "ops/cuda/choices_cuda.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdlib>
#include <limits>
#include <random>
#include <sstream>
#include <utility>

#include "core/file.h"
#include "core/progress.h"
#include "core/version.h"
#include "ops/cuda/kernel.cuh"

namespace carope::cuda {
namespace {

/// Where this machine's choices are kept, which another version's kernels may not suit; empty if
/// the user has no such folder.
std::filesystem::path choices_file(const Context& ctx) {
  const auto folder_in = [](const char* variable) -> std::filesystem::path {
    const char* value = std::getenv(variable);
    return value == nullptr ? "" : value;
  };
  std::filesystem::path folder = folder_in("XDG_CACHE_HOME");
  if (folder.empty() && !folder_in("HOME").empty()) {
    folder = folder_in("HOME") / ".cache";
  }
  if (folder.empty() || ctx.deterministic()) {
    return {};
  }
  cudaDeviceProp properties{};
  CUDA_CHECK(cudaGetDeviceProperties(&properties, ctx.device().index));
  std::string device = properties.name;
  std::replace_if(
      device.begin(), device.end(), [](unsigned char c) { return std::isalnum(c) == 0; }, '-');
  int runtime = 0;
  CUDA_CHECK(cudaRuntimeGetVersion(&runtime));
  return folder / "carope" / fmt::format("fastest-{}-cuda{}-{}.txt", device, runtime, version());
}

}  // namespace

Choices::Choices(const Context& ctx) : file_(choices_file(ctx)), told_(!ctx.speaks()) {
  std::error_code unreadable;  // means that there is nothing, as in a folder of somebody else
  if (file_.empty() || !std::filesystem::exists(file_, unreadable)) {
    return;
  }
  try {
    std::istringstream lines(read_file(file_));
    for (std::string name, choice; lines >> name >> choice;) {
      chosen_[name] = choice;
    }
  } catch (const FileError&) {
    file_.clear();  // what cannot be read costs another measurement, not a run
  }
}

const std::string* Choices::find(const std::string& name) const {
  const auto found = chosen_.find(name);
  return found == chosen_.end() ? nullptr : &found->second;
}

void Choices::keep(const std::string& name, const std::string& choice) {
  chosen_[name] = choice;
  if (file_.empty()) {
    return;
  }
  std::string text;
  for (const auto& [known, made] : chosen_) {
    text += known + " " + made + "\n";
  }
  try {
    std::filesystem::create_directories(file_.parent_path());
    // Ranks measure at the same time, some on other machines: each writes a file of its own.
    const std::filesystem::path own =
        fmt::format("{}.{:08x}", file_.string(), std::random_device{}());
    write_file(own, text);
    std::filesystem::rename(own, file_);
  } catch (const std::exception&) {
    file_.clear();  // a folder that cannot be written costs another measurement, not a run
  }
}

void Choices::tell_once() {
  if (!std::exchange(told_, true)) {
    tell("measuring which matrix products are fastest on this GPU (once for each shape)\n");
  }
}

void Choices::run_fastest(Context& ctx, const std::string& name,
                          std::initializer_list<Algorithm> algorithms) {
  if (find(name) == nullptr) {
    require_no_capture(ctx, name);
    float least = std::numeric_limits<float>::infinity();
    for (const Algorithm& algorithm : algorithms) {
      if (!algorithm.serves()) {
        continue;
      }
      if (ctx.deterministic()) {
        keep(name, algorithm.name);
        break;
      }
      // What comes first finds the GPU cooler or hotter than what comes next: where it matters,
      // each heats it up for itself.
      constexpr float kWorthwhile = 0.1F;  // ms
      float time = time_of(ctx, algorithm.run);
      if (time >= kWorthwhile) {
        time = sustained_time_of(ctx, time, algorithm.run);
      }
      if (time < least) {
        least = time;
        keep(name, algorithm.name);
      }
    }
  }
  const std::string* known = find(name);
  const auto* chosen =
      std::find_if(algorithms.begin(), algorithms.end(), [&](const Algorithm& algorithm) {
        return known != nullptr && algorithm.name == *known && algorithm.serves();
      });
  // A program that was compiled for less than the one that chose, or whose algorithms have other
  // names, takes the first that serves.
  if (chosen == algorithms.end()) {
    chosen = std::find_if(algorithms.begin(), algorithms.end(),
                          [](const Algorithm& algorithm) { return algorithm.serves(); });
  }
  check<DeviceError>(chosen != algorithms.end(), "this GPU has no way to compute {}", name);
  chosen->run();
}

float time_of(Context& ctx, const std::function<void()>& run) {
  constexpr int kRuns = 5;
  std::array<cudaEvent_t, kRuns + 1> events{};
  for (cudaEvent_t& event : events) {
    CUDA_CHECK(cudaEventCreate(&event));
  }
  run();  // the first run loads code
  CUDA_CHECK(cudaEventRecord(events[0], stream_of(ctx)));
  for (int i = 1; i <= kRuns; ++i) {
    run();
    CUDA_CHECK(cudaEventRecord(events[i], stream_of(ctx)));
  }
  CUDA_CHECK(cudaEventSynchronize(events[kRuns]));
  std::array<float, kRuns> times{};
  for (int i = 0; i < kRuns; ++i) {
    CUDA_CHECK(cudaEventElapsedTime(&times[i], events[i], events[i + 1]));
  }
  for (const cudaEvent_t event : events) {
    CUDA_CHECK(cudaEventDestroy(event));
  }
  std::nth_element(times.begin(), times.begin() + kRuns / 2, times.end());
  return times[kRuns / 2];
}

float sustained_time_of(Context& ctx, float once, const std::function<void()>& run) {
  constexpr float kHeating = 60.0F;  // ms
  constexpr float kTimed = 60.0F;
  cudaEvent_t begin = nullptr;
  cudaEvent_t end = nullptr;
  CUDA_CHECK(cudaEventCreate(&begin));
  CUDA_CHECK(cudaEventCreate(&end));
  for (float ms = 0.0F; ms < kHeating; ms += once) {
    run();
  }
  CUDA_CHECK(cudaEventRecord(begin, stream_of(ctx)));
  int runs = 0;
  for (float ms = 0.0F; ms < kTimed; ms += once) {
    run();
    ++runs;
  }
  CUDA_CHECK(cudaEventRecord(end, stream_of(ctx)));
  CUDA_CHECK(cudaEventSynchronize(end));
  float taken = 0.0F;
  CUDA_CHECK(cudaEventElapsedTime(&taken, begin, end));
  CUDA_CHECK(cudaEventDestroy(begin));
  CUDA_CHECK(cudaEventDestroy(end));
  return taken / static_cast<float>(runs);
}

void require_no_capture(const Context& ctx, const std::string& name) {
  cudaStreamCaptureStatus status{};
  CUDA_CHECK(cudaStreamIsCapturing(stream_of(ctx), &status));
  check<DeviceError>(status == cudaStreamCaptureStatusNone,
                     "{} was first met while a graph is captured: it cannot be timed", name);
}

}  // namespace carope::cuda
