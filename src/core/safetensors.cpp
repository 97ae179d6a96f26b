#include "core/safetensors.h"

#include <algorithm>
#include <array>
#include <bit>
#include <compare>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/json.h"
#include "core/memory.h"
#include "core/options.h"

namespace carope {
namespace {

using Json = nlohmann::ordered_json;
static_assert(std::endian::native == std::endian::little);

constexpr std::size_t kLengthBytes = 8;
constexpr std::uint64_t kLongestHeader = 100'000'000;
constexpr const char* kMetadata = "__metadata__";

struct DTypeName {
  DType dtype;
  const char* name;
};
constexpr std::array kDTypeNames{DTypeName{DType::kF32, "F32"}, DTypeName{DType::kF64, "F64"},
                                 DTypeName{DType::kI32, "I32"}, DTypeName{DType::kU32, "U32"}};

const char* name_of(DType dtype) {
  for (const auto& [known, name] : kDTypeNames) {
    if (known == dtype) {
      return name;
    }
  }
  throw Error(fmt::format("safetensors files hold no {} tensors", to_string(dtype)));
}

std::span<const std::byte> bytes_of(const void* data, std::size_t count) {
  return {static_cast<const std::byte*>(data), count};
}

/// A list of whole numbers; one that is larger than any file, negative or a fraction is an error.
std::vector<std::int64_t> whole_numbers(const Json& list, const std::string& path,
                                        const std::string& name) {
  std::vector<std::int64_t> numbers;
  for (const Json& number : list) {
    check<FileError>(
        number.is_number_unsigned() &&
            number.get<std::uint64_t>() <= std::numeric_limits<std::int64_t>::max(),
        "{}: tensor '{}' has {} in its shape or place, which must be whole numbers from 0 "
        "on; the file was damaged",
        path, name, number.dump());
    numbers.push_back(number.get<std::int64_t>());
  }
  return numbers;
}

TensorSpec parse_spec(const Json& entry, const std::string& path, const std::string& name) {
  const std::string dtype = entry.at("dtype");
  for (const auto& [known, known_name] : kDTypeNames) {
    if (dtype == known_name) {
      const auto extents = whole_numbers(entry.at("shape"), path, name);
      check<FileError>(extents.size() <= Shape::kMaxRank,
                       "{}: tensor '{}' has {} dimensions, more than {}; was it made by another "
                       "program?",
                       path, name, extents.size(), Shape::kMaxRank);
      return {Shape(extents), known};
    }
  }
  throw FileError(
      fmt::format("{}: tensor '{}' has dtype {}, which is not known here; was it made "
                  "by another program?",
                  path, name, dtype));
}

/// Where a tensor with elements lies.
struct Place {
  std::uint64_t begin, end;
  std::string name;
  auto operator<=>(const Place&) const = default;
};

/// Refuses tensors of which one begins before another has ended.
void require_apart(std::vector<Place> places, const std::string& path) {
  std::sort(places.begin(), places.end());
  for (std::size_t i = 1; i < places.size(); ++i) {
    check<FileError>(places[i - 1].end <= places[i].begin,
                     "{}: tensors '{}' and '{}' share bytes {} to {}; the file was damaged", path,
                     places[i - 1].name, places[i].name, places[i].begin,
                     std::min(places[i - 1].end, places[i].end));
  }
}

}  // namespace

SafetensorsWriter::SafetensorsWriter(const std::filesystem::path& path,
                                     const std::vector<NamedSpec>& specs,
                                     const std::map<std::string, std::string>& metadata)
    : file_(path) {
  Json header = Json::object();
  if (!metadata.empty()) {
    header[kMetadata] = metadata;
  }
  std::size_t offset = 0;
  for (const auto& [name, spec] : specs) {
    std::vector<std::int64_t> extents;
    for (int axis = 0; axis < spec.shape.rank(); ++axis) {
      extents.push_back(spec.shape[axis]);
    }
    const std::size_t end = offset + spec.bytes();
    header[name] = {
        {"dtype", name_of(spec.dtype)}, {"shape", extents}, {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');  // so that the data is aligned
  const std::uint64_t length = text.size();

  file_.write(bytes_of(&length, kLengthBytes));
  file_.write(text);
}

void SafetensorsWriter::write(const Tensor& tensor) {
  buffer_.resize(tensor.bytes());
  copy_to_host(buffer_.data(), tensor.raw(), tensor.bytes(), tensor.device());
  file_.write(std::span<const std::byte>(buffer_));
}

SafetensorsFile::SafetensorsFile(std::filesystem::path path)
    : path_(std::move(path)), file_(path_) {
  const std::string name = path_.string();
  const auto bytes = file_.bytes();
  std::uint64_t length = 0;
  check<FileError>(bytes.size() >= kLengthBytes,
                   "{} has {} bytes, too few for a safetensors file; it was cut off or is another "
                   "file",
                   name, bytes.size());
  std::memcpy(&length, bytes.data(), kLengthBytes);
  check<FileError>(length <= kLongestHeader && length <= bytes.size() - kLengthBytes,
                   "{} promises a header of {} bytes and has {} in all; it was cut off or is no "
                   "safetensors file",
                   name, length, bytes.size());
  const auto* text = reinterpret_cast<const char*>(bytes.data()) + kLengthBytes;
  const std::size_t data = kLengthBytes + length;
  std::size_t held = 0;
  std::vector<Place> places;
  try {
    const Json header = parse_json<Json>({text, length}, name);
    check<FileError>(header.is_object(), "{}: its header is no object; it is no safetensors file",
                     name);
    for (const auto& [key, entry] : header.items()) {
      if (key == kMetadata) {
        metadata_ = entry.get<std::map<std::string, std::string>>();
        continue;
      }
      const TensorSpec spec = parse_spec(entry, name, key);
      const auto offsets = whole_numbers(entry.at("data_offsets"), name, key);
      check<FileError>(offsets.size() == 2,
                       "{}: tensor '{}' has {} data_offsets, not 2; the file was damaged", name,
                       key, offsets.size());
      const auto begin = static_cast<std::uint64_t>(offsets[0]);
      const auto end = static_cast<std::uint64_t>(offsets[1]);
      check<FileError>(begin <= end && end <= bytes.size() - data && end - begin == spec.bytes(),
                       "{}: tensor '{}' with shape {} lies at bytes {} to {} of {}; the file was "
                       "cut off or damaged",
                       name, key, spec.shape, begin, end, bytes.size() - data);
      entries_[key] = {spec, data + begin};
      if (begin < end) {
        places.push_back({begin, end, key});
      }
      held += spec.bytes();
    }
  } catch (const Json::exception& error) {
    throw FileError(
        fmt::format("{}: its header is not readable: {}; it was damaged or is no "
                    "safetensors file",
                    name, error.what()));
  } catch (const ShapeError& error) {
    throw FileError(fmt::format("{}: {}; the file was damaged", name, error.what()));
  }
  require_apart(std::move(places), name);
  check<FileError>(held == bytes.size() - data,
                   "{} has {} bytes of tensors, its header speaks of {}; it was cut off or damaged",
                   name, bytes.size() - data, held);
}

std::vector<std::string> SafetensorsFile::names() const {
  std::vector<std::string> names;
  for (const auto& [name, entry] : entries_) {
    names.push_back(name);
  }
  return names;
}

void SafetensorsFile::read(const std::string& name, const Tensor& tensor) const {
  read_part(name, {tensor.shape(), tensor.dtype()}, 0, tensor);
}

void SafetensorsFile::read_part(const std::string& name, const TensorSpec& spec, std::int64_t begin,
                                const Tensor& part) const {
  const Entry& found = entry(name);
  check<FileError>(found.spec.dtype == spec.dtype && found.spec.shape == spec.shape,
                   "{}: tensor '{}' is {} {}, {} {} is needed; does the configuration belong to "
                   "this file?",
                   path_.string(), name, to_string(found.spec.dtype), found.spec.shape,
                   to_string(spec.dtype), spec.shape);
  check<ShapeError>(
      part.dtype() == spec.dtype && 0 <= begin && begin + part.size() <= spec.shape.size(),
      "elements {} to {} are not within '{}' of shape {}", begin, begin + part.size(), name,
      spec.shape);
  const std::size_t skipped = static_cast<std::size_t>(begin) * size_of(spec.dtype);
  copy_from_host(part.raw(), file_.bytes().data() + found.begin + skipped, part.bytes(),
                 part.device());
}

const SafetensorsFile::Entry& SafetensorsFile::entry(const std::string& name) const {
  const auto found = entries_.find(name);
  if (found == entries_.end()) {
    throw FileError(
        fmt::format("{}: there is no tensor '{}'; the nearest is '{}'. Does the "
                    "configuration belong to this file?",
                    path_.string(), name, nearest(name, names())));
  }
  return found->second;
}

}  // namespace carope
