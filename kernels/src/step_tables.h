#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include <kernels/device_step.h>
#include <kernels/grad_stats.h>
#include <kernels/multi_tensor_update.h>
#include <kernels/muon.h>
#include <kernels/newton_schulz.h>

namespace kernels {

// Places in one piece of device memory, each at a multiple of 256 bytes. Before bind() it only
// counts.
class DeviceMemory {
 public:
  using Place = uint64_t;

  Place reserve(uint64_t bytes) {
    const Place place = bytes_;
    bytes_ += (bytes + 255) / 256 * 256;
    return place;
  }
  template <class T>
  Place reserve_for(const std::vector<T>& values) {
    return reserve(values.size() * sizeof(T));
  }
  uint64_t bytes() const { return bytes_; }
  void bind(void* memory) { memory_ = static_cast<char*>(memory); }

  template <class T>
  T* at(Place place) const {
    return reinterpret_cast<T*>(memory_ + place);
  }
  template <class T>
  cudaError_t upload(Place place, const std::vector<T>& values, cudaStream_t stream) const {
    if (values.empty()) return cudaSuccess;
    return cudaMemcpyAsync(at<T>(place), values.data(), values.size() * sizeof(T),
                           cudaMemcpyHostToDevice, stream);
  }

 private:
  uint64_t bytes_ = 0;
  char* memory_ = nullptr;
};

// Of tables that no part of the update updates.
constexpr uint32_t kNoPart = UINT32_MAX;

// Parameters of equal types and rule: one launch updates all of them. Muon's are here for their
// statistics only.
struct ParamTable {
  TensorTypes types;
  RuleKind rule;
  uint32_t part;  // of the update; 0 for Muon's, kNoPart where only statistics are taken
  std::vector<TensorSlot> slots;
  std::vector<size_t> params;  // of the plan, one per slot
  std::vector<Chunk> chunks;
  DeviceMemory::Place slots_place = 0, chunks_place = 0, partials_place = 0;

  TensorTable on_device(const DeviceMemory& memory) const;
};

// Matrices of one shape that are orthogonalised together, whatever groups they are of: their
// products have the same type and coefficients.
struct MuonBatch {
  MuonTypes types;
  NewtonSchulzShape shape;
  const MuonSettings* settings;
  uint32_t part;
  uint32_t lane;  // 0: queued on the step's stream, 1: beside it
  std::vector<MuonMatrix> matrices;
  std::vector<size_t> params;  // of the plan, one per matrix
  std::vector<Chunk> chunks;
  NewtonSchulz newton_schulz;
  DeviceMemory::Place matrices_place = 0, chunks_place = 0, partials_place = 0, divisors_place = 0;

  uint64_t iterate_bytes() const;  // of one of its two buffers
  uint64_t square_bytes() const;   // of one of its two buffers; of four with on_gram
  uint64_t scratch_bytes() const;  // of all of these
  int multiplications() const {
    return multiplications_of(shape, static_cast<int>(settings->coefficients.size()));
  }
};

// Batches in different lanes have scratch memory of their own; the second lane's is at most that of
// a batch of kSideScratchMost.
constexpr uint32_t kLanes = 2;
constexpr uint64_t kSideScratchMost = uint64_t{256} << 20;

// Whether every parameter can be updated as its group and types say, and has the memory for it.
bool makes_sense(const StepPlan& plan);

std::vector<ParamTable> make_param_tables(const StepPlan& plan);

// Batches in the order of their first matrix, dealt to lanes by their multiplications, each part by
// itself: small ones, which leave a device idle, run beside others. None takes more scratch than
// the plan allows, but for a single matrix that needs more. Pointers to settings lead into `plan`.
// Products are not in blocks yet: that is for the device to say.
std::vector<MuonBatch> make_muon_batches(const StepPlan& plan);

}  // namespace kernels
