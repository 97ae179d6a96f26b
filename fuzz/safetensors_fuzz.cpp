// Any bytes are a safetensors file or they are not; of what is one, every tensor can be read, and
// all of them together are the file's data.
//
// The length that a file begins with is made for each input: the first byte says whether it is that
// of the text up to the first zero byte, or that in the input.
#include <algorithm>
#include <cstring>

#include "core/safetensors.h"
#include "support.h"
#include "support/folder.h"

namespace carope::fuzz {
namespace {

constexpr const char* kName = "fuzzed.safetensors";

std::string with_length(std::string_view input) {
  const std::uint64_t length = std::min(input.find('\0'), input.size());
  std::string file(sizeof length, '\0');
  std::memcpy(file.data(), &length, sizeof length);
  return file.append(input);
}

void run(const std::string& bytes) {
  static const test::TemporaryFolder kFolder;
  const auto path = test::write_bytes(kFolder / kName, bytes);
  accepts(kName, [&] {
    const SafetensorsFile file(path);
    std::uint64_t length = 0;
    std::memcpy(&length, bytes.data(), sizeof length);
    std::size_t held = 0;
    for (const std::string& name : file.names()) {
      const TensorSpec spec = file.spec(name);
      require(spec.bytes() <= bytes.size(), "a tensor is no larger than its file");
      std::vector<char> values(spec.bytes() + 1);
      file.read(name, Tensor(values.data(), spec));
      held += spec.bytes();
    }
    require(sizeof length + length + held == bytes.size(), "the tensors are the file's data");
  });
}

}  // namespace
}  // namespace carope::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace carope::fuzz;
  if (size > 0) {
    const std::string_view rest = text_of(data, size).substr(1);
    run(data[0] % 2 == 0 ? with_length(rest) : std::string(rest));
  }
  return 0;
}
