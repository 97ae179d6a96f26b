#pragma once

#include <memory>

#include "core/memory.h"
#include "core/tensor.h"

namespace carope {

/// What an operation runs on: a device, how many threads or which stream, and scratch memory that
/// it may use while it runs. One context serves one caller at a time.
class Context {
 public:
  /// `threads` = 0 takes every core this process may use.
  static Context cpu(int threads = 0);
  static Context cuda(int index = 0);

  Device device() const { return device_; }
  int threads() const { return threads_; }
  /// The cudaStream_t that operations are issued to; null on the CPU.
  void* stream() const { return stream_.get(); }

  /// Scratch for the running operation, a kernel: every call hands out the same memory, so nothing
  /// may be kept there while another operation runs. It grows to the largest request and is then
  /// kept, so a repeated step allocates nothing.
  Tensor scratch(const TensorSpec& spec);

 private:
  Context(Device device, int threads) : device_(device), threads_(threads) {}

  Device device_;
  int threads_;
  std::shared_ptr<void> stream_;
  Memory scratch_;
};

/// Fills with zero bytes, in the order of the context's operations.
void clear(Context& ctx, const Tensor& tensor);
/// Copies from this process's memory, which may be reused at once, in the order of the context's
/// operations.
void upload(Context& ctx, const void* from, const Tensor& to);

}  // namespace carope
