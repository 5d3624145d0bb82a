// The C functions by the kernels' CPU twins, on host memory: what gpu_check --dry-run calls, so
// that its scripts are tried on machines without a GPU.
#include <cstring>
#include <memory>

#include "gpu_check/c_api.h"
#include "optim/device/host_step.h"

using namespace kernels;

namespace kernels {

const DeviceApi& device_api() { return optim::host_api(); }

}  // namespace kernels

CKPT_C_API const char* sw_device() { return "cpu"; }

CKPT_C_API NewtonSchulzShape* sw_ns_new(const int64_t* shape, int type, int* status) {
  *status = 0;
  return std::make_unique<NewtonSchulzShape>(shape_of(shape, type)).release();
}
CKPT_C_API void sw_ns_free(NewtonSchulzShape* shape) { delete shape; }
CKPT_C_API uint64_t sw_ns_workspace_bytes() { return 256; }
CKPT_C_API int sw_ns_run(NewtonSchulzShape* shape, void** buffers, const CGroup* group, void*) {
  newton_schulz_twin(*shape, {buffers[0], buffers[1], buffers[2], buffers[3], buffers[4]},
                     group_of(*group).muon.coefficients);
  return 0;
}

CKPT_C_API int sw_ns_gram(NewtonSchulzShape* shape, void** buffers, void*) {
  const NewtonSchulzBuffers all = {buffers[0], buffers[1], buffers[2], buffers[3], buffers[4]};
  SymmetricTwin{*shape, all}.multiply(newton_schulz_products(*shape).gram, shape->gram_block,
                                      {1, 0});
  return 0;
}
CKPT_C_API int sw_ns_model(NewtonSchulzShape* shape, int64_t block, double* numbers) {
  model_of({}, gram_of(*shape), block, numbers);
  return 0;
}

// These have no arithmetic to try.
CKPT_C_API int sw_move_mix(const int32_t*, void**, int64_t, void*) { return 0; }
CKPT_C_API int sw_read_only(const void*, int64_t, void*, void*) { return 0; }
CKPT_C_API int sw_copy(void** streams, int64_t count, void*) {
  std::memcpy(streams[0], streams[1], static_cast<size_t>(count) * sizeof(float));
  return 0;
}
CKPT_C_API int sw_triad(void**, int64_t, void*) { return 0; }
