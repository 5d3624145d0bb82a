// Steps that are queued for the device alone: what is refused, and what several processes do. By
// the kernels' CPU twins; whole graphs are in device_fake/optimizer.
#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <functional>
#include <ranges>
#include <thread>

#include <ATen/ops/ones.h>

#include "faulty_step.h"
#include "on_gpu.h"
#include "optim/expect_error.h"
#include "optim/step/layer_wise_runs.h"
#include "recording_group.h"
#include "step/optimizer/peers_and_device.h"

namespace {

using namespace optim;
using QueuedPtr = std::unique_ptr<LayerWiseDistributedOptimizer>;

QueuedPtr one_process(const OptimizerConfig& config) {
  QueuedPtr made = ::make_optimizer(small_model(1, 3), {}, {}, config);
  StepInside::of(*made).device_api = &faulty_api();
  made->bind_grads([](const ParamInfo& info) { return gradient_of(info, 0); });
  return made;
}

struct RefusedSetting {
  const char* key;
  ckpt::ErrorCode code;
  std::function<void(OptimizerConfig&)> set;
};

const RefusedSetting kRefused[] = {
    {"optimizer_cuda_graph", ckpt::ErrorCode::Unsupported,
     [](OptimizerConfig& c) { c.optimizer_cuda_graph = true; }},
    {"optimizer_cpu_offload", ckpt::ErrorCode::Unsupported,
     [](OptimizerConfig& c) {
       c.optimizer_cpu_offload = true;
       c.optimizer_offload_fraction = 0.5;
     }},
    {"barrier_with_L1_time", ckpt::ErrorCode::Unsupported,
     [](OptimizerConfig& c) {
       c.barrier_with_L1_time = true;
       c.timers = [](std::string_view, TimerEvent) {};
     }},
};

// Both ranks of a group that records, over a faulty device.
struct QueuedRanks {
  std::vector<RecordedRank> groups = make_recorded_groups(2);
  std::vector<QueuedPtr> optimizers = std::vector<QueuedPtr>(2);
  std::vector<at::Tensor> rates = std::vector<at::Tensor>(2);

  explicit QueuedRanks(const Layout& layout) {
    both([&](size_t rank) {
      optimizers[rank] = ::make_optimizer(small_model(1, 3), layout, groups[rank].groups);
      StepInside::of(*optimizers[rank]).device_api = &faulty_api();
      optimizers[rank]->bind_grads([](const ParamInfo& info) { return gradient_of(info, 0); });
      rates[rank] = optimizers[rank]->group_rates();
    });
  }

  // What each threw.
  std::vector<std::string> both(const std::function<void(size_t rank)>& body) {
    std::vector<std::string> problems(2);
    {
      std::vector<std::jthread> threads;
      for (size_t rank = 0; rank < 2; ++rank) {
        threads.emplace_back([&, rank] {
          try {
            body(rank);
          } catch (const ckpt::Error& error) {
            problems[rank] = error.problem();
          }
        });
      }
    }
    return problems;
  }

  std::vector<at::Tensor> weights(size_t rank) const {
    std::vector<at::Tensor> all;
    for (const Param& param : optimizers[rank]->all_params()) all.push_back(param.param.clone());
    return all;
  }
};

const Layout kAdopted = {2, 2, OwnershipPolicy::PingPong, false, true, 300};
const Layout kOverlapping = {2, 2, OwnershipPolicy::PingPong, true, true, 300};

}  // namespace

BOOST_AUTO_TEST_SUITE(queued_steps)

BOOST_AUTO_TEST_CASE(what_cannot_be_left_to_the_device_is_refused_by_name) {
  for (const RefusedSetting& refused : kRefused) {
    OptimizerConfig config = muon_config();
    refused.set(config);
    const QueuedPtr optimizer = one_process(config);
    expect_error(refused.code, refused.key,
                 [&] { optimizer->prepare_queued_steps({optimizer->group_rates()}); });
    optimizer->step();  // as ever
  }
  const QueuedPtr on_cpu = ::make_optimizer(small_model(1, 3), {}, {});
  on_cpu->bind_grads([](const ParamInfo& info) { return gradient_of(info, 0); });
  expect_error(ckpt::ErrorCode::Unsupported, "device",
               [&] { on_cpu->prepare_queued_steps({on_cpu->group_rates()}); });
}

BOOST_AUTO_TEST_CASE(sources_that_do_not_fit_are_refused_by_name) {
  const QueuedPtr plain = one_process(muon_config());
  const at::Tensor rates = plain->group_rates(), scale = at::ones({1}, at::kFloat);
  const auto refuses = [](Optimizer& optimizer, const char* key, const QueuedStepSources& sources) {
    expect_error(ckpt::ErrorCode::InvalidArgument, key,
                 [&] { optimizer.prepare_queued_steps(sources); });
  };
  refuses(*plain, "rates", {});
  refuses(*plain, "rates", {rates.to(at::kFloat)});
  refuses(*plain, "rates", {rates.narrow(0, 0, 1)});
  refuses(*plain, "rates", {rates.t()});
  refuses(*plain, "loss_scale", {rates, scale});  // nothing is scaled
  OptimizerConfig config = muon_config();
  config.loss_scale = 4;
  const QueuedPtr scaled = one_process(config);
  refuses(*scaled, "loss_scale", {rates, scale.to(at::kDouble)});
  refuses(*scaled, "loss_scale", {rates, at::ones({2}, at::kFloat)});
  scaled->prepare_queued_steps({rates});  // a static scale may stay the host's
  config = muon_config();
  config.bf16 = false;
  config.fp16 = true;
  config.params_dtype = ckpt::DType::Float16;
  std::vector<Param> params = small_model(1, 3);
  for (Param& param : params) {
    param.info.dtype = ckpt::DType::Float16;
    param.param = param.param.to(at::kHalf);
  }
  const QueuedPtr dynamic = ::make_optimizer(std::move(params), {}, {}, config);
  StepInside::of(*dynamic).device_api = &faulty_api();
  dynamic->bind_grads([](const ParamInfo& info) { return gradient_of(info, 0); });
  refuses(*dynamic, "loss_scale", {rates});
}

BOOST_AUTO_TEST_CASE(what_changed_since_it_was_prepared_is_refused_by_name) {
  const QueuedPtr optimizer = one_process(muon_config());
  const at::Tensor rates = optimizer->group_rates();
  const auto refuses = [&](const std::string& key, const std::function<void()>& call) {
    expect_error(ckpt::ErrorCode::InvalidArgument, key, call);
  };
  refuses("prepare_queued_steps", [&] { optimizer->queue_step(); });
  optimizer->end_queued_steps();  // nothing to end
  optimizer->prepare_queued_steps({rates});
  refuses("prepare_queued_steps", [&] { optimizer->step(); });
  const StateValue state = optimizer->state_dict();
  refuses("prepare_queued_steps", [&] { optimizer->load_state_dict(state); });
  OptimizedParam& param = *optimizer->get_parameters()[1];
  const at::Tensor grad = param.model.main_grad;
  param.model.main_grad = grad.clone();
  refuses(param.model.info.name, [&] { optimizer->queue_step(); });
  param.model.main_grad = at::Tensor();
  refuses("", [&] { optimizer->queue_step(); });
  param.model.main_grad = grad;
  const at::Tensor master = param.main_param;
  param.main_param = master.clone();
  refuses("", [&] { optimizer->queue_step(); });
  param.main_param = master;
  optimizer->queue_step();
  optimizer->end_queued_steps();
  optimizer->load_state_dict(state);
  optimizer->step();
}

BOOST_AUTO_TEST_CASE(after_a_device_that_said_no_it_is_prepared_again) {
  const QueuedPtr optimizer = one_process(muon_config());
  const at::Tensor rates = optimizer->group_rates();
  for (const Fault fault : {Fault::Make, Fault::Memory, Fault::Bind, Fault::Rates}) {
    FaultyStep::fault = fault;
    expect_error(ckpt::ErrorCode::IoFailure, "device",
                 [&] { optimizer->prepare_queued_steps({rates}); });
    FaultyStep::fault = Fault::None;
    optimizer->step();
  }
  optimizer->prepare_queued_steps({rates});
  for (const Fault fault : {Fault::Stats, Fault::Update}) {
    FaultyStep::fault = fault;
    expect_error(ckpt::ErrorCode::IoFailure, "device", [&] { optimizer->queue_step(); });
    FaultyStep::fault = Fault::None;
  }
  expect_error(ckpt::ErrorCode::InvalidArgument, "", [&] { optimizer->queue_step(); });
  optimizer->prepare_queued_steps({rates});
  optimizer->queue_step();
  optimizer->end_queued_steps();
  for (const OptimizedParam* const param : optimizer->get_parameters()) {
    BOOST_TEST(param->step == 5);
  }
}

// Ranks that queue have the weights of ranks that step, and ask for the same collectives each.
BOOST_FIXTURE_TEST_CASE(ranks_queue_the_steps_that_they_would_make, OneThread) {
  for (const Layout& layout : {kAdopted, kOverlapping}) {
    QueuedRanks queued(layout), stepped(layout);
    BOOST_TEST(queued.both([&](size_t rank) {
      queued.optimizers[rank]->prepare_queued_steps({queued.rates[rank]});
      queued.groups[rank].log->clear();
      queued.optimizers[rank]->queue_step();
    }) == std::vector<std::string>(2));
    BOOST_TEST(queued.groups[0].log->size() > 2U);
    BOOST_TEST(*queued.groups[0].log == *queued.groups[1].log, boost::test_tools::per_element());
    stepped.both([&](size_t rank) {
      stepped.groups[rank].log->clear();
      stepped.optimizers[rank]->step();
    });
    BOOST_TEST(*queued.groups[0].log == *stepped.groups[0].log, boost::test_tools::per_element());
    for (const size_t rank : {0, 1}) {
      BOOST_TEST(std::ranges::equal(queued.weights(rank), stepped.weights(rank), same_bits));
    }
  }
}

BOOST_AUTO_TEST_CASE(where_one_rank_cannot_queue_none_does) {
  QueuedRanks copying({2, 2, OwnershipPolicy::PingPong, false, false, 300});
  const auto refused = copying.both(
      [&](size_t rank) { copying.optimizers[rank]->prepare_queued_steps({copying.rates[rank]}); });
  for (const std::string& problem : refused) {
    BOOST_TEST(problem.find("adopt_param_buffers() comes first") != std::string::npos, problem);
  }
  QueuedRanks ranks(kAdopted);
  const auto problems = ranks.both([&](size_t rank) {
    ranks.optimizers[rank]->prepare_queued_steps(
        {rank == 0 ? ranks.rates[rank] : ranks.rates[rank].to(at::kFloat)});
  });
  BOOST_TEST(problems[0] == "another process cannot queue steps");
  BOOST_TEST(problems[1].find("float64") != std::string::npos, problems[1]);
  ranks.both([&](size_t rank) { ranks.optimizers[rank]->step(); });
}

BOOST_AUTO_TEST_CASE(a_step_that_one_rank_cannot_queue_changes_nothing_on_any) {
  QueuedRanks ranks(kAdopted);
  std::vector<int> failed(2);
  const std::vector<at::Tensor> before = ranks.weights(0);
  const auto problems = ranks.both([&](size_t rank) {
    ranks.optimizers[rank]->prepare_queued_steps({ranks.rates[rank]});
    if (rank == 1) FaultyStep::fault = Fault::Stats;
    failed[rank] = -1;
    try {
      failed[rank] = ranks.optimizers[rank]->queue_step().failed.item<int>();
    } catch (...) {
      FaultyStep::fault = Fault::None;
      throw;
    }
  });
  BOOST_TEST(failed[0] == 1);
  BOOST_TEST(problems[1].find("out of memory") != std::string::npos, problems[1]);
  for (const size_t rank : {0, 1}) {
    BOOST_TEST(std::ranges::equal(ranks.weights(rank), before, same_bits));
  }
  ranks.both([&](size_t rank) { ranks.optimizers[rank]->end_queued_steps(); });
  for (const size_t rank : {0, 1}) {
    for (const OptimizedParam* const param : ranks.optimizers[rank]->get_parameters()) {
      BOOST_TEST(param->step == 0);
    }
  }
}

BOOST_AUTO_TEST_CASE(a_gpu_makes_queued_steps_as_step_makes_them) {
  if (lacks_gpu()) return;
  const Run run = run_on_gpu();
  std::vector<std::vector<at::Tensor>> found;
  for (const bool queues : {false, true}) {
    const QueuedPtr optimizer = ::make_optimizer(run.make_model(), {}, {}, run.config);
    optimizer->bind_grads(
        [&](const ParamInfo& info) { return gradient_of(info, 0).to(run.device); });
    if (queues) optimizer->prepare_queued_steps({optimizer->group_rates().to(run.device)});
    for (int step = 0; step < 3; ++step) {
      if (queues) {
        optimizer->queue_step();
      } else {
        optimizer->step();
      }
    }
    if (queues) optimizer->end_queued_steps();
    auto& weights = found.emplace_back();
    for (const Param& param : optimizer->all_params()) weights.push_back(param.param.cpu());
  }
  BOOST_TEST(std::ranges::equal(found[0], found[1], same_bits));
}

BOOST_AUTO_TEST_SUITE_END()
