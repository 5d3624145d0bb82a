// Whole steps on the fake, with the kernels' own sources run on the CPU, against the twins.
#include <boost/test/unit_test.hpp>

#include <cstring>
#include <limits>

#include "optim/device/host_step.h"
#include "plans.h"

namespace {

using plans::Executing;
using plans::FakeStep;
using plans::Model;

void take(optim::HostStep& step, const std::vector<kernels::GroupRates>& rates,
          const kernels::ControlSettings& settings, uint32_t part_count) {
  step.set_rates(rates, nullptr);
  step.set_control(settings, nullptr);
  step.queue_stats(nullptr);
  for (uint32_t part = 0; part < part_count; ++part) step.queue_update(part, nullptr);
}

constexpr kernels::ControlSettings kSettings[] = {
    {.inverse_loss_scale = 1, .max_norm = 3},
    {.inverse_loss_scale = 0.5F, .max_norm = 0},
    {.inverse_loss_scale = 0.25F, .max_norm = 1, .check_finite = true}};

}  // namespace

BOOST_FIXTURE_TEST_SUITE(device_twins, Executing)

// A graph is recorded once, with the first rates, and replayed with others.
BOOST_AUTO_TEST_CASE(steps_have_the_bits_of_the_twins_recorded_or_not) {
  for (const bool records : {false, true}) {
    for (const uint32_t parts : {1U, 3U}) {
      const auto model = plans::whole_model(), expected = plans::whole_model();
      plans::deal_to_parts(*model, parts);
      plans::deal_to_parts(*expected, parts);
      FakeStep step(model->plan);
      if (records) step.capture();
      BOOST_TEST((model->contents() == expected->contents()));  // recording changed nothing
      optim::HostStep twin(expected->plan);
      double lr = 0.01;
      for (const kernels::ControlSettings& settings : kSettings) {
        step.take(model->rates(lr), settings);
        take(twin, expected->rates(lr), settings, parts);
        lr /= 2;
        BOOST_TEST(step.step().control()->grad_norm == twin.control()->grad_norm);
        BOOST_TEST((model->contents() == expected->contents()));
      }
      BOOST_TEST(step.status == 0);
      BOOST_TEST(step.step().groups()[0].step == 3);
    }
  }
}

BOOST_AUTO_TEST_CASE(steps_on_gram_matrices_have_the_bits_of_the_twins) {
  for (const plans::ElementType products : {plans::kF32, plans::kBF16}) {
    for (const bool records : {false, true}) {
      Model model, expected;
      for (Model* const each : {&model, &expected}) {
        plans::add_muon(*each, products);
        plans::add_gram(*each, products);
      }
      FakeStep step(model.plan);
      if (records) step.capture();
      optim::HostStep twin(expected.plan);
      for (const kernels::ControlSettings& settings : kSettings) {
        step.take(model.rates(0.01), settings);
        take(twin, expected.rates(0.01), settings, 1);
        BOOST_TEST((model.contents() == expected.contents()));
      }
      BOOST_TEST(step.status == 0);
    }
  }
}

BOOST_AUTO_TEST_CASE(moved_gradients_are_read_where_they_lie_in_graphs_too) {
  const auto model = plans::whole_model(), expected = plans::whole_model();
  FakeStep step(model->plan);
  step.capture();
  optim::HostStep twin(expected->plan);
  const std::vector<const void*> moved = model->moved_grads();
  for (const kernels::StepParam& param : model->plan.params) {  // what is left is not read
    std::memset(const_cast<void*>(param.slot.grad), 0xFF,
                static_cast<size_t>(param.slot.count) * kernels::bytes_of(param.types.grad));
  }
  for (int i = 0; i < 2; ++i) {
    step.take(model->rates(0.01), {}, moved);
    take(twin, expected->rates(0.01), {}, 1);
  }
  BOOST_TEST(step.step().control()->grad_norm == twin.control()->grad_norm);
  for (size_t i = 0; i < model->plan.params.size(); ++i) {
    const kernels::StepParam& ours = model->plan.params[i];
    const auto bytes = static_cast<size_t>(ours.slot.count) * kernels::bytes_of(ours.types.main);
    BOOST_TEST(std::memcmp(ours.slot.main, expected->plan.params[i].slot.main, bytes) == 0);
  }
}

// A trainer's graph of a whole iteration: gradients are written, the step is made. What it reads
// of rates and scale lies on the device, and changes from replay to replay.
BOOST_AUTO_TEST_CASE(a_trainers_graph_of_an_iteration_has_no_value_of_the_host_in_it) {
  for (const uint32_t parts : {1U, 2U}) {
    const auto model = plans::whole_model(), expected = plans::whole_model();
    plans::deal_to_parts(*model, parts);
    plans::deal_to_parts(*expected, parts);
    FakeStep step(model->plan);
    optim::HostStep twin(expected->plan);
    std::vector<kernels::GroupRates> rates = model->rates(0.1);
    float loss_scale = 1;
    kernels::DeviceStep& device = step.step();
    const kernels::ControlSettings settings = {.inverse_loss_scale = 77, .max_norm = 3};
    for (kernels::DeviceStep* const each : {&device, static_cast<kernels::DeviceStep*>(&twin)}) {
      BOOST_TEST(each->set_control(settings, nullptr) == 0);
      BOOST_TEST(each->read_from({rates.data(), &loss_scale}) == 0);
    }
    BOOST_TEST(device.warm_up() == 0);
    BOOST_TEST((model->contents() == expected->contents()));  // it changed nothing
    cudaStream_t stream = nullptr;
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t iteration = nullptr;
    cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);
    BOOST_TEST(device.queue_stats(stream) == 0);
    for (uint32_t part = 0; part < parts; ++part) {
      BOOST_TEST(device.queue_update(part, stream) == 0);
    }
    BOOST_TEST(cudaStreamEndCapture(stream, &graph) == cudaSuccess);
    BOOST_TEST(cudaGraphInstantiate(&iteration, graph, 0) == cudaSuccess);
    BOOST_TEST(fake_cuda::loaded_in_captures().empty());
    for (int i = 1; i <= 3; ++i) {
      for (kernels::GroupRates& each : rates) each = {0.1 / i, 0.01 * i};
      loss_scale = static_cast<float>(3 * i);
      BOOST_TEST(cudaGraphLaunch(iteration, stream) == cudaSuccess);
      twin.queue_stats(nullptr);
      for (uint32_t part = 0; part < parts; ++part) twin.queue_update(part, nullptr);
      BOOST_TEST(device.control()->grad_norm == twin.control()->grad_norm);
      BOOST_TEST((model->contents() == expected->contents()));
      BOOST_TEST(device.groups()[0].step == i);
    }
    cudaGraphExecDestroy(iteration);
    cudaGraphDestroy(graph);
    cudaStreamDestroy(stream);
  }
}

BOOST_AUTO_TEST_CASE(sources_are_named_before_a_step_is_recorded) {
  const auto model = plans::whole_model();
  FakeStep step(model->plan);
  float loss_scale = 2;
  BOOST_TEST(step.step().read_from({nullptr, &loss_scale}) == 0);
  step.capture();
  step.take(model->rates(0.01));
  BOOST_TEST(step.step().control()->inverse_loss_scale == 0.5F);  // not what set_control() said
  BOOST_TEST(step.step().groups()[0].lr == 0.01);
  BOOST_TEST(step.step().read_from({}) != 0);
}

// A process that cannot take part says NaN zeros.
BOOST_AUTO_TEST_CASE(a_failure_of_another_process_changes_nothing) {
  const auto model = plans::whole_model(), before = plans::whole_model();
  FakeStep step(model->plan);
  kernels::DeviceStep& device = step.step();
  device.set_rates(model->rates(0.01), nullptr);
  device.set_control({}, nullptr);
  device.queue_stats(nullptr);
  device.stats()[0].zero_count += std::numeric_limits<double>::quiet_NaN();
  device.queue_update(0, nullptr);
  BOOST_TEST(device.control()->failed == 1U);
  BOOST_TEST((model->contents() == before->contents()));
  BOOST_TEST(device.groups()[0].step == 0);
  step.take(model->rates(0.01));
  BOOST_TEST(device.control()->failed == 0U);
  BOOST_TEST(device.groups()[0].step == 1);
}

BOOST_AUTO_TEST_SUITE_END()
