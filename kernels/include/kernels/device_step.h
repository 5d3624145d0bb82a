// A whole optimizer step on one GPU, for callers that include no CUDA header and link no CUDA
// library: they load it when the program runs, or not at all.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include <kernels/element_type.h>
#include <kernels/rules.h>
#include <kernels/step_control.h>
#include <kernels/tensor_table.h>

namespace kernels {

// 0, or a cudaError_t.
using DeviceStatus = int;
// A cudaStream_t; null: the default stream.
using DeviceStream = void*;

// Copies between one GPU and the host, beside a step there: gradients to parameters that the CPU
// updates, and these back. They run in the caller's stream, or, where they are to overlap with what
// that does, in two of their own, one per direction. Everything is queued, but for wait(). Not
// thread-safe.
class HostCopies {
 public:
  virtual ~HostCopies() = default;  // waits for what it has queued
  // Copies from here on find done what `stream` was given so far.
  virtual DeviceStatus follow(DeviceStream stream) = 0;
  virtual DeviceStatus to_host(void* host, const void* device, uint64_t bytes) = 0;
  // A place behind the copies to the host so far, by a number of the caller's.
  virtual DeviceStatus mark(uint32_t number) = 0;
  // The calling thread waits for the copies before it. A number that was not marked is refused.
  virtual DeviceStatus wait(uint32_t number) = 0;
  virtual DeviceStatus to_device(void* device, const void* host, uint64_t bytes) = 0;
  // What `stream` is given from here on finds the copies to the device done.
  virtual DeviceStatus join(DeviceStream stream) = 0;
};

// Null and a status where CUDA has no streams to give.
std::unique_ptr<HostCopies> make_host_copies(bool overlaps, DeviceStatus& status);

// Page-locks whole pages of host memory, which copies at full speed, and undoes it.
DeviceStatus pin_host(void* memory, uint64_t bytes);
DeviceStatus unpin_host(void* memory);

// Coefficients of one Newton-Schulz step.
struct NewtonSchulzCoefficients {
  float a, b, c;
};

// What Muon needs beyond GroupSettings.
struct MuonSettings {
  std::vector<NewtonSchulzCoefficients> coefficients;  // one per Newton-Schulz step
  ElementType type = ElementType::BF16;                // of the products: BF16 or F32
  bool tf32 = false;                                   // F32 products on TF32 tensor cores
  // Newton-Schulz on the Gram matrix where a matrix is twice as long as wide; F16 in BF16's place.
  bool on_gram = false;
  // Symmetric BF16 products by mirrored_product.h where the model says that it is faster.
  bool mirrored_products = false;
  std::function<double(int64_t rows, int64_t columns)> scale;
  double extra_scale = 1;
};

struct StepGroup {
  GroupSettings settings = {};  // `step`: updates done
  MuonSettings muon = {};
};

// One parameter. `slot`: device pointers, count, group and stats_index; the rest is filled in.
struct StepParam {
  TensorSlot slot = {};
  TensorTypes types = {};
  int64_t rows = 0, columns = 0;  // Muon: of the weight, row-major
  uint32_t qkv_rows[3] = {};      // Muon: rows of query, key and value per group; zeros: no split
  uint32_t part = 0;              // of the update; below StepPlan::part_count
  // Its gradient counts in the statistics, and nothing else is done with it: of the slot, the
  // gradient, the count and the stats_index matter, of the types the gradient's.
  bool stats_only = false;
};

struct StepPlan {
  std::vector<StepGroup> groups;
  std::vector<StepParam> params;
  uint32_t stats_count = 0;                        // stats_index values are below this
  uint32_t part_count = 1;                         // pieces in which the update is queued
  uint64_t scratch_bytes_max = uint64_t{2} << 30;  // for one batch of Newton-Schulz matrices
};

// What the host may change between steps, or between replays of a captured one.
struct GroupRates {
  double lr, weight_decay;
};
struct ControlSettings {
  float inverse_loss_scale = 1;
  float max_norm = 0;  // 0: no clipping
  bool check_finite = false;
};

// Where a step finds on the device what the host would say otherwise: device memory of the
// caller's, read by each queue_stats() and each replay of it. Null: as set_rates() and
// set_control() said. `rates`: as many as GroupSettings::rates_index of the plan say; groups may
// share.
struct DeviceSources {
  const GroupRates* rates = nullptr;
  const float* loss_scale = nullptr;  // gradients are divided by it
};

// A step is set_rates(), set_control(), set_grads() where gradients lie elsewhere than before,
// queue_stats(), then, where several processes share the norm, the sum of stats() over them, then
// queue_update() of every part, 0 first. All of these only queue work: nothing waits, nothing is
// allocated. The set_ functions refuse a stream that is being captured: a replay would write the
// values of that moment again. queue_stats() and queue_update() may be captured by the caller, as
// a part of a whole iteration, once kernels are loaded (a step was made or warm_up() was called):
// with read_from() such a graph has no value of the host's in it. Not thread-safe.
class DeviceStep {
 public:
  virtual ~DeviceStep() = default;
  // Device memory that the caller must give, beside the parameters' own.
  virtual uint64_t device_bytes() const = 0;
  // Takes `device_memory` (device_bytes() of it, a multiple of 256) and writes the tables there.
  // Waits for the stream. The memory and the parameters' must stay where they are.
  virtual DeviceStatus bind(void* device_memory, DeviceStream stream) = 0;
  virtual DeviceStatus set_rates(const std::vector<GroupRates>& rates, DeviceStream stream) = 0;
  virtual DeviceStatus set_control(const ControlSettings& settings, DeviceStream stream) = 0;
  // The gradients' device pointers, in the order of StepPlan::params; types stay. Queues nothing
  // where they are those of the last call. After a failure the step must be made anew.
  virtual DeviceStatus set_grads(const std::vector<const void*>& grads, DeviceStream stream) = 0;
  // From the next queue_stats() on. Refused once capture() has recorded a step without it.
  virtual DeviceStatus read_from(const DeviceSources& sources) = 0;
  virtual DeviceStatus queue_stats(DeviceStream stream) = 0;
  virtual DeviceStatus queue_update(uint32_t part, DeviceStream stream) = 0;
  // A step that changes nothing: CUDA and cuBLASLt load all kernels of the plan. Waits.
  virtual DeviceStatus warm_up() = 0;
  // Records both as CUDA graphs, which queue_stats() and queue_update() then replay, after
  // warm_up(). Waits.
  virtual DeviceStatus capture() = 0;
  // Device memory; valid after bind().
  virtual TensorStats* stats() const = 0;  // stats_count of them, at least one
  virtual const StepControl* control() const = 0;
  virtual const GroupSettings* groups() const = 0;
};

// The functions that a loaded module offers.
struct DeviceApi {
  // Null, or one line that says why no GPU can be used: no driver, a driver that is too old, no
  // device, an architecture that no kernel was compiled for.
  const char* (*problem)();
  const char* (*status_text)(DeviceStatus status);
  // Null and a status where the plan makes no sense or cuBLASLt has no algorithm for a shape.
  std::unique_ptr<DeviceStep> (*make_step)(StepPlan plan, DeviceStatus& status);
  // As in host_copies.h.
  std::unique_ptr<HostCopies> (*make_host_copies)(bool overlaps, DeviceStatus& status);
  DeviceStatus (*pin_host)(void* memory, uint64_t bytes);
  DeviceStatus (*unpin_host)(void* memory);
};
const DeviceApi& device_api();

}  // namespace kernels
