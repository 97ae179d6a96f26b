// NCCL, as far as this program calls it: ranks that hear nothing of each other. Without its header,
// which need not be there.
#include <cstddef>
#include <initializer_list>

#include "state.h"

using namespace carope::fake;

namespace {

struct Id {
  char internal[128];
};

constexpr int kSuccess = 0;
constexpr int kInvalidArgument = 4;

/// Whether a communicator's device has the stream and the memory.
int check(const int* device, cudaStream_t stream, std::initializer_list<const void*> memory) {
  auto* const own = reinterpret_cast<Stream*>(stream);
  bool theirs = state().streams.contains(own) && own->device == *device;
  for (const void* address : memory) {
    theirs = theirs && state().device_of(address) == *device;
  }
  return theirs ? kSuccess : kInvalidArgument;
}

}  // namespace

extern "C" {

int ncclGetUniqueId(Id* id) {
  *id = {};
  return kSuccess;
}
int ncclCommInitRank(int** comm, int, Id, int) {
  *comm = new int{state().current()};
  return kSuccess;
}
int ncclCommDestroy(int* comm) {
  delete comm;
  return kSuccess;
}
int ncclCommAbort(int* comm) { return ncclCommDestroy(comm); }
int ncclCommGetAsyncError(int*, int* error) {
  *error = kSuccess;
  return kSuccess;
}
const char* ncclGetErrorString(int) { return "memory or a stream of another device"; }
const char* ncclGetLastError(int*) { return ""; }

int ncclAllReduce(const void* from, void* to, std::size_t, int, int, int* comm,
                  cudaStream_t stream) {
  return check(comm, stream, {from, to});
}
int ncclReduceScatter(const void* from, void* to, std::size_t, int, int, int* comm,
                      cudaStream_t stream) {
  return check(comm, stream, {from, to});
}
int ncclAllGather(const void* from, void* to, std::size_t, int, int* comm, cudaStream_t stream) {
  return check(comm, stream, {from, to});
}
int ncclBroadcast(const void* from, void* to, std::size_t, int, int, int* comm,
                  cudaStream_t stream) {
  return check(comm, stream, {from, to});
}

}  // extern "C"
