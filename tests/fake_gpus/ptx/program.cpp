#include "program.h"

#include <fmt/format.h>
#include <zstd.h>

#include <algorithm>

namespace carope::ptx {
namespace {

struct Wrapper {
  std::uint32_t magic, version;
  const std::byte* data;
};
struct Header {
  std::uint32_t magic;
  std::uint16_t version, header_bytes;
  std::uint64_t bytes;
};
struct Entry {
  std::uint16_t kind, version;
  std::uint32_t header_bytes;
  std::uint64_t bytes;
  std::uint32_t compressed_bytes, unknown;
  std::uint16_t minor, major;
  std::uint32_t architecture;
};

struct Module {
  int architecture;
  std::string_view packed;
  std::string text;  // once it is asked for

  const std::string& unpack() {
    if (text.empty()) {
      constexpr std::uint32_t kZstd = 0xFD2FB528;
      std::uint32_t magic = 0;
      std::memcpy(&magic, packed.data(), std::min(sizeof(magic), packed.size()));
      text = packed;
      if (magic == kZstd) {
        text.resize(ZSTD_getFrameContentSize(packed.data(), packed.size()));
        ZSTD_decompress(text.data(), text.size(), packed.data(), packed.size());
      }
    }
    return text;
  }
};

std::deque<Module>& modules() {
  static std::deque<Module> all;
  return all;
}

}  // namespace

void add_fat_binary(const void* wrapper) {
  constexpr std::uint32_t kMagic = 0xBA55ED50;
  constexpr std::uint16_t kPtx = 1;
  const std::byte* at = static_cast<const Wrapper*>(wrapper)->data;
  Header header;
  std::memcpy(&header, at, sizeof(header));
  if (header.magic != kMagic) {
    return;
  }
  at += header.header_bytes;
  for (const std::byte* const end = at + header.bytes; at < end;) {
    Entry entry;
    std::memcpy(&entry, at, sizeof(entry));
    if (entry.kind == kPtx) {
      const std::size_t bytes = entry.compressed_bytes != 0 ? entry.compressed_bytes : entry.bytes;
      modules().push_back({static_cast<int>(entry.architecture),
                           {reinterpret_cast<const char*>(at) + entry.header_bytes, bytes},
                           {}});
    }
    at += entry.header_bytes + entry.bytes;
  }
}

int newest_architecture() {
  int newest = 0;
  for (const Module& module : modules()) {
    newest = std::max(newest, module.architecture);
  }
  return newest;
}

const Kernel& kernel_named(const std::string& name) {
  static std::map<std::string, Kernel> known;
  if (const auto found = known.find(name); found != known.end()) {
    return found->second;
  }
  const int newest = newest_architecture();
  for (Module& module : modules()) {
    if (module.architecture == newest && has_kernel(module.unpack(), name)) {
      return known.emplace(name, parse_kernel(module.text, name)).first->second;
    }
  }
  throw Fault(fmt::format("no PTX for {}", name));
}

}  // namespace carope::ptx
