#include <fmt/format.h>

#include "cli/commands.h"
#include "core/context.h"
#include "core/cuda.h"

namespace carope {

void add_devices(CLI::App& app) {
  CLI::App* command = app.add_subcommand("devices", "Lists what this program can run on");
  command->callback([] {
    fmt::print("cpu: {} threads\n", Context::cpu().threads());
    const auto devices = cuda::devices();
    for (std::size_t i = 0; i < devices.size(); ++i) {
      const cuda::DeviceInfo& device = devices[i];
      fmt::print("cuda:{}: {}, compute {}.{}, {} multiprocessors, {:.1f} GiB{}\n", i, device.name,
                 device.compute_major, device.compute_minor, device.multiprocessors,
                 static_cast<double>(device.memory_bytes) / (1024.0 * 1024.0 * 1024.0),
                 cuda::is_served(device) ? "" : " (not used: compute 8.0 is needed)");
    }
    if (devices.empty()) {
      const std::string trouble = cuda::trouble();
      fmt::print("cuda: {}\n", !cuda::compiled() ? "built without CUDA"
                               : trouble.empty() ? "no GPU found"
                                                 : trouble);
    }
  });
}

}  // namespace carope
