// The driver's function that makes tensor maps, by what its reference says.
#include "kernels/emulation/tensor_map.h"

namespace {

struct Asked {
  const void* memory;
  const cuuint64_t* lengths;
  const cuuint64_t* strides;
  const cuuint32_t* box;
  const cuuint32_t* steps;
};

bool can_be(const Asked& asked) {
  if (reinterpret_cast<uintptr_t>(asked.memory) % 16 != 0 || asked.memory == nullptr) return false;
  for (int i = 0; i < 3; ++i) {
    const bool has_length = asked.lengths[i] > 0 && asked.lengths[i] <= uint64_t{1} << 32;
    const bool has_box = asked.box[i] > 0 && asked.box[i] <= 256;
    if (!has_length || !has_box || asked.steps[i] != 1) return false;
  }
  for (int i = 0; i < 2; ++i) {
    if (asked.strides[i] % 16 != 0 || asked.strides[i] >= uint64_t{1} << 40) return false;
  }
  return asked.strides[0] >= 2 * asked.lengths[0] &&
         asked.strides[1] >= asked.strides[0] * asked.lengths[1] && asked.box[0] * 2 % 16 == 0 &&
         asked.box[0] * 2 <= 128;
}

}  // namespace

extern "C" CUresult cuTensorMapEncodeTiled(CUtensorMap* map, CUtensorMapDataType type,
                                           cuuint32_t rank, void* memory, const cuuint64_t* lengths,
                                           const cuuint64_t* strides, const cuuint32_t* box,
                                           const cuuint32_t* steps,
                                           CUtensorMapInterleave interleave,
                                           CUtensorMapSwizzle swizzle, CUtensorMapL2promotion,
                                           CUtensorMapFloatOOBfill fill) {
  if (type != CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 || rank != 3 ||
      interleave != CU_TENSOR_MAP_INTERLEAVE_NONE || fill != CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE ||
      !can_be({memory, lengths, strides, box, steps})) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const emulation::TensorMap made = {static_cast<const char*>(memory),
                                     {lengths[0], lengths[1], lengths[2]},
                                     {strides[0], strides[1]},
                                     {box[0], box[1], box[2]},
                                     swizzle == CU_TENSOR_MAP_SWIZZLE_128B ? 1U : 0U,
                                     emulation::kKnownMap};
  *map = {};
  std::memcpy(map, &made, sizeof made);
  return CUDA_SUCCESS;
}
