#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "core/file.h"
#include "core/tensor.h"

namespace carope {

struct NamedSpec {
  std::string name;
  TensorSpec spec;
};

/// Writes a safetensors file tensor by tensor, for what is not in memory all at once. The file
/// appears when it is complete.
class SafetensorsWriter {
 public:
  SafetensorsWriter(const std::filesystem::path& path, const std::vector<NamedSpec>& specs,
                    const std::map<std::string, std::string>& metadata = {});

  /// The next tensor, of any device, flat or in its shape.
  void write(const Tensor& tensor);
  void commit() { file_.commit(); }

 private:
  FileWriter file_;
  std::vector<std::byte> buffer_;
};

/// A safetensors file to read from. Opening it checks that the header and the file agree.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(std::filesystem::path path);

  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  bool contains(const std::string& name) const { return entries_.contains(name); }
  std::vector<std::string> names() const;
  TensorSpec spec(const std::string& name) const { return entry(name).spec; }

  /// Copies a tensor of the file into one of the same dtype and shape, on any device.
  void read(const std::string& name, const Tensor& tensor) const;
  /// Copies a part of a tensor that has this spec, from element `begin` on.
  void read_part(const std::string& name, const TensorSpec& spec, std::int64_t begin,
                 const Tensor& part) const;

 private:
  struct Entry {
    TensorSpec spec;
    std::size_t begin;  // in the file
  };
  const Entry& entry(const std::string& name) const;

  std::filesystem::path path_;
  MappedFile file_;
  std::map<std::string, std::string> metadata_;
  std::map<std::string, Entry> entries_;
};

}  // namespace carope
