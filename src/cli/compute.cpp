#include "cli/compute.h"

#include <algorithm>
#include <charconv>

#include "core/cuda.h"
#include "core/error.h"

namespace carope {
namespace {

int cuda_index(const std::string& device) {
  constexpr std::string_view kPrefix = "cuda:";
  int index = -1;
  const char* const end = device.data() + device.size();
  const bool named = device.starts_with(kPrefix);
  const auto [rest, error] =
      std::from_chars(device.data() + (named ? kPrefix.size() : device.size()), end, index);
  check<ConfigError>(named && error == std::errc() && rest == end && index >= 0,
                     "--device {} is not known; give auto, cpu, cuda or cuda:N", device);
  return index;
}

}  // namespace

void add_compute_options(CLI::App& command, ComputeOptions& options) {
  command
      .add_option("--device", options.device,
                  "auto (default): a GPU where there is one; or cpu, cuda, cuda:N")
      ->type_name("DEVICE");
  command
      .add_option("--precision", options.precision,
                  "auto (default): bf16 on a GPU, fp32 on the CPU; or bf16, fp32")
      ->check(CLI::IsMember({"auto", "bf16", "fp32"}));
  command.add_flag("--deterministic", options.deterministic,
                   "the same bits on every run, also where a GPU is faster without");
  command.add_option("--threads", options.threads, "threads of the CPU; by default all");
}

void add_recompute_option(CLI::App& command, ComputeOptions& options) {
  command.add_flag(
      "--recompute", options.recompute,
      "compute GELUs and norms again in the backward pass instead of keeping them: less "
      "memory, more time");
}

Context open_context(const ComputeOptions& options, const Launch& launch) {
  const std::vector<cuda::DeviceInfo> devices =
      options.device == "cpu" ? std::vector<cuda::DeviceInfo>{} : cuda::devices();
  const auto served = std::find_if(devices.begin(), devices.end(), cuda::is_served);
  const bool gpu = options.device == "auto" ? served != devices.end() : options.device != "cpu";
  const auto index = [&] {
    if (options.device != "auto" && options.device != "cuda") {
      return cuda_index(options.device);
    }
    if (launch.world_size > 1 && !devices.empty()) {
      return gpu_of_rank(launch, static_cast<int>(devices.size()));
    }
    return served == devices.end() ? 0 : static_cast<int>(served - devices.begin());
  };
  Context ctx = gpu ? Context::cuda(index()) : Context::cpu(options.threads);
  check<ConfigError>(gpu || options.precision != "bf16",
                     "--precision bf16 needs a GPU; leave it out, or give --device cuda");
  ctx.set_compute(gpu && options.precision != "fp32" ? DType::kBF16 : DType::kF32);
  ctx.set_deterministic(options.deterministic);
  ctx.set_recompute(options.recompute);
  ctx.set_speaks(launch.rank == 0);
  return ctx;
}

}  // namespace carope
