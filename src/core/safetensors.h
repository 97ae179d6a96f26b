#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "core/file.h"
#include "core/tensor.h"

namespace carope {

struct NamedTensor {
  std::string name;
  Tensor tensor;
};

/// Writes tensors of any device as a safetensors file, which appears when it is complete.
void save_safetensors(const std::filesystem::path& path, const std::vector<NamedTensor>& tensors,
                      const std::map<std::string, std::string>& metadata = {});

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
