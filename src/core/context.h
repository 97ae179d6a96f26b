#pragma once

#include <memory>
#include <typeindex>
#include <unordered_map>
#include <utility>

#include "core/memory.h"
#include "core/tensor.h"

namespace carope {

/// What an operation runs on: a device, how many threads or which stream, and scratch memory that
/// it may use while it runs. One context serves one caller at a time.
class Context {
 public:
  /// `threads` = 0 takes every core this process may use.
  static Context cpu(int threads = 0);
  /// A thread works on one GPU: that of the context it has made last.
  static Context cuda(int index = 0);

  Device device() const { return device_; }
  int threads() const { return threads_; }
  /// The cudaStream_t that operations are issued to; null on the CPU.
  void* stream() const { return stream_.get(); }

  /// Scratch for the running operation, a kernel: every call hands out the same memory, so nothing
  /// may be kept there while another operation runs. It grows to the largest request and is then
  /// kept, so a repeated step allocates nothing.
  Tensor scratch(const TensorSpec& spec);
  /// Where scratch is until it grows.
  const void* scratch_address() const { return scratch_.data(); }

  /// The type of a model's activations and of the weights in its matrix products; see Gpt.
  DType compute() const { return compute_; }
  void set_compute(DType compute) { compute_ = compute; }

  /// Whether a training step trades time for memory; see Purpose::kRecomputing.
  bool recompute() const { return recompute_; }
  void set_recompute(bool recompute) { recompute_ = recompute; }

  /// Whether equal inputs must give equal bits on every run, also where a faster kernel would not.
  bool deterministic() const { return deterministic_; }
  void set_deterministic(bool deterministic) { deterministic_ = deterministic; }

  /// Whether operations may tell the user what they do: of several ranks only one does.
  bool speaks() const { return speaks_; }
  void set_speaks(bool speaks) { speaks_ = speaks; }

  /// The one T of this context: what kernels build once and use in every call, such as a library's
  /// handle and plans. Made as T(const Context&) on first use and given back before the stream is;
  /// T may keep the device and the stream, not the context, which can be moved.
  template <class T>
  T& state() {
    std::shared_ptr<void>& kept = states_[typeid(T)];
    if (!kept) {
      kept = std::make_shared<T>(std::as_const(*this));
    }
    return *static_cast<T*>(kept.get());
  }

 private:
  Context(Device device, int threads) : device_(device), threads_(threads) {}

  Device device_;
  int threads_;
  DType compute_ = DType::kF32;
  bool recompute_ = false;
  bool deterministic_ = false;
  bool speaks_ = true;
  std::shared_ptr<void> stream_;
  Memory scratch_;
  std::unordered_map<std::type_index, std::shared_ptr<void>> states_;  // ends before the stream
};

/// Fills with zero bytes, in the order of the context's operations.
void clear(Context& ctx, const Tensor& tensor);
/// Copies from this process's memory, which must stay as it is until wait(), in the order of the
/// context's operations.
void upload(Context& ctx, const void* from, const Tensor& to);
/// Copies to this process's memory, in the order of the context's operations: it is there after
/// wait(), unless that memory is not pinned, which makes this call wait.
void download(Context& ctx, const Tensor& from, void* to);
/// Copies between tensors of the context's device, in the order of its operations.
void copy(Context& ctx, const Tensor& from, const Tensor& to);
/// Waits until everything issued to the context is done.
void wait(Context& ctx);

}  // namespace carope
