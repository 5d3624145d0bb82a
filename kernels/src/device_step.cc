#include <kernels/device_step.h>
#include <kernels/prepare_step.h>

#include <algorithm>
#include <string>
#include <utility>

#include "device_problem.h"
#include "step_tables.h"

namespace kernels {
namespace {

// A failure that is reported does not stay behind as the last error of CUDA's runtime, where torch
// or the trainer would take it for one of theirs.
cudaError_t reported(cudaError_t error) {
  if (error != cudaSuccess) (void)cudaGetLastError();
  return error;
}

// The first failure of a row of calls; those after it are not made.
class Status {
 public:
  template <class Call>
  Status& then(Call&& call) {
    if (error_ == cudaSuccess) error_ = reported(std::forward<Call>(call)());
    return *this;
  }
  cudaError_t get() const { return error_; }

 private:
  cudaError_t error_ = cudaSuccess;
};

cudaStream_t cuda_stream(DeviceStream stream) { return static_cast<cudaStream_t>(stream); }

// A recorded part of the step.
class Graph {
 public:
  Graph() = default;
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  ~Graph() {
    if (executable_ != nullptr) cudaGraphExecDestroy(executable_);
  }

  bool is_recorded() const { return executable_ != nullptr; }
  cudaError_t launch(cudaStream_t stream) const {
    return reported(cudaGraphLaunch(executable_, stream));
  }

  // Records what `queue` does to a stream of its own, since the default stream cannot record.
  template <class Queue>
  cudaError_t record(Queue&& queue) {
    return reported(record_on_stream(std::forward<Queue>(queue)));
  }

 private:
  template <class Queue>
  cudaError_t record_on_stream(Queue&& queue) {
    cudaStream_t stream = nullptr;
    cudaGraph_t graph = nullptr;
    cudaError_t error = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    if (error != cudaSuccess) return error;
    error = cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);
    if (error == cudaSuccess) {
      const cudaError_t queued = queue(stream);
      error = cudaStreamEndCapture(stream, &graph);
      if (queued != cudaSuccess) error = queued;
    }
    if (error == cudaSuccess) error = cudaGraphInstantiate(&executable_, graph, 0);
    if (graph != nullptr) cudaGraphDestroy(graph);
    cudaStreamDestroy(stream);
    return error;
  }

  cudaGraphExec_t executable_ = nullptr;
};

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
    int multiprocessors = 0;
    Status status;
    status.then([&] { return multiprocessor_count(&multiprocessors); });
    for (MuonBatch& batch : batches_) {
      status.then([&] {
        batch.shape.symmetric_block = symmetric_block_for(batch.shape, multiprocessors);
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
    return kernels::set_rates(memory_.at<GroupSettings>(groups_place_), rates.data(),
                              static_cast<uint32_t>(rates.size()), cuda_stream(stream));
  }

  DeviceStatus set_control(const ControlSettings& settings, DeviceStream stream) override {
    return kernels::set_control(memory_.at<StepControl>(control_place_), settings,
                                cuda_stream(stream));
  }

  DeviceStatus queue_stats(DeviceStream stream) override {
    const cudaStream_t s = cuda_stream(stream);
    return stats_graph_.is_recorded() ? stats_graph_.launch(s) : launch_stats(s);
  }

  DeviceStatus queue_update(DeviceStream stream) override {
    const cudaStream_t s = cuda_stream(stream);
    return update_graph_.is_recorded() ? update_graph_.launch(s) : launch_update(s);
  }

  DeviceStatus capture() override {
    if (stats_graph_.is_recorded()) return cudaErrorInvalidValue;
    const cudaError_t error =
        stats_graph_.record([&](cudaStream_t stream) { return launch_stats(stream); });
    if (error != cudaSuccess) return error;
    return update_graph_.record([&](cudaStream_t stream) { return launch_update(stream); });
  }

  TensorStats* stats() const override { return memory_.at<TensorStats>(stats_place_); }
  const StepControl* control() const override { return memory_.at<StepControl>(control_place_); }
  const GroupSettings* groups() const override { return memory_.at<GroupSettings>(groups_place_); }

 private:
  void reserve() {
    groups_place_ = memory_.reserve(plan_.groups.size() * sizeof(GroupSettings));
    scalars_place_ = memory_.reserve(plan_.groups.size() * sizeof(RuleScalars));
    control_place_ = memory_.reserve(sizeof(StepControl));
    stats_place_ = memory_.reserve(plan_.stats_count * sizeof(TensorStats));
    for (ParamTable& table : tables_) {
      table.slots_place = memory_.reserve_for(table.slots);
      table.chunks_place = memory_.reserve_for(table.chunks);
      table.partials_place = memory_.reserve(table.chunks.size() * sizeof(TensorStats));
    }
    uint64_t iterate_bytes = 0, square_bytes = 0;
    for (MuonBatch& batch : batches_) {
      batch.matrices_place = memory_.reserve_for(batch.matrices);
      batch.chunks_place = memory_.reserve_for(batch.chunks);
      batch.partials_place = memory_.reserve(batch.chunks.size() * sizeof(double));
      batch.divisors_place = memory_.reserve(batch.matrices.size() * sizeof(float));
      iterate_bytes = std::max(iterate_bytes, batch.iterate_bytes());
      square_bytes = std::max(square_bytes, batch.square_bytes());
    }
    if (batches_.empty()) return;
    iterate_place_ = memory_.reserve(iterate_bytes);
    next_place_ = memory_.reserve(iterate_bytes);
    gram_place_ = memory_.reserve(square_bytes);
    polynomial_place_ = memory_.reserve(square_bytes);
    workspace_place_ = memory_.reserve(kNewtonSchulzWorkspaceBytes);
  }

  NewtonSchulzBuffers buffers() const {
    return {memory_.at<void>(iterate_place_), memory_.at<void>(next_place_),
            memory_.at<void>(gram_place_), memory_.at<void>(polynomial_place_),
            memory_.at<void>(workspace_place_)};
  }

  // All batches take turns in the same buffers.
  void place_iterates() {
    for (MuonBatch& batch : batches_) {
      const int64_t bytes = batch.shape.rows * batch.shape.columns * bytes_of(batch.shape.type);
      const int steps = static_cast<int>(batch.settings->coefficients.size());
      const char* const result = static_cast<const char*>(newton_schulz_result(buffers(), steps));
      for (size_t i = 0; i < batch.matrices.size(); ++i) {
        const int64_t offset = static_cast<int64_t>(i) * bytes;
        MuonMatrix& matrix = batch.matrices[i];
        matrix.iterate = static_cast<char*>(buffers().iterate) + offset;
        matrix.update = result + offset;
        const auto places = reinterpret_cast<uintptr_t>(matrix.iterate) |
                            reinterpret_cast<uintptr_t>(matrix.update);
        if (places % 16 != 0) matrix.is_aligned = 0;
      }
    }
  }

  // From zero: the caller may have added what other processes counted.
  cudaError_t launch_stats(cudaStream_t stream) const {
    Status status;
    status.then([&] {
      return cudaMemsetAsync(stats(), 0, plan_.stats_count * sizeof(TensorStats), stream);
    });
    for (const ParamTable& table : tables_) {
      const GradStatsRequest request = {table.on_device(memory_), control(),
                                        memory_.at<TensorStats>(table.partials_place), stats(),
                                        block_count_};
      status.then([&] { return grad_stats(request, stream); });
    }
    return status.get();
  }

  cudaError_t launch_update(cudaStream_t stream) const {
    auto* const groups = memory_.at<GroupSettings>(groups_place_);
    auto* const scalars = memory_.at<RuleScalars>(scalars_place_);
    Status status;
    status.then([&] {
      return finish_step_control(
          {stats(), plan_.stats_count, static_cast<uint32_t>(plan_.groups.size()),
           memory_.at<StepControl>(control_place_), groups, scalars},
          stream);
    });
    for (const ParamTable& table : tables_) {
      if (table.rule == RuleKind::Muon) continue;
      const UpdateRequest request = {table.on_device(memory_), table.rule, scalars, control(),
                                     block_count_};
      status.then([&] { return multi_tensor_update(request, stream); });
    }
    for (const MuonBatch& batch : batches_) {
      status.then([&] { return launch_muon(batch, stream); });
    }
    return status.get();
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
          return batch.newton_schulz.run(buffers(), coefficients.data(),
                                         static_cast<int>(coefficients.size()), stream);
        })
        .then([&] { return muon_finish(request, stream); })
        .get();
  }

  StepPlan plan_;
  std::vector<ParamTable> tables_;
  std::vector<MuonBatch> batches_;
  DeviceMemory memory_;
  DeviceMemory::Place groups_place_ = 0, scalars_place_ = 0, control_place_ = 0, stats_place_ = 0;
  DeviceMemory::Place iterate_place_ = 0, next_place_ = 0, gram_place_ = 0, polynomial_place_ = 0,
                      workspace_place_ = 0;
  int block_count_ = 0;
  cublasLtHandle_t blas_ = nullptr;
  Graph stats_graph_, update_graph_;
};

const char* device_problem() {
  static const std::string text = problem_of(device_facts());
  return text.empty() ? nullptr : text.c_str();
}

const char* status_text(DeviceStatus status) {
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
  static const DeviceApi api = {device_problem, status_text, make_step};
  return api;
}

}  // namespace kernels
