#include <algorithm>
#include <string>
#include <utility>

#include <kernels/device_step.h>
#include <kernels/prepare_step.h>

#include "call_status.h"
#include "device_problem.h"
#include "graph.h"
#include "step_tables.h"

namespace kernels {
namespace {

// Gradients that lie elsewhere than before.
struct MovedGrads {
  const std::vector<const void*>& grads;  // one per parameter of the plan
  cudaStream_t stream;

  // Writes all of a table's where one has changed; `params`: of the plan, one per entry.
  template <class Entry>
  cudaError_t write(std::vector<Entry>& entries, const std::vector<size_t>& params,
                    Entry* on_device) const {
    std::vector<const void*> moved;
    bool has_changed = false;
    for (size_t i = 0; i < entries.size(); ++i) {
      moved.push_back(grads[params[i]]);
      has_changed = has_changed || moved[i] != entries[i].grad;
    }
    if (!has_changed) return cudaSuccess;
    for (size_t i = 0; i < entries.size(); ++i) entries[i].grad = moved[i];
    return set_grads(on_device, moved.data(), static_cast<uint32_t>(moved.size()), stream);
  }
};

cudaStream_t cuda_stream(DeviceStream stream) { return static_cast<cudaStream_t>(stream); }

// Beside CUDA's own errors.
constexpr DeviceStatus kWouldBeFrozen = 100000;

// Whether values may be written now: a stream that is being captured would keep them.
DeviceStatus check_not_captured(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  const cudaError_t error = reported(cudaStreamIsCapturing(stream, &status));
  if (error != cudaSuccess) return error;
  return status == cudaStreamCaptureStatusNone ? DeviceStatus{cudaSuccess} : kWouldBeFrozen;
}

class CudaStep final : public DeviceStep {
 public:
  explicit CudaStep(StepPlan plan) : plan_(std::move(plan)) {}
  CudaStep(const CudaStep&) = delete;
  CudaStep& operator=(const CudaStep&) = delete;
  ~CudaStep() override {
    if (blas_ != nullptr) cublasLtDestroy(blas_);
  }

  // Tables, Newton-Schulz algorithms and places in device memory.
  cudaError_t prepare() {
    if (!makes_sense(plan_)) return cudaErrorInvalidValue;
    tables_ = make_param_tables(plan_);
    batches_ = make_muon_batches(plan_);
    reserve();
    const cudaError_t error = persistent_blocks(&block_count_);
    if (error != cudaSuccess || batches_.empty()) return reported(error);
    if (cublasLtCreate(&blas_) != CUBLAS_STATUS_SUCCESS) return cudaErrorInitializationError;
    DeviceRates rates;
    Status status;
    if (has_side_lane()) status.then([&] { return side_.make(); });
    status.then([&] { return device_rates(&rates); });
    for (MuonBatch& batch : batches_) {
      status.then([&] { return choose_blocks(blas_, rates, batch.shape); }).then([&] {
        return batch.newton_schulz.prepare(blas_, batch.shape);
      });
    }
    return status.get();
  }

  uint64_t device_bytes() const override { return memory_.bytes(); }

  DeviceStatus bind(void* device_memory, DeviceStream stream) override {
    memory_.bind(device_memory);
    place_iterates();
    Status status;
    for (MuonBatch& batch : batches_) {
      status.then([&] { return batch.newton_schulz.bind(buffers(batch.lane)); });
    }
    std::vector<GroupSettings> settings;
    for (const StepGroup& group : plan_.groups) settings.push_back(group.settings);
    const cudaStream_t s = cuda_stream(stream);
    const std::vector<StepControl> control(1);
    status.then([&] { return memory_.upload(groups_place_, settings, s); }).then([&] {
      return memory_.upload(control_place_, control, s);
    });
    for (const ParamTable& table : tables_) {
      status.then([&] { return memory_.upload(table.slots_place, table.slots, s); }).then([&] {
        return memory_.upload(table.chunks_place, table.chunks, s);
      });
    }
    for (const MuonBatch& batch : batches_) {
      status.then([&] { return memory_.upload(batch.matrices_place, batch.matrices, s); })
          .then([&] { return memory_.upload(batch.chunks_place, batch.chunks, s); });
    }
    return status.then([&] { return cudaStreamSynchronize(s); }).get();
  }

  DeviceStatus set_rates(const std::vector<GroupRates>& rates, DeviceStream stream) override {
    if (rates.size() != plan_.groups.size()) return cudaErrorInvalidValue;
    const cudaStream_t s = cuda_stream(stream);
    if (const DeviceStatus status = check_not_captured(s)) return status;
    return kernels::set_rates(memory_.at<GroupSettings>(groups_place_), rates.data(),
                              static_cast<uint32_t>(rates.size()), s);
  }

  DeviceStatus set_control(const ControlSettings& settings, DeviceStream stream) override {
    const cudaStream_t s = cuda_stream(stream);
    if (const DeviceStatus status = check_not_captured(s)) return status;
    return kernels::set_control(memory_.at<StepControl>(control_place_), settings, s);
  }

  DeviceStatus set_grads(const std::vector<const void*>& grads, DeviceStream stream) override {
    if (grads.size() != plan_.params.size()) return cudaErrorInvalidValue;
    const cudaStream_t s = cuda_stream(stream);
    if (const DeviceStatus status = check_not_captured(s)) return status;
    const MovedGrads moved = {grads, s};
    Status status;
    for (ParamTable& table : tables_) {
      status.then([&] {
        return moved.write(table.slots, table.params, memory_.at<TensorSlot>(table.slots_place));
      });
    }
    for (MuonBatch& batch : batches_) {
      status.then([&] {
        return moved.write(batch.matrices, batch.params,
                           memory_.at<MuonMatrix>(batch.matrices_place));
      });
    }
    return status.get();
  }

  DeviceStatus read_from(const DeviceSources& sources) override {
    if (stats_graph_.is_recorded()) return cudaErrorInvalidValue;
    sources_ = sources;
    return cudaSuccess;
  }

  DeviceStatus warm_up() override {
    Stream stream;
    return Status()
        .then([&] { return stream.make(); })
        .then([&] { return launch_idle_step(stream.get()); })
        .get();
  }

  DeviceStatus queue_stats(DeviceStream stream) override {
    const cudaStream_t s = cuda_stream(stream);
    return stats_graph_.is_recorded() ? stats_graph_.launch(s) : launch_stats(s);
  }

  DeviceStatus queue_update(uint32_t part, DeviceStream stream) override {
    if (part >= plan_.part_count) return cudaErrorInvalidValue;
    const cudaStream_t s = cuda_stream(stream);
    return update_graphs_.empty() ? launch_update(part, s) : update_graphs_[part].launch(s);
  }

  DeviceStatus capture() override {
    if (stats_graph_.is_recorded()) return cudaErrorInvalidValue;
    Stream stream;
    std::vector<Graph> updates(plan_.part_count);
    Status status;
    status.then([&] { return stream.make(); })
        .then([&] { return launch_idle_step(stream.get()); })
        .then([&] {
          return stats_graph_.record(stream.get(), [&](cudaStream_t s) { return launch_stats(s); });
        });
    for (uint32_t part = 0; part < plan_.part_count; ++part) {
      status.then([&] {
        return updates[part].record(stream.get(),
                                    [&](cudaStream_t s) { return launch_update(part, s); });
      });
    }
    if (status.get() == cudaSuccess) update_graphs_ = std::move(updates);
    return status.get();
  }

  TensorStats* stats() const override { return memory_.at<TensorStats>(stats_place_); }
  const StepControl* control() const override { return memory_.at<StepControl>(control_place_); }
  const GroupSettings* groups() const override { return memory_.at<GroupSettings>(groups_place_); }

 private:
  void reserve() {
    groups_place_ = memory_.reserve(plan_.groups.size() * sizeof(GroupSettings));
    scalars_place_ = memory_.reserve(plan_.groups.size() * sizeof(RuleScalars));
    control_place_ = memory_.reserve(sizeof(StepControl));
    stats_place_ = memory_.reserve(stats_count() * sizeof(TensorStats));
    for (ParamTable& table : tables_) {
      table.slots_place = memory_.reserve_for(table.slots);
      table.chunks_place = memory_.reserve_for(table.chunks);
      table.partials_place = memory_.reserve(table.chunks.size() * sizeof(TensorStats));
    }
    for (MuonBatch& batch : batches_) {
      batch.matrices_place = memory_.reserve_for(batch.matrices);
      batch.chunks_place = memory_.reserve_for(batch.chunks);
      batch.partials_place = memory_.reserve(batch.chunks.size() * sizeof(double));
      batch.divisors_place = memory_.reserve(batch.matrices.size() * sizeof(float));
    }
    for (uint32_t lane = 0; lane < kLanes; ++lane) reserve_scratch(lane);
  }

  void reserve_scratch(uint32_t lane) {
    uint64_t iterate_bytes = 0, square_bytes = 0, gram_bytes = 0;
    for (const MuonBatch& batch : batches_) {
      if (batch.lane != lane) continue;
      iterate_bytes = std::max(iterate_bytes, batch.iterate_bytes());
      square_bytes = std::max(square_bytes, batch.square_bytes());
      if (batch.shape.on_gram) gram_bytes = std::max(gram_bytes, batch.square_bytes());
    }
    if (iterate_bytes == 0) return;
    Scratch& scratch = scratch_[lane];
    scratch.iterate = memory_.reserve(iterate_bytes);
    scratch.next = memory_.reserve(iterate_bytes);
    scratch.gram = memory_.reserve(square_bytes);
    scratch.polynomial = memory_.reserve(square_bytes);
    scratch.workspace = memory_.reserve(kNewtonSchulzWorkspaceBytes);
    scratch.factor = memory_.reserve(gram_bytes);
    scratch.spare = memory_.reserve(gram_bytes);
  }

  NewtonSchulzBuffers buffers(uint32_t lane) const {
    const Scratch& scratch = scratch_[lane];
    return {memory_.at<void>(scratch.iterate),   memory_.at<void>(scratch.next),
            memory_.at<void>(scratch.gram),      memory_.at<void>(scratch.polynomial),
            memory_.at<void>(scratch.workspace), memory_.at<void>(scratch.factor),
            memory_.at<void>(scratch.spare)};
  }

  bool has_side_lane() const {
    return std::any_of(batches_.begin(), batches_.end(),
                       [](const MuonBatch& batch) { return batch.lane != 0; });
  }

  // All batches of a lane take turns in the same buffers.
  void place_iterates() {
    for (MuonBatch& batch : batches_) {
      const NewtonSchulzBuffers lane = buffers(batch.lane);
      const int64_t bytes = batch.shape.rows * batch.shape.columns * bytes_of(batch.shape.type);
      const char* const result =
          static_cast<const char*>(newton_schulz_result(lane, batch.multiplications()));
      for (size_t i = 0; i < batch.matrices.size(); ++i) {
        const int64_t offset = static_cast<int64_t>(i) * bytes;
        MuonMatrix& matrix = batch.matrices[i];
        matrix.iterate = static_cast<char*>(lane.iterate) + offset;
        matrix.update = result + offset;
        matrix.is_aligned = is_aligned(matrix) ? 1 : 0;
      }
    }
  }

  // At least one: where a process says that it could not take part.
  uint32_t stats_count() const { return std::max(plan_.stats_count, 1U); }

  // A step that changes nothing, since a process seems to have failed. CUDA loads a kernel when it
  // is first launched, cuBLASLt its own, too, and in a capture that may fail.
  cudaError_t launch_idle_step(cudaStream_t stream) {
    Status status;
    status.then([&] { return launch_stats(stream); }).then([&] {
      return cudaMemsetAsync(stats(), 0xFF, sizeof(TensorStats), stream);  // NaN
    });
    for (uint32_t part = 0; part < plan_.part_count; ++part) {
      status.then([&] { return launch_update(part, stream); });
    }
    return status.then([&] { return cudaStreamSynchronize(stream); }).get();
  }

  // From zero: the caller may have added what other processes counted.
  cudaError_t launch_stats(cudaStream_t stream) const {
    Status status;
    if (sources_.rates != nullptr || sources_.loss_scale != nullptr) {
      const SourcesRequest request = {sources_, memory_.at<GroupSettings>(groups_place_),
                                      memory_.at<StepControl>(control_place_),
                                      static_cast<uint32_t>(plan_.groups.size())};
      status.then([&] { return read_sources(request, stream); });
    }
    status.then(
        [&] { return cudaMemsetAsync(stats(), 0, stats_count() * sizeof(TensorStats), stream); });
    for (const ParamTable& table : tables_) {
      const GradStatsRequest request = {table.on_device(memory_), control(),
                                        memory_.at<TensorStats>(table.partials_place), stats(),
                                        block_count_};
      status.then([&] { return grad_stats(request, stream); });
    }
    return status.get();
  }

  // Batches of the side lane run beside the tables and the other batches.
  cudaError_t launch_update(uint32_t part, cudaStream_t stream) {
    const bool forks = std::any_of(batches_.begin(), batches_.end(), [&](const MuonBatch& batch) {
      return batch.part == part && batch.lane != 0;
    });
    const auto on_stream = [&](cudaStream_t s) {
      return Status()
          .then([&] { return launch_tables(part, s); })
          .then([&] { return launch_batches(part, 0, s); })
          .get();
    };
    Status status;
    if (part == 0) status.then([&] { return launch_control(stream); });
    if (!forks) return status.then([&] { return on_stream(stream); }).get();
    return status
        .then([&] {
          return side_.run(
              stream, [&](cudaStream_t side) { return launch_batches(part, 1, side); }, on_stream);
        })
        .get();
  }

  cudaError_t launch_tables(uint32_t part, cudaStream_t stream) const {
    auto* const scalars = memory_.at<RuleScalars>(scalars_place_);
    Status status;
    for (const ParamTable& table : tables_) {
      if (table.rule == RuleKind::Muon || table.part != part) continue;
      const UpdateRequest request = {table.on_device(memory_), table.rule, scalars, control(),
                                     block_count_};
      status.then([&] { return multi_tensor_update(request, stream); });
    }
    return status.get();
  }

  cudaError_t launch_batches(uint32_t part, uint32_t lane, cudaStream_t stream) const {
    Status status;
    for (const MuonBatch& batch : batches_) {
      if (batch.part != part || batch.lane != lane) continue;
      status.then([&] { return launch_muon(batch, stream); });
    }
    return status.get();
  }

  cudaError_t launch_control(cudaStream_t stream) const {
    return finish_step_control(
        {stats(), stats_count(), static_cast<uint32_t>(plan_.groups.size()),
         memory_.at<StepControl>(control_place_), memory_.at<GroupSettings>(groups_place_),
         memory_.at<RuleScalars>(scalars_place_)},
        stream);
  }

  cudaError_t launch_muon(const MuonBatch& batch, cudaStream_t stream) const {
    const MuonRequest request = {memory_.at<MuonMatrix>(batch.matrices_place),
                                 memory_.at<Chunk>(batch.chunks_place),
                                 memory_.at<double>(batch.partials_place),
                                 memory_.at<float>(batch.divisors_place),
                                 memory_.at<RuleScalars>(scalars_place_),
                                 groups(),
                                 control(),
                                 static_cast<uint32_t>(batch.matrices.size()),
                                 static_cast<uint32_t>(batch.chunks.size()),
                                 batch.types,
                                 block_count_};
    const auto& coefficients = batch.settings->coefficients;
    return Status()
        .then([&] { return muon_prepare(request, stream); })
        .then([&] {
          return batch.newton_schulz.run(buffers(batch.lane), coefficients.data(),
                                         static_cast<int>(coefficients.size()), stream);
        })
        .then([&] { return muon_finish(request, stream); })
        .get();
  }

  StepPlan plan_;
  DeviceSources sources_;
  std::vector<ParamTable> tables_;
  std::vector<MuonBatch> batches_;
  DeviceMemory memory_;
  DeviceMemory::Place groups_place_ = 0, scalars_place_ = 0, control_place_ = 0, stats_place_ = 0;
  struct Scratch {
    DeviceMemory::Place iterate = 0, next = 0, gram = 0, polynomial = 0, workspace = 0, factor = 0,
                        spare = 0;
  } scratch_[kLanes];
  SideStream side_;
  int block_count_ = 0;
  cublasLtHandle_t blas_ = nullptr;
  Graph stats_graph_;
  std::vector<Graph> update_graphs_;  // one per part
};

const char* device_problem() {
  static const std::string text = problem_of(device_facts());
  return text.empty() ? nullptr : text.c_str();
}

const char* status_text(DeviceStatus status) {
  if (status == kWouldBeFrozen) {
    return "the stream is being captured, and every replay would write this step's rates, scale "
           "and gradients again; optimizer_cuda_graph records the step itself";
  }
  return cudaGetErrorString(static_cast<cudaError_t>(status));
}

std::unique_ptr<DeviceStep> make_step(StepPlan plan, DeviceStatus& status) {
  auto step = std::make_unique<CudaStep>(std::move(plan));
  status = step->prepare();
  if (status != cudaSuccess) return nullptr;
  return step;
}

}  // namespace

const DeviceApi& device_api() {
  static const DeviceApi api = {device_problem,   status_text, make_step,
                                make_host_copies, pin_host,    unpin_host};
  return api;
}

}  // namespace kernels
