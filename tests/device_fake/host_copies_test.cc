// Copies between the GPU and the host beside a step, and gradients that only count.
#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <array>
#include <string_view>

#include "plans.h"
#include "step_tables.h"

namespace {

using fake_cuda::names_of;
using plans::Executing;
using plans::FakeStep;
using plans::Fresh;
using plans::Model;
using Names = std::vector<std::string>;

std::unique_ptr<kernels::HostCopies> make_copies(bool overlaps) {
  kernels::DeviceStatus status = 0;
  auto copies = kernels::device_api().make_host_copies(overlaps, status);
  BOOST_REQUIRE(status == 0);
  return copies;
}

// What a step with two offloaded parameters asks for.
struct Round {
  std::array<float, 8> on_device{1, 2, 3, 4}, on_host{};
  kernels::DeviceStatus status = 0;

  void then(kernels::DeviceStatus next) {
    if (status == 0) status = next;
  }
  void take(kernels::HostCopies& copies, bool overlaps) {
    const auto step = [&](auto&& call) {
      if (status == 0) then(call());
    };
    step([&] { return copies.follow(nullptr); });
    for (uint32_t i = 0; i < 2; ++i) {
      step([&] { return copies.to_host(&on_host[i], &on_device[i], sizeof(float)); });
      if (overlaps) step([&] { return copies.mark(i); });
    }
    if (!overlaps) step([&] { return copies.mark(0); });
    for (uint32_t i = 0; i < 2; ++i) {
      step([&] { return copies.wait(overlaps ? i : 0); });
      on_host[i] *= 10;
      step([&] { return copies.to_device(&on_device[i], &on_host[i], sizeof(float)); });
    }
    step([&] { return copies.join(nullptr); });
  }
};

Names without(Names names, std::string_view unwanted) {
  std::erase_if(names, [&](const std::string& name) { return name == unwanted; });
  return names;
}

}  // namespace

BOOST_FIXTURE_TEST_SUITE(host_copies, Fresh)

BOOST_AUTO_TEST_CASE(copies_in_the_callers_stream_take_their_turn_there) {
  const auto copies = make_copies(false);
  Round round;
  round.take(*copies, false);
  fake_cuda::reset();
  round.take(*copies, false);
  const Names expected = {"cudaMemcpyAsync to host", "cudaMemcpyAsync to host",
                          "cudaEventSynchronize",    "cudaMemcpyAsync",
                          "cudaEventSynchronize",    "cudaMemcpyAsync"};
  BOOST_TEST(without(names_of(fake_cuda::calls()), "cudaEventRecord") == expected,
             boost::test_tools::per_element());
  for (const fake_cuda::Call& call : fake_cuda::calls()) BOOST_TEST(call.stream == nullptr);
  BOOST_TEST(round.on_device[0] == 100);
  BOOST_TEST(round.on_device[1] == 200);
}

// The streams are not the caller's, and his is waited for, and waits, by events alone: no stream is
// waited for by the host.
BOOST_AUTO_TEST_CASE(overlapping_copies_have_a_stream_for_each_direction) {
  const auto copies = make_copies(true);
  Round round;
  round.take(*copies, true);
  fake_cuda::reset();
  round.take(*copies, true);
  const Names expected = {"cudaEventRecord",         "cudaStreamWaitEvent", "cudaStreamWaitEvent",
                          "cudaMemcpyAsync to host", "cudaEventRecord",     "cudaEventRecord",
                          "cudaMemcpyAsync to host", "cudaEventRecord",     "cudaEventRecord",
                          "cudaEventSynchronize",    "cudaMemcpyAsync",     "cudaEventRecord",
                          "cudaEventSynchronize",    "cudaMemcpyAsync",     "cudaEventRecord",
                          "cudaStreamWaitEvent"};
  const auto& calls = fake_cuda::calls();
  BOOST_TEST(names_of(calls) == expected, boost::test_tools::per_element());
  const cudaStream_t down = calls[3].stream, up = calls[10].stream;
  BOOST_TEST((down != nullptr && up != nullptr && down != up));
  BOOST_TEST((calls[0].stream == nullptr && calls[15].stream == nullptr));
  BOOST_TEST((calls[1].stream == down && calls[2].stream == up));
  BOOST_TEST((calls[6].stream == down && calls[13].stream == up));
}

BOOST_AUTO_TEST_CASE(every_call_may_fail_and_nothing_leaks) {
  for (const bool overlaps : {false, true}) {
    uint64_t failing = 0;
    for (;; ++failing) {
      fake_cuda::reset();
      fake_cuda::fail_at(failing);
      kernels::DeviceStatus status = 0;
      {
        const auto copies = kernels::device_api().make_host_copies(overlaps, status);
        Round round;
        if (copies != nullptr) {
          round.take(*copies, overlaps);
          status = round.status;
        }
        if (copies == nullptr) BOOST_TEST(status != 0);
      }
      BOOST_TEST(fake_cuda::alive() == 0);
      BOOST_TEST(cudaPeekAtLastError() == cudaSuccess);
      if (!fake_cuda::has_failed()) break;
      const bool is_ending = status == 0;  // what waits at the end has nobody to tell
      if (!is_ending) BOOST_TEST(status == cudaErrorMemoryAllocation);
    }
    BOOST_TEST(failing > 12U);
  }
}

BOOST_AUTO_TEST_CASE(places_that_were_not_marked_are_refused) {
  const auto copies = make_copies(true);
  BOOST_TEST(copies->wait(0) == cudaErrorInvalidValue);
  BOOST_TEST(copies->mark(2) == 0);
  BOOST_TEST(copies->wait(2) == 0);
  BOOST_TEST(copies->wait(1) == cudaErrorInvalidValue);
}

BOOST_AUTO_TEST_CASE(whole_pages_are_pinned_and_unpinned) {
  alignas(4096) static std::array<std::byte, 8192> memory;
  const kernels::DeviceApi& api = kernels::device_api();
  BOOST_TEST(api.pin_host(memory.data(), memory.size()) == 0);
  BOOST_TEST(fake_cuda::alive() == 1);
  BOOST_TEST(api.pin_host(memory.data(), memory.size()) == cudaErrorInvalidValue);
  BOOST_TEST(api.unpin_host(memory.data()) == 0);
  BOOST_TEST(fake_cuda::alive() == 0);
  BOOST_TEST(cudaPeekAtLastError() == cudaSuccess);
}

BOOST_AUTO_TEST_SUITE_END()

namespace {

// The same plan, of which the parameters at odd places are not updated.
std::unique_ptr<Model> half_counted() {
  auto model = plans::whole_model();
  for (size_t i = 1; i < model->plan.params.size(); i += 2) {
    kernels::StepParam& param = model->plan.params[i];
    param.stats_only = true;
    param.slot.main = param.slot.state[0] = nullptr;
  }
  return model;
}

}  // namespace

BOOST_FIXTURE_TEST_SUITE(counted_gradients, Executing)

BOOST_AUTO_TEST_CASE(they_have_their_statistics_and_nothing_else_is_touched) {
  const auto whole = plans::whole_model(), half = half_counted(), before = plans::whole_model();
  for (const bool records : {false, true}) {
    FakeStep all(whole->plan), some(half->plan);
    if (records) some.capture();
    BOOST_REQUIRE(some.status == 0);
    for (FakeStep* const step : {&all, &some}) step->step().set_rates(whole->rates(0.01), nullptr);
    for (FakeStep* const step : {&all, &some}) step->step().queue_stats(nullptr);
    for (uint32_t i = 0; i < whole->plan.stats_count; ++i) {
      BOOST_TEST(some.step().stats()[i].square_sum == all.step().stats()[i].square_sum);
      BOOST_TEST(some.step().stats()[i].zero_count == all.step().stats()[i].zero_count);
    }
  }
  FakeStep some(half->plan);
  some.take(half->rates(0.01), {.max_norm = 1}, half->moved_grads());
  BOOST_TEST(some.status == 0);
  for (size_t i = 0; i < half->plan.params.size(); ++i) {
    const kernels::StepParam& original = whole->plan.params[i];
    const kernels::StepParam& start = before->plan.params[i];
    const auto bytes = static_cast<size_t>(start.slot.count) * kernels::bytes_of(start.types.main);
    const bool is_same = std::memcmp(original.slot.main, start.slot.main, bytes) == 0;
    BOOST_TEST(is_same);  // `whole` took no update
    if (!half->plan.params[i].stats_only) {
      BOOST_TEST(std::memcmp(half->plan.params[i].slot.main, start.slot.main, bytes) != 0);
    }
  }
}

// As a step with offloaded parameters is queued: the control decides before anything is updated,
// what the CPU needs leaves then, and the device's own updates are queued before the host waits.
BOOST_AUTO_TEST_CASE(a_step_decides_then_sends_then_updates) {
  fake_cuda::set_executes(false);
  Model model;
  plans::add_adam(model);
  model.plan.part_count = 2;
  for (kernels::StepParam& param : model.plan.params) param.part = 1;
  model.plan.params[0].stats_only = true;
  FakeStep made(model.plan);
  const auto copies = make_copies(true);
  float control = 0, grad = 0, param = 0, on_device = 0;
  kernels::DeviceStep& step = made.step();
  fake_cuda::reset();
  BOOST_TEST(step.queue_stats(nullptr) == 0);
  BOOST_TEST(step.queue_update(0, nullptr) == 0);
  copies->follow(nullptr);
  copies->to_host(&control, &on_device, sizeof control);
  copies->to_host(&grad, &on_device, sizeof grad);
  copies->mark(0);
  BOOST_TEST(step.queue_update(1, nullptr) == 0);
  copies->wait(0);
  copies->to_device(&on_device, &param, sizeof param);
  copies->join(nullptr);
  const Names expected = {"cudaMemsetAsync",
                          "chunk_stats",
                          "tensor_stats",
                          "chunk_stats",
                          "tensor_stats",
                          "finish_kernel",
                          "cudaMemcpyAsync to host",
                          "cudaMemcpyAsync to host",
                          "update_kernel",
                          "cudaMemcpyAsync"};
  BOOST_TEST(names_of(fake_cuda::work()) == expected, boost::test_tools::per_element());
  for (const std::string& name : names_of(fake_cuda::calls())) {
    BOOST_TEST(name != "cudaStreamSynchronize");
  }
}

BOOST_AUTO_TEST_CASE(a_plan_of_them_alone_needs_no_groups) {
  auto model = half_counted();
  std::erase_if(model->plan.params, [](const auto& param) { return !param.stats_only; });
  model->plan.groups.clear();
  FakeStep step(model->plan);
  step.take({});
  BOOST_TEST(step.status == 0);
  BOOST_TEST(step.step().control()->grad_norm > 0);
  model->plan.params[0].slot.grad = nullptr;
  kernels::DeviceStatus status = 0;
  BOOST_TEST((kernels::device_api().make_step(model->plan, status) == nullptr));
  BOOST_TEST(status == cudaErrorInvalidValue);
}

BOOST_AUTO_TEST_SUITE_END()
