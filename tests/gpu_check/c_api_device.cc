// The C functions that only a GPU has: Newton-Schulz alone, and the yardsticks of bandwidth.
#include <memory>

#include "bandwidth.cuh"
#include "gpu_check/c_api.h"
#include "products.h"

namespace {

using namespace kernels;

struct NsSession {
  NewtonSchulz newton_schulz;
  std::unique_ptr<SymmetricProduct> gram;
  NewtonSchulzShape shape;
  void* bound = nullptr;  // the iterate of the buffers that were bound
  cublasLtHandle_t blas = nullptr;
  ~NsSession() {
    if (blas != nullptr) cublasLtDestroy(blas);
  }

  // `chooses`: how symmetric products are computed, as a step does.
  cudaError_t prepare(bool chooses) {
    if (cublasLtCreate(&blas) != CUBLAS_STATUS_SUCCESS) return cudaErrorInitializationError;
    if (chooses) {
      DeviceRates rates;
      cudaError_t error = device_rates(&rates);
      if (error == cudaSuccess) error = choose_blocks(blas, rates, shape);
      if (error != cudaSuccess) return error;
    }
    const NsProducts products = newton_schulz_products(shape);
    const cublasStatus_t status =
        make_symmetric_product(blas, {shape, products.gram, shape.gram_block, shape.gram_by}, gram);
    return status == CUBLAS_STATUS_SUCCESS ? newton_schulz.prepare(blas, shape)
                                           : as_cuda_error(status);
  }
  // Once for the same memory.
  cudaError_t bind(const NewtonSchulzBuffers& buffers) {
    if (bound == buffers.iterate) return cudaSuccess;
    cudaError_t error = newton_schulz.bind(buffers);
    if (error == cudaSuccess) error = gram->bind(buffers);
    if (error == cudaSuccess) bound = buffers.iterate;
    return error;
  }
};

NewtonSchulzBuffers buffers_of(void** buffers) {
  return {buffers[0], buffers[1], buffers[2], buffers[3], buffers[4]};
}

}  // namespace

CKPT_C_API const char* sw_device() { return "cuda"; }

CKPT_C_API NsSession* sw_ns_new(const int64_t* shape, int type, int* status) {
  auto session = std::make_unique<NsSession>();
  session->shape = shape_of(shape, type);
  *status = session->prepare(shape[3] == -1);
  return session.release();
}
CKPT_C_API void sw_ns_free(NsSession* session) { delete session; }
CKPT_C_API uint64_t sw_ns_workspace_bytes() { return kNewtonSchulzWorkspaceBytes; }
// buffers: iterate, next, gram, polynomial, workspace
CKPT_C_API int sw_ns_run(NsSession* session, void** buffers, const CGroup* group, void* stream) {
  const StepGroup settings = group_of(*group);
  const auto& coefficients = settings.muon.coefficients;
  if (const cudaError_t error = session->bind(buffers_of(buffers))) return error;
  return session->newton_schulz.run(buffers_of(buffers), coefficients.data(),
                                    static_cast<int>(coefficients.size()),
                                    static_cast<cudaStream_t>(stream));
}
// The first symmetric product of an iteration.
CKPT_C_API int sw_ns_gram(NsSession* session, void** buffers, void* stream) {
  if (const cudaError_t error = session->bind(buffers_of(buffers))) return error;
  return as_cuda_error(
      session->gram->queue({1, 0}, buffers_of(buffers), static_cast<cudaStream_t>(stream)));
}
CKPT_C_API int sw_ns_model(NsSession* session, int64_t block, double* numbers) {
  SymmetricShape gram = gram_of(session->shape);
  LtMatmul whole;
  const cublasStatus_t status =
      whole.prepare(session->blas, session->shape, newton_schulz_products(session->shape).gram);
  if (status != CUBLAS_STATUS_SUCCESS) return as_cuda_error(status);
  gram.tile = whole.tile();
  DeviceRates rates;
  const cudaError_t error = device_rates(&rates);
  if (error == cudaSuccess) model_of(rates, gram, block, numbers);
  return error;
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
