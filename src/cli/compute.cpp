#include "cli/compute.h"

#include <charconv>

#include "core/cuda.h"
#include "core/error.h"
#include "core/progress.h"

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

std::vector<int> served_gpus() {
  const std::vector<cuda::DeviceInfo> devices = cuda::devices();
  std::vector<int> served;
  for (std::size_t i = 0; i < devices.size(); ++i) {
    if (cuda::is_served(devices[i])) {
      served.push_back(static_cast<int>(i));
    }
  }
  return served;
}

}  // namespace

void add_compute_options(CLI::App& command, ComputeOptions& options) {
  command
      .add_option(
          "--device", options.device,
          "auto (default): a GPU where there is one (compute 8.0 or later); or cpu, cuda, cuda:N")
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
  const std::vector<int> served = options.device == "cpu" ? std::vector<int>{} : served_gpus();
  const bool gpu = options.device == "auto" ? !served.empty() : options.device != "cpu";
  const std::string trouble = options.device == "auto" ? cuda::trouble() : "";
  if (!trouble.empty() && launch.rank == 0) {
    tell(fmt::format("warning: no GPU is used, since CUDA does not start: {}\n", trouble));
  }
  const auto index = [&] {
    if (options.device != "auto" && options.device != "cuda") {
      return cuda_index(options.device);
    }
    if (served.empty()) {
      return 0;  // for the error that says why
    }
    const bool alone = launch.world_size == 1;
    const int number = alone ? 0 : gpu_of_rank(launch, static_cast<int>(served.size()));
    return served[static_cast<std::size_t>(number)];
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
