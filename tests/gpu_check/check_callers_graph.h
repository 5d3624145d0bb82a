#pragma once

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "gpu_check/device_tensors.h"

namespace gpu_check {

// Adam beside Muon, by the standard iteration and on Gram matrices, each with rates of its own.
class MixedStep {
 public:
  explicit MixedStep(kernels::ElementType products) {
    using enum kernels::ElementType;
    add_group(kernels::RuleKind::Adam, products);
    add(1, 50000, {BF16, F32, {F32, F32}, BF16});
    for (const bool on_gram : {false, true}) {
      add_group(kernels::RuleKind::Muon, products);
      plan_.groups.back().muon.on_gram = on_gram;
      for (int i = 0; i < 2; ++i) add(64, 192, {BF16, F32, {F32, None}, BF16});
    }
  }

  const kernels::StepPlan& plan() const { return plan_; }
  std::vector<kernels::GroupRates> rates(int turn) const {
    std::vector<kernels::GroupRates> all;
    for (size_t g = 0; g < plan_.groups.size(); ++g) {
      all.push_back({1e-2 / (turn + 1), 0.1 * static_cast<double>(g + 1)});
    }
    return all;
  }
  // Of all tensors, in which one differs; nothing where none does.
  std::string difference_to(const MixedStep& other) const {
    for (size_t i = 0; i < slots_.size(); ++i) {
      const std::string problem = difference(slots_[i].read(), other.slots_[i].read());
      if (!problem.empty()) return "tensor " + std::to_string(i) + ": " + problem;
    }
    return "";
  }

 private:
  void add_group(kernels::RuleKind rule, kernels::ElementType products) {
    kernels::StepGroup group;
    group.settings.rule = rule;
    group.settings.beta1 = 0.9;
    group.settings.beta2 = 0.95;
    group.settings.eps = 1e-8;
    group.settings.rates_index = static_cast<uint32_t>(plan_.groups.size());
    group.muon.type = products;
    group.muon.coefficients.assign(5, {3.4445F, -4.7750F, 2.0315F});
    group.muon.scale = [](int64_t rows, int64_t columns) {
      return std::sqrt(static_cast<double>(std::max(rows, columns)));
    };
    plan_.groups.push_back(group);
  }

  void add(int64_t rows, int64_t columns, const kernels::TensorTypes& types) {
    const auto seed = static_cast<unsigned>(slots_.size() + 1);
    slots_.emplace_back(kernels::random_slot(types, rows * columns, seed), types);
    kernels::StepParam param = {};
    param.slot = slots_.back().slot();
    param.slot.group = static_cast<uint32_t>(plan_.groups.size() - 1);
    param.slot.stats_index = plan_.stats_count++;
    param.types = types;
    param.rows = rows;
    param.columns = columns;
    plan_.params.push_back(param);
  }

  kernels::StepPlan plan_;
  std::vector<DeviceSlot> slots_;
};

// What a caller records around a step that reads rates and scale from the device.
class CallersGraph {
 public:
  explicit CallersGraph(const BoundStep& step) {
    require(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "a stream");
    require(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "begin of capture");
    const int stats = step->queue_stats(stream_), update = step->queue_update(0, stream_);
    cudaGraph_t graph = nullptr;
    const int end = cudaStreamEndCapture(stream_, &graph);
    require(stats, "queue_stats in a capture");
    require(update, "queue_update in a capture");
    require(end, "end of capture");
    const int made = cudaGraphInstantiate(&executable_, graph, 0);
    cudaGraphDestroy(graph);
    require(made, "the graph");
  }
  ~CallersGraph() {
    cudaGraphExecDestroy(executable_);
    cudaStreamDestroy(stream_);
  }
  CallersGraph(const CallersGraph&) = delete;
  CallersGraph& operator=(const CallersGraph&) = delete;

  void replay() const {
    require(cudaGraphLaunch(executable_, stream_), "a replay");
    require(cudaStreamSynchronize(stream_), "the replayed step");
  }

 private:
  cudaStream_t stream_ = nullptr;
  cudaGraphExec_t executable_ = nullptr;
};

template <class T>
void upload(const DevicePointer& to, const std::vector<T>& values) {
  require(cudaMemcpy(to.get(), values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice),
          "upload");
}

// Replays with other rates, decay and scale in device memory have the bits of steps with these.
// `records`: steps that are compared with are recorded, too, as optimizer_cuda_graph does it.
inline std::string check_callers_graph(kernels::ElementType products, bool records) {
  const MixedStep replayed(products), stepped(products), before(products);
  const BoundStep device(replayed.plan()), plain(stepped.plan());
  const DevicePointer rates = allocate(3 * sizeof(kernels::GroupRates));
  const DevicePointer scale = allocate(sizeof(float));
  upload(rates, replayed.rates(9));
  upload(scale, std::vector<float>{1});
  require(device->set_control({77, 1, true}, nullptr), "set_control");
  require(device->read_from({static_cast<const kernels::GroupRates*>(rates.get()),
                             static_cast<const float*>(scale.get())}),
          "read_from");
  require(device->warm_up(), "warm_up");
  if (records) require(plain->capture(), "capture");
  const std::string moved = replayed.difference_to(before);
  if (!moved.empty()) return "loading kernels moved " + moved;
  const CallersGraph graph(device);
  for (int turn = 0; turn < 4; ++turn) {
    const auto loss_scale = static_cast<float>(1 << turn);
    upload(rates, replayed.rates(turn));
    upload(scale, std::vector<float>{loss_scale});
    graph.replay();
    require(plain->set_rates(stepped.rates(turn), nullptr), "set_rates");
    require(plain->set_control({1 / loss_scale, 1, true}, nullptr), "set_control");
    plain.run();
    if (device.control().grad_norm != plain.control().grad_norm) return "the norm differs";
    const std::string problem = replayed.difference_to(stepped);
    if (!problem.empty()) return "turn " + std::to_string(turn) + ", " + problem;
  }
  return stepped.difference_to(before).empty() ? "nothing moved" : "";
}

inline void run_callers_graph_checks(Report& report) {
  for (const auto products : {kernels::ElementType::BF16, kernels::ElementType::F32}) {
    for (const bool records : {false, true}) {
      const bool is_fp32 = products == kernels::ElementType::F32;
      report.run(std::string("a caller's graph, Adam and Muon, ") + (is_fp32 ? "fp32" : "bf16") +
                     (records ? ", beside a recorded step" : ""),
                 [&] { return check_callers_graph(products, records); });
    }
  }
}

}  // namespace gpu_check
