// What cudnn-frontend names, and no test calls; and a cuDNN that does not start. Without the
// headers of either, which need not be there.
namespace {
constexpr int kNotSupported = 801;
constexpr int kNotInitialised = 1001;
}  // namespace

extern "C" {
int cudaGraphRetainUserObject() { return kNotSupported; }
int cudaKernelSetAttributeForDevice() { return kNotSupported; }
int cudaLibraryGetKernel() { return kNotSupported; }
int cudaLibraryLoadData() { return kNotSupported; }
int cudaLibraryUnload() { return kNotSupported; }
int cudaPointerGetAttributes() { return kNotSupported; }
int cudaStreamGetCaptureInfo() { return kNotSupported; }
int cudaThreadExchangeStreamCaptureMode() { return kNotSupported; }
int cudaUserObjectCreate() { return kNotSupported; }
int cudaUserObjectRelease() { return kNotSupported; }
int cudnnCreate(void** handle) {
  *handle = nullptr;
  return kNotInitialised;
}
}
