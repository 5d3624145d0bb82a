// Whole optimizers over the fake GPU: their steps in a graph of the trainer's, which is replayed
// with other rates and another loss scale in device memory.
#include <boost/test/unit_test.hpp>

#include <ATen/ops/ones.h>
#include <c10/core/CPUAllocator.h>
#include <kernels/device_step.h>
#include <optim/layer_wise_optimizer.h>

#include <algorithm>
#include <array>
#include <limits>
#include <set>

#include "fake_cuda.h"
#include "optim/step/layer_wise_runs.h"
#include "step/optimizer/peers_and_device.h"

namespace {

using optim::LayerWiseDistributedOptimizer;
using OptimizerPtr = std::unique_ptr<LayerWiseDistributedOptimizer>;

// The stream that LibTorch would have as its current one.
cudaStream_t current = nullptr;

// A step on the fake, whose tensors are LibTorch's on the CPU: null streams are `current`.
class StepOnStream final : public kernels::DeviceStep {
 public:
  using Status = kernels::DeviceStatus;
  using Stream = kernels::DeviceStream;
  explicit StepOnStream(std::unique_ptr<DeviceStep> step) : step_(std::move(step)) {}
  uint64_t device_bytes() const override { return step_->device_bytes(); }
  Status bind(void* memory, Stream) override { return step_->bind(memory, current); }
  Status set_rates(const std::vector<kernels::GroupRates>& rates, Stream) override {
    return step_->set_rates(rates, current);
  }
  Status set_control(const kernels::ControlSettings& settings, Stream) override {
    return step_->set_control(settings, current);
  }
  Status set_grads(const std::vector<const void*>& grads, Stream) override {
    return step_->set_grads(grads, current);
  }
  Status read_from(const kernels::DeviceSources& sources) override {
    return step_->read_from(sources);
  }
  Status queue_stats(Stream) override { return step_->queue_stats(current); }
  Status queue_update(uint32_t part, Stream) override { return step_->queue_update(part, current); }
  Status warm_up() override { return step_->warm_up(); }
  Status capture() override { return step_->capture(); }
  kernels::TensorStats* stats() const override { return step_->stats(); }
  const kernels::StepControl* control() const override { return step_->control(); }
  const kernels::GroupSettings* groups() const override { return step_->groups(); }

 private:
  std::unique_ptr<DeviceStep> step_;
};

const kernels::DeviceApi& fake_api() {
  static const kernels::DeviceApi api = [] {
    kernels::DeviceApi fake = kernels::device_api();
    fake.make_step = [](kernels::StepPlan plan, kernels::DeviceStatus& status) {
      auto step = kernels::device_api().make_step(std::move(plan), status);
      return std::unique_ptr<kernels::DeviceStep>(
          step ? std::make_unique<StepOnStream>(std::move(step)) : nullptr);
    };
    return fake;
  }();
  return api;
}

struct Gpu {
  Gpu() {
    fake_cuda::reset();
    fake_cuda::set_multiprocessors(2);
    fake_cuda::set_executes(true);
    cudaStreamCreateWithFlags(&current, cudaStreamNonBlocking);
  }
  ~Gpu() {
    cudaStreamDestroy(current);
    current = nullptr;
    fake_cuda::set_executes(false);
  }
};

// A trainer's graph.
class Graph {
 public:
  template <class Body>
  explicit Graph(Body&& body) {
    cudaStreamBeginCapture(current, cudaStreamCaptureModeThreadLocal);
    body();
    BOOST_TEST(cudaStreamEndCapture(current, &graph_) == cudaSuccess);
    BOOST_TEST(cudaGraphInstantiate(&executable_, graph_, 0) == cudaSuccess);
  }
  ~Graph() {
    cudaGraphExecDestroy(executable_);
    cudaGraphDestroy(graph_);
  }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  void replay() { BOOST_TEST(cudaGraphLaunch(executable_, current) == cudaSuccess); }

 private:
  cudaGraph_t graph_ = nullptr;
  cudaGraphExec_t executable_ = nullptr;
};

enum class Where { Cpu, Fake };

OptimizerPtr make_on(Where where, const optim::OptimizerConfig& config) {
  OptimizerPtr made = make_optimizer(small_model(1, 3), {}, {}, config);
  if (where == Where::Fake) optim::StepInside::of(*made).device_api = &fake_api();
  return made;
}

// Gradients where they stay, and where a replay finds their next values.
struct Gradients {
  explicit Gradients(LayerWiseDistributedOptimizer& optimizer) {
    optimizer.bind_grads([&](const optim::ParamInfo& info) {
      infos.push_back(info);
      next.push_back(gradient_of(info, 0));
      bound.push_back(gradient_of(info, 0));
      return bound.back();
    });
  }
  void set(int64_t step, double scale) {
    for (size_t i = 0; i < next.size(); ++i) {
      next[i].copy_(gradient_of(infos[i], step)).mul_(scale);
    }
  }
  // What stands for the backward pass.
  void queue_copies() {
    for (size_t i = 0; i < next.size(); ++i) {
      cudaMemcpyAsync(bound[i].mutable_data_ptr(), next[i].const_data_ptr(), next[i].nbytes(),
                      cudaMemcpyHostToDevice, current);
    }
  }
  std::vector<optim::ParamInfo> infos;
  std::vector<at::Tensor> next, bound;
};

void set_rates(LayerWiseDistributedOptimizer& optimizer, double lr) {
  for (optim::OptimizerGroup* const group : optimizer.param_groups()) {
    group->lr = lr * (1 + 0.125 * static_cast<double>(group->settings.optimizer_index));
    group->weight_decay = 2 * lr;
    lr /= 2;
  }
}

std::vector<at::Tensor> all_of(LayerWiseDistributedOptimizer& optimizer) {
  std::vector<at::Tensor> all;
  for (const optim::OptimizedParam* const param : optimizer.get_parameters()) {
    all.push_back(param->model.param.clone());
    all.push_back(optim::master_of(*param).clone());
    for (const auto& [name, state] : optim::state_of(*param)) all.push_back(state.clone());
  }
  return all;
}

std::vector<int64_t> steps_of(LayerWiseDistributedOptimizer& optimizer) {
  std::vector<int64_t> steps;
  for (const optim::OptimizedParam* const param : optimizer.get_parameters()) {
    steps.push_back(param->step);
  }
  return steps;
}

void expect_near(LayerWiseDistributedOptimizer& ours, LayerWiseDistributedOptimizer& cpu) {
  const auto found = ours.get_parameters(), wanted = cpu.get_parameters();
  for (size_t i = 0; i < wanted.size(); ++i) {
    const at::Tensor master = optim::master_of(*wanted[i]);
    BOOST_TEST(largest_difference(optim::master_of(*found[i]), master) <=
                   1e-5 * master.abs().max().item<double>(),
               wanted[i]->model.info.name);
  }
}

// Counts what LibTorch allocates while it is there.
class CountingAllocator final : public c10::Allocator {
 public:
  CountingAllocator() : before_(c10::GetCPUAllocator()) { c10::SetCPUAllocator(this, 100); }
  ~CountingAllocator() override { c10::SetCPUAllocator(before_, 100); }
  c10::DataPtr allocate(size_t bytes) override {
    ++count;
    return before_->allocate(bytes);
  }
  c10::DeleterFnPtr raw_deleter() const override { return before_->raw_deleter(); }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
  int count = 0;

 private:
  c10::Allocator* before_;
};

optim::OptimizerConfig scaled_config() {
  optim::OptimizerConfig config = muon_config();
  config.muon_fp32_matmul_prec = optim::MatmulPrecision::Highest;
  config.loss_scale = 1;
  return config;
}

struct Sources {
  explicit Sources(LayerWiseDistributedOptimizer& optimizer)
      : rates(optimizer.group_rates()), loss_scale(at::ones({1}, at::kFloat)) {}
  at::Tensor rates, loss_scale;
};

}  // namespace

BOOST_FIXTURE_TEST_SUITE(queued_steps, Gpu)

// The rates and the scale of each replay are those that lie in memory then; what the host has when
// the graph is recorded is nonsense.
BOOST_FIXTURE_TEST_CASE(replays_make_the_steps_of_the_rates_in_device_memory, OneThread) {
  const Gpu gpu;
  const optim::OptimizerConfig config = scaled_config();
  const OptimizerPtr recorded = make_on(Where::Fake, config);
  const OptimizerPtr stepped = make_on(Where::Fake, config), on_cpu = make_on(Where::Cpu, config);
  Gradients gradients(*recorded);
  Sources sources(*recorded);
  recorded->prepare_queued_steps({sources.rates, sources.loss_scale});
  BOOST_TEST(std::ranges::equal(all_of(*recorded), all_of(*recorded), same_bits));
  set_rates(*recorded, std::numeric_limits<double>::quiet_NaN());
  optim::QueuedStep result;
  Graph graph([&] {
    gradients.queue_copies();
    result = recorded->queue_step();
  });
  BOOST_TEST(fake_cuda::loaded_in_captures().empty());
  for (int64_t step = 0; step < 4; ++step) {
    const double scale = static_cast<double>(int64_t{1} << (3 * step));
    const bool overflows = step == 2;
    for (LayerWiseDistributedOptimizer* const each :
         {recorded.get(), stepped.get(), on_cpu.get()}) {
      set_rates(*each, 0.02 / static_cast<double>(step + 1));
      if (each == recorded.get()) continue;
      each->bind_grads([&](const optim::ParamInfo& info) { return gradient_of(info, step); });
      if (!overflows) BOOST_TEST(each->step().update_successful);
    }
    sources.rates.copy_(recorded->group_rates());
    sources.loss_scale.fill_(scale);
    gradients.set(step, scale);
    if (overflows) gradients.next[3].view({-1})[5] = std::numeric_limits<float>::infinity();
    graph.replay();
    BOOST_TEST((result.skipped.item<int>() != 0) == overflows);
    BOOST_TEST(result.failed.item<int>() == 0);
    if (step == 1) recorded->state_dict();  // in between: counts are right
    if (step == 1) BOOST_TEST(steps_of(*recorded) == steps_of(*stepped));
    BOOST_TEST(std::ranges::equal(all_of(*recorded), all_of(*stepped), same_bits));
  }
  recorded->end_queued_steps();
  BOOST_TEST(steps_of(*recorded) == steps_of(*stepped), boost::test_tools::per_element());
  expect_near(*recorded, *on_cpu);
  for (LayerWiseDistributedOptimizer* const each : {recorded.get(), stepped.get()}) {
    each->bind_grads([&](const optim::ParamInfo& info) { return gradient_of(info, 9); });
    each->step();  // as ever
  }
  BOOST_TEST(std::ranges::equal(all_of(*recorded), all_of(*stepped), same_bits));
}

BOOST_AUTO_TEST_CASE(a_queued_step_neither_waits_nor_allocates_nor_writes_what_the_host_has) {
  const OptimizerPtr optimizer = make_on(Where::Fake, scaled_config());
  Gradients gradients(*optimizer);
  Sources sources(*optimizer);
  optimizer->prepare_queued_steps({sources.rates, sources.loss_scale});
  fake_cuda::reset();
  int allocated = 0;
  {
    CountingAllocator counting;
    const at::Tensor seen = at::ones({1}, at::kFloat);
    BOOST_TEST(std::exchange(counting.count, 0) > 0);
    optimizer->queue_step();
    allocated = counting.count;
  }
  BOOST_TEST(allocated == 0);
  const std::set<std::string> queued = {
      "cudaMemsetAsync",     "chunk_stats",     "tensor_stats",   "cudaEventRecord",
      "cudaStreamWaitEvent", "cublasLtMatmul",  "sources_kernel", "finish_kernel",
      "update_kernel",       "momentum_kernel", "divisor_kernel", "normalize_kernel",
      "apply_kernel"};
  for (const std::string& name : fake_cuda::names_of(fake_cuda::calls())) {
    BOOST_TEST(queued.contains(name), name);
  }
  BOOST_TEST(fake_cuda::calls().front().name == "sources_kernel");
}

// Every argument of what is recorded, whatever the host's rates and scale are then.
BOOST_AUTO_TEST_CASE(no_rate_and_no_scale_of_the_host_is_an_argument) {
  const OptimizerPtr optimizer = make_on(Where::Fake, scaled_config());
  Gradients gradients(*optimizer);
  Sources sources(*optimizer);
  optimizer->prepare_queued_steps({sources.rates, sources.loss_scale});
  std::vector<std::vector<std::byte>> arguments[2];
  for (const int turn : {0, 1}) {
    set_rates(*optimizer, turn == 0 ? 0.5 : 7);
    fake_cuda::reset();
    optimizer->queue_step();
    for (const fake_cuda::Call& call : fake_cuda::work()) arguments[turn].push_back(call.arguments);
  }
  BOOST_TEST(arguments[0].size() > 20U);
  BOOST_TEST((arguments[0] == arguments[1]));
}

BOOST_AUTO_TEST_CASE(dynamic_scaling_moves_as_a_step_moves_it) {
  optim::OptimizerConfig config = muon_config();
  config.bf16 = false;
  config.fp16 = true;
  config.params_dtype = ckpt::DType::Float16;
  config.initial_loss_scale = 64;
  config.hysteresis = 1;
  const auto make = [&] {
    std::vector<optim::Param> params = small_model(1, 3);
    for (optim::Param& param : params) {
      param.info.dtype = ckpt::DType::Float16;
      param.param = param.param.to(at::kHalf);
    }
    OptimizerPtr made = make_optimizer(std::move(params), {}, {}, config);
    optim::StepInside::of(*made).device_api = &fake_api();
    return made;
  };
  const OptimizerPtr recorded = make(), stepped = make();
  Gradients gradients(*recorded), others(*stepped);
  Sources sources(*recorded);
  sources.loss_scale.fill_(recorded->get_loss_scale());
  recorded->prepare_queued_steps({sources.rates, sources.loss_scale});
  for (int step = 0; step < 3; ++step) {
    for (Gradients* const each : {&gradients, &others}) {
      each->bound[0].view({-1})[0] = step == 1 ? std::numeric_limits<float>::infinity() : 1;
    }
    const optim::QueuedStep result = recorded->queue_step();
    recorded->note_queued_step(result.skipped.item<int>() != 0);
    sources.loss_scale.fill_(recorded->get_loss_scale());
    BOOST_TEST(stepped->step().update_successful == (step != 1));
    BOOST_TEST(recorded->get_loss_scale() == stepped->get_loss_scale());
    BOOST_TEST(recorded->get_loss_scale() == (step == 0 ? 64 : 32));
  }
  BOOST_TEST(std::ranges::equal(all_of(*recorded), all_of(*stepped), same_bits));
}

BOOST_AUTO_TEST_SUITE_END()
