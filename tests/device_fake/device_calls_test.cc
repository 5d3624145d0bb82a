// What a step on a GPU calls and queues, on a fake that remembers it.
#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <map>
#include <set>

#include "device_problem.h"
#include "plans.h"

namespace {

using fake_cuda::names_of;
using plans::FakeStep;
using plans::Fresh;
using plans::Model;
using Names = std::vector<std::string>;

std::set<std::string> kinds_of_calls() {
  std::set<std::string> kinds;
  for (const fake_cuda::Call& call : fake_cuda::calls()) {
    if (!call.name.ends_with("_kernel")) kinds.insert(call.name);
  }
  return kinds;
}

const Names kStats = {"cudaMemsetAsync", "chunk_stats", "tensor_stats"};

}  // namespace

BOOST_FIXTURE_TEST_SUITE(device_calls, Fresh)

BOOST_AUTO_TEST_CASE(work_is_queued_in_this_order) {
  Model model;
  plans::add_adam(model);
  plans::add_fp8(model);
  FakeStep step(model.plan);
  fake_cuda::reset();
  step.take(model.rates(0.01));
  BOOST_TEST(step.status == 0);
  const Names expected = {"rates_kernel",  "control_kernel", "cudaMemsetAsync", "chunk_stats",
                          "tensor_stats",  "chunk_stats",    "tensor_stats",    "finish_kernel",
                          "update_kernel", "absmax_kernel",  "update_kernel",   "keep_scales"};
  BOOST_TEST(names_of(fake_cuda::work()) == expected, boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(matrices_of_one_shape_are_one_batch) {
  Model model;
  plans::add_muon(model, plans::kBF16);
  FakeStep step(model.plan);
  fake_cuda::reset();
  step.take(model.rates(0.01));
  Names expected = {"rates_kernel", "control_kernel"};
  expected.insert(expected.end(), kStats.begin(), kStats.end());
  expected.push_back("finish_kernel");
  for (int batch = 0; batch < 3; ++batch) {  // weights; queries; keys and values
    expected.insert(expected.end(), {"momentum_kernel", "divisor_kernel", "normalize_kernel"});
    expected.insert(expected.end(), 2 * 3, "cublasLtMatmul");
    expected.push_back("apply_kernel");
  }
  BOOST_TEST(names_of(fake_cuda::work()) == expected, boost::test_tools::per_element());
}

// Batches that are small run beside others, which wait for them; in a graph as branches of it.
BOOST_AUTO_TEST_CASE(small_batches_run_beside_others) {
  Model model;
  plans::add_adam(model);
  plans::add_muon(model, plans::kBF16);
  FakeStep step(model.plan);
  fake_cuda::reset();
  step.take(model.rates(0.01));
  BOOST_TEST(step.status == 0);
  std::map<cudaStream_t, Names> by_stream;
  std::vector<std::pair<std::string, bool>> order;  // of events; on the step's stream?
  for (const fake_cuda::Call& call : fake_cuda::calls()) {
    if (call.name == "apply_kernel" || call.name == "update_kernel") {
      by_stream[call.stream].push_back(call.name);
    }
    if (call.name.starts_with("cudaEvent") || call.name == "cudaStreamWaitEvent") {
      order.emplace_back(call.name, call.stream == nullptr);
    }
  }
  BOOST_REQUIRE(by_stream.size() == 2U);
  const Names on_stream = {"update_kernel", "apply_kernel"};
  BOOST_TEST(by_stream[nullptr] == on_stream, boost::test_tools::per_element());
  for (const auto& [stream, names] : by_stream) {
    if (stream != nullptr) BOOST_TEST(names == Names(2, "apply_kernel"));
  }
  const std::vector<std::pair<std::string, bool>> wanted = {{"cudaEventRecord", true},
                                                            {"cudaStreamWaitEvent", false},
                                                            {"cudaEventRecord", false},
                                                            {"cudaStreamWaitEvent", true}};
  BOOST_TEST((order == wanted));
}

BOOST_AUTO_TEST_CASE(a_single_batch_forks_nothing) {
  Model model;
  const uint32_t group = model.add_group(plans::RuleKind::Muon);
  for (int i = 0; i < 2; ++i) model.add(group, 12, 20, plans::kMomentum);
  FakeStep step(model.plan);
  fake_cuda::reset();
  step.take(model.rates(0.01));
  BOOST_TEST(std::ranges::count(names_of(fake_cuda::calls()), "cudaEventRecord") == 0);
}

BOOST_AUTO_TEST_CASE(a_queued_step_neither_waits_nor_allocates_nor_asks) {
  const auto model = plans::whole_model();
  for (const bool records : {false, true}) {
    FakeStep step(model->plan);
    if (records) step.capture();
    step.take(model->rates(0.01));
    fake_cuda::reset();
    step.take(model->rates(0.02), {.inverse_loss_scale = 0.5F}, model->moved_grads());
    BOOST_TEST(step.status == 0);
    const std::set<std::string> queued = {
        "cudaStreamIsCapturing", "cudaMemsetAsync", "chunk_stats",
        "tensor_stats",          "cudaEventRecord", "cudaStreamWaitEvent",
        "keep_scales",           "cublasLtMatmul",  "cudaGraphLaunch"};
    for (const std::string& kind : kinds_of_calls()) BOOST_TEST(queued.contains(kind), kind);
    if (records)
      BOOST_TEST(std::ranges::count(names_of(fake_cuda::calls()), "cudaGraphLaunch") == 2);
  }
}

BOOST_AUTO_TEST_CASE(gradients_where_they_were_cost_nothing) {
  const auto model = plans::whole_model();
  FakeStep step(model->plan);
  const std::vector<const void*> moved = model->moved_grads();
  const auto launches = [&] {
    return std::ranges::count(names_of(fake_cuda::work()), "grads_kernel");
  };
  fake_cuda::reset();
  step.take(model->rates(0.01), {}, moved);
  BOOST_TEST(launches() == 6);  // three tables, three batches
  fake_cuda::reset();
  step.take(model->rates(0.01), {}, moved);
  BOOST_TEST(launches() == 0);
}

BOOST_AUTO_TEST_CASE(a_graph_does_the_work_of_a_plain_step) {
  const auto model = plans::whole_model();
  std::vector<Names> done;
  for (const bool records : {false, true}) {
    FakeStep step(model->plan);
    if (records) step.capture();
    fake_cuda::reset();
    step.take(model->rates(0.01));
    done.push_back(names_of(fake_cuda::work()));
  }
  BOOST_TEST(done[0].size() > 20U);
  BOOST_TEST(done[0] == done[1], boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(no_kernel_is_loaded_in_a_capture) {
  const auto model = plans::whole_model();
  FakeStep step(model->plan);
  step.capture();
  BOOST_TEST(step.status == 0);
  BOOST_TEST(names_of(fake_cuda::calls()).size() > 20U);
  BOOST_TEST(fake_cuda::loaded_in_captures().empty());
}

// Rates travel outside of what is recorded.
BOOST_AUTO_TEST_CASE(what_is_recorded_does_not_depend_on_rates_or_scale) {
  const auto model = plans::whole_model();
  FakeStep step(model->plan);
  const auto recorded = [&](double lr, float inverse_scale) {
    fake_cuda::reset();
    step.take(model->rates(lr), {.inverse_loss_scale = inverse_scale});
    std::vector<std::vector<std::byte>> arguments;
    for (const fake_cuda::Call& call : fake_cuda::work()) {
      if (call.name != "rates_kernel" && call.name != "control_kernel") {
        arguments.push_back(call.arguments);
      }
    }
    return arguments;
  };
  BOOST_TEST((recorded(0.01, 1) == recorded(0.02, 0.25F)));
}

BOOST_AUTO_TEST_CASE(a_capture_would_keep_rates_and_is_refused) {
  const auto model = plans::whole_model();
  FakeStep step(model->plan);
  cudaStream_t stream = nullptr;
  cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);
  const kernels::DeviceStatus statuses[] = {step.step().set_rates(model->rates(1), stream),
                                            step.step().set_control({}, stream),
                                            step.step().set_grads(model->moved_grads(), stream)};
  for (const kernels::DeviceStatus status : statuses) {
    const std::string text = kernels::device_api().status_text(status);
    BOOST_TEST(text.find("being captured") != std::string::npos, text);
  }
  BOOST_TEST(step.step().queue_stats(stream) == 0);  // these may be
  BOOST_TEST(step.step().queue_update(0, stream) == 0);
  cudaGraph_t graph = nullptr;
  cudaStreamEndCapture(stream, &graph);
  cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);
}

BOOST_AUTO_TEST_CASE(errors_of_others_are_neither_reported_nor_cleared) {
  const auto model = plans::whole_model();
  fake_cuda::leave_error(cudaErrorInvalidValue);
  FakeStep step(model->plan);
  step.capture();
  step.take(model->rates(0.01));
  BOOST_TEST(step.status == 0);
  BOOST_TEST(cudaGetLastError() == cudaErrorInvalidValue);
}

BOOST_AUTO_TEST_CASE(highest_is_pedantic_and_high_is_tf32) {
  struct Row {
    plans::ElementType type;
    bool tf32;
    cublasComputeType_t compute;
  };
  for (const Row& row : {Row{plans::kF32, false, CUBLAS_COMPUTE_32F_PEDANTIC},
                         {plans::kF32, true, CUBLAS_COMPUTE_32F_FAST_TF32},
                         {plans::kBF16, false, CUBLAS_COMPUTE_32F}}) {
    Model model;
    plans::add_muon(model, row.type);
    model.plan.groups[0].muon.tf32 = row.tf32;
    fake_cuda::reset();
    const FakeStep step(model.plan);
    BOOST_TEST(fake_cuda::products().size() == 15U);  // two more of a batch, for their tiles
    for (const fake_cuda::Product& product : fake_cuda::products()) {
      BOOST_TEST(product.compute == row.compute);
    }
  }
}

BOOST_AUTO_TEST_CASE(products_are_cut_as_the_device_is_large_and_its_tiles_are) {
  Model model;
  const uint32_t group = model.add_group(plans::RuleKind::Muon, plans::kBF16);
  model.add(group, 1024, 1024, plans::kMomentum);
  const auto asked_with = [&](int multiprocessors, int tile) {
    fake_cuda::reset();
    fake_cuda::set_multiprocessors(multiprocessors);
    fake_cuda::set_tile(tile);
    const FakeStep step(model.plan);
    return fake_cuda::products().size();
  };
  const size_t whole = 2 + 3;  // tiles; gram, polynomial, update
  BOOST_TEST(asked_with(132, CUBLASLT_MATMUL_TILE_128x256) == whole);
  BOOST_TEST(asked_with(4, CUBLASLT_MATMUL_TILE_128x256) == whole + 2 * 2);
  BOOST_TEST(asked_with(6, CUBLASLT_MATMUL_TILE_128x256) == whole);
  BOOST_TEST(asked_with(6, CUBLASLT_MATMUL_TILE_64x64) == whole + 2 * 2);
  BOOST_TEST(asked_with(6, CUBLASLT_MATMUL_TILE_UNDEFINED) == whole);  // the usual tile
  fake_cuda::set_tile(CUBLASLT_MATMUL_TILE_128x256);
}

BOOST_AUTO_TEST_CASE(tensors_without_memory_or_scales_are_refused) {
  const auto model = plans::whole_model();
  const auto status_with = [&](const std::function<void(kernels::TensorSlot&)>& damage) {
    kernels::StepPlan plan = model->plan;
    damage(plan.params[3].slot);  // fp8 and fp16 states, remainders
    kernels::DeviceStatus status = 0;
    const bool is_made = kernels::device_api().make_step(plan, status) != nullptr;
    BOOST_TEST(is_made == (status == 0));
    return status;
  };
  BOOST_TEST(status_with([](kernels::TensorSlot&) {}) == 0);
  const std::function<void(kernels::TensorSlot&)> damages[] = {
      [](kernels::TensorSlot& slot) { slot.scale[1] = nullptr; },
      [](kernels::TensorSlot& slot) { slot.scale[2] = nullptr; },
      [](kernels::TensorSlot& slot) { slot.grad = nullptr; },
      [](kernels::TensorSlot& slot) { slot.main = nullptr; },
      [](kernels::TensorSlot& slot) { slot.remainder = nullptr; },
      [](kernels::TensorSlot& slot) { slot.state[1] = nullptr; }};
  for (const auto& damage : damages) BOOST_TEST(status_with(damage) == cudaErrorInvalidValue);
}

// A process has one cuBLASLt of a soname, whoever loaded it first.
BOOST_AUTO_TEST_CASE(a_cublaslt_of_another_major_version_is_refused) {
  BOOST_TEST(kernels::problem_of(kernels::device_facts()) == "");
  fake_cuda::set_cublas_version(CUBLAS_VERSION - 100);
  BOOST_TEST(kernels::problem_of(kernels::device_facts()) == "");
  fake_cuda::set_cublas_version(CUBLAS_VERSION - 10000);
  BOOST_TEST(kernels::problem_of(kernels::device_facts()) ==
             "the cuBLASLt that is loaded is version 12, these kernels need 13");
  fake_cuda::set_cublas_version(CUBLAS_VERSION);
}

BOOST_AUTO_TEST_SUITE_END()
