// The C functions that only a GPU has: Newton-Schulz alone, and the yardsticks of bandwidth.
#include <memory>

#include "bandwidth.cuh"
#include "gpu_check/c_api.h"

namespace {

using namespace kernels;

struct NsSession {
  NewtonSchulz newton_schulz;
  NewtonSchulzShape shape;
  cublasLtHandle_t blas = nullptr;
  ~NsSession() {
    if (blas != nullptr) cublasLtDestroy(blas);
  }
};

}  // namespace

CKPT_C_API const char* sw_device() { return "cuda"; }

CKPT_C_API NsSession* sw_ns_new(const int64_t* shape, int type, int* status) {
  auto session = std::make_unique<NsSession>();
  session->shape = shape_of(shape, type);
  *status = cublasLtCreate(&session->blas) == CUBLAS_STATUS_SUCCESS
                ? session->newton_schulz.prepare(session->blas, session->shape)
                : cudaErrorInitializationError;
  return session.release();
}
CKPT_C_API void sw_ns_free(NsSession* session) { delete session; }
CKPT_C_API uint64_t sw_ns_workspace_bytes() { return kNewtonSchulzWorkspaceBytes; }
// buffers: iterate, next, gram, polynomial, workspace
CKPT_C_API int sw_ns_run(NsSession* session, void** buffers, const CGroup* group, void* stream) {
  const StepGroup settings = group_of(*group);
  const auto& coefficients = settings.muon.coefficients;
  return session->newton_schulz.run({buffers[0], buffers[1], buffers[2], buffers[3], buffers[4]},
                                    coefficients.data(), static_cast<int>(coefficients.size()),
                                    static_cast<cudaStream_t>(stream));
}

// bytes: grad, main, remainder, state 0, state 1, model; streams in the same order.
CKPT_C_API int sw_move_mix(const int32_t* bytes, void** streams, int64_t count, void* stream) {
  return gpu_check::move_mix(
      {bytes[0], bytes[1], bytes[2], {bytes[3], bytes[4]}, bytes[5]},
      {streams[0], streams[1], streams[2], {streams[3], streams[4]}, streams[5]}, count,
      static_cast<cudaStream_t>(stream));
}
CKPT_C_API int sw_read_only(const void* from, int64_t bytes, void* sink, void* stream) {
  return gpu_check::read_only(from, bytes, static_cast<uint32_t*>(sink),
                              static_cast<cudaStream_t>(stream));
}
CKPT_C_API int sw_copy(void** streams, int64_t count, void* stream) {
  return gpu_check::copy(static_cast<float*>(streams[0]), static_cast<const float*>(streams[1]),
                         count, static_cast<cudaStream_t>(stream));
}
CKPT_C_API int sw_triad(void** streams, int64_t count, void* stream) {
  return gpu_check::triad({static_cast<float*>(streams[0]), static_cast<const float*>(streams[1]),
                           static_cast<const float*>(streams[2])},
                          count, static_cast<cudaStream_t>(stream));
}
