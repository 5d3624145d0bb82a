// Steps of which the CPU does a part: the bits of steps that the device does alone.
#include <ATen/ops/full.h>
#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>

#include <fstream>
#include <sstream>

#include "faulty_step.h"
#include "offload_runs.h"
#include "on_gpu.h"
#include "optim/expect_error.h"
#include "step/optimizer/offload_choice.h"

namespace {

using optim::CopiesTwin;
namespace data = boost::unit_test::data;

constexpr int64_t kSteps = 4;

// Of the sizes in a row of the table, one group per list.
std::vector<optim::OptimizerGroup> groups_of(const std::string& sizes) {
  std::vector<optim::OptimizerGroup> groups(1);
  std::istringstream words(sizes);
  for (std::string word; words >> word;) {
    const bool ends = word.back() == ';';
    optim::OptimizerGroup& group = groups.back();
    group.rule_config = optim::AdamRule{};
    group.params.emplace_back().model.param = at::empty({std::stoll(word)}, at::kBFloat16);
    if (ends) groups.emplace_back();
  }
  return groups;
}

std::string marks_of(const std::vector<optim::OptimizerGroup>& groups) {
  std::string marks;
  for (const optim::OptimizerGroup& group : groups) {
    if (!marks.empty()) marks += ';';
    for (const optim::OptimizedParam& param : group.params) {
      marks += param.is_offloaded ? " 1" : " 0";
    }
  }
  return marks;
}

std::vector<std::string> split_row(const std::string& line) {
  std::vector<std::string> cells(1);
  for (const char letter : line) {
    letter == '|' ? void(cells.emplace_back()) : cells.back().push_back(letter);
  }
  return cells;
}

void choose(std::vector<optim::OptimizerGroup>& groups, double fraction, bool on_device = true) {
  optim::OptimizerConfig config;
  config.optimizer_cpu_offload = true;
  config.optimizer_offload_fraction = fraction;
  std::vector<optim::OptimizerGroup*> pointers;
  for (optim::OptimizerGroup& group : groups) pointers.push_back(&group);
  optim::choose_offloaded(pointers, config, on_device);
}

std::vector<at::Tensor> bits_of_state(optim::LayerWiseDistributedOptimizer& optimizer) {
  std::vector<at::Tensor> all;
  for (const optim::OptimizedParam* const param : optimizer.get_parameters()) {
    all.push_back(param->model.param.clone());
    all.push_back(optim::master_of(*param).clone());
    all.push_back(at::full({1}, param->step, at::kLong));
  }
  return all;
}

constexpr Offload kHalf = {0.5, false}, kHalfOverlapping = {0.5, true}, kWhole = {1, true};
const OffloadRule kAdam = offload_rules().front();

}  // namespace

BOOST_AUTO_TEST_SUITE(offload)

// tests/interop/offload_choices.py wrote the table from what Megatron-Core's own code said.
BOOST_AUTO_TEST_CASE(the_reference_would_offload_the_same_parameters) {
  std::ifstream table(std::string(SHARDWISE_GOLDEN_DIR) + "/offload/choices.txt");
  int rows = 0;
  for (std::string line; std::getline(table, line); ++rows) {
    const std::vector<std::string> cells = split_row(line);
    BOOST_REQUIRE(cells.size() == 3U);
    std::vector<optim::OptimizerGroup> groups = groups_of(cells[1]);
    choose(groups, std::stod(cells[0]));
    BOOST_TEST(marks_of(groups) == cells[2], line);
  }
  BOOST_TEST(rows == 133);
}

BOOST_AUTO_TEST_CASE(each_optimizer_of_a_chain_has_a_fraction_of_its_own) {
  std::vector<optim::OptimizerGroup> groups = groups_of("10 10; 1 1");
  groups[1].settings.optimizer_index = 1;
  choose(groups, 0.5);
  BOOST_TEST(marks_of(groups) == " 1 0; 1 0");
  groups[0].rule_config = optim::MuonRule{};  // its matrices stay on the device
  choose(groups, 1);
  BOOST_TEST(marks_of(groups) == " 0 0; 1 1");
  choose(groups, 1, /*on_device=*/false);  // nothing lies on a GPU
  BOOST_TEST(marks_of(groups) == " 0 0; 0 0");
}

BOOST_DATA_TEST_CASE(fraction_overlap_and_pinning_change_no_bit, data::make(offload_rules())) {
  for (const Types types : {Types::BF16, Types::Mixed, Types::FP32}) {
    const LayerWisePtr plain = make_offloading(sample, types, nullptr);
    const OffloadOutcome expected = run_steps(*plain, 0, kSteps);
    BOOST_TEST(expected.offloaded == 0U);
    BOOST_TEST(expected.updated[2] == (types == Types::FP32));  // no loss scale there
    for (const Offload& offload : all_offloads()) {
      BOOST_TEST_CONTEXT(offload << ", types " << static_cast<int>(types)) {
        const LayerWisePtr optimizer = make_offloading(sample, types, &offload);
        const OffloadOutcome found = run_steps(*optimizer, 0, kSteps);
        expect_same_steps(found, expected);
        BOOST_TEST((found.offloaded > 0) == (offload.fraction > 0));
        const bool has_matrices = std::string_view(sample.name).starts_with("muon");
        const bool is_mixed = found.offloaded < found.params;
        BOOST_TEST(is_mixed == (has_matrices || offload.fraction < 1));
      }
    }
  }
  BOOST_TEST(CopiesTwin::pinned == 0);
}

BOOST_DATA_TEST_CASE(on_the_cpu_alone_it_changes_nothing, data::make(offload_rules())) {
  for (const Types types : {Types::Mixed, Types::FP32}) {
    const LayerWisePtr plain = make_offloading(sample, types, nullptr, nullptr);
    const OffloadOutcome expected = run_steps(*plain, 0, kSteps);
    for (const Offload& offload : {Offload{0.5, true}, Offload{1, false}}) {
      const LayerWisePtr optimizer = make_offloading(sample, types, &offload, nullptr);
      const OffloadOutcome found = run_steps(*optimizer, 0, kSteps);
      expect_same_steps(found, expected);
      BOOST_TEST(found.offloaded == 0U);
    }
  }
}

BOOST_FIXTURE_TEST_CASE(ranks_that_offload_give_the_bits_of_one_that_does_not, OneThread) {
  Run run = run_of_layers(1);
  run.prepare = [](optim::LayerWiseDistributedOptimizer& optimizer) {
    optim::StepInside::of(optimizer).device_api = &optim::host_api();
  };
  run.config.optimizer = "adam";
  const Outcome expected = run_layout({}, run).front();
  run.config.optimizer_cpu_offload = true;
  const Layout layouts[] = {{2, 2},
                            {1, 2},  // process 1 owns nothing
                            {3, 3, optim::OwnershipPolicy::Lpt, true, false, 100},
                            {2, 2, optim::OwnershipPolicy::Balanced, true, true, 300}};
  for (const double fraction : {0.5, 1.0}) {
    run.config.optimizer_offload_fraction = fraction;
    run.config.overlap_cpu_optimizer_d2h_h2d = fraction < 1;
    for (const Layout& layout : layouts) {
      for (const Outcome& outcome : run_layout(layout, run)) expect_same(outcome, expected);
    }
  }
}

// The reference's factory overwrites what it chooses by it (tests/interop/test_offload.py).
BOOST_AUTO_TEST_CASE(use_torch_optimizer_for_cpu_offload_changes_no_bit) {
  for (const OffloadRule& rule : offload_rules()) {
    std::vector<OffloadOutcome> found;
    for (const bool uses_torch : {false, true}) {
      OffloadRule changed = rule;
      changed.configure = [&](optim::OptimizerConfig& config) {
        rule.configure(config);
        config.use_torch_optimizer_for_cpu_offload = uses_torch;
      };
      const LayerWisePtr optimizer = make_offloading(changed, Types::Mixed, &kHalf);
      found.push_back(run_steps(*optimizer, 0, kSteps));
    }
    expect_same_steps(found[1], found[0]);
  }
}

BOOST_AUTO_TEST_CASE(a_recorded_step_offloads_as_well) {
  OffloadRule recorded = kAdam;
  recorded.configure = [](optim::OptimizerConfig& config) {
    config.optimizer = "adam";
    config.optimizer_cuda_graph = true;
  };
  const LayerWisePtr plain = make_offloading(recorded, Types::Mixed, nullptr);
  const LayerWisePtr optimizer = make_offloading(recorded, Types::Mixed, &kHalfOverlapping);
  expect_same_steps(run_steps(*optimizer, 0, kSteps), run_steps(*plain, 0, kSteps));
}

// Another rank says that it cannot make the step: nothing changes here, whose results say so, and
// what asks for the state, once.
BOOST_DATA_TEST_CASE(a_failure_of_another_process_reaches_offloaded_parameters,
                     data::make({0.5, 1.0})) {
  const auto groups = optim::make_in_process_groups(2, {.network_interface = "lo"});
  std::vector<LayerWisePtr> ranks(2);
  std::vector<std::vector<at::Tensor>> before(2);
  const Offload offload = {sample, true};
  optim::OptimizerConfig config = offload_config(kAdam, Types::BF16, &offload);
  config.loss_scale = std::nullopt;
  std::string of_state;
  const std::array<std::string, 2> errors = run_both([&](size_t rank) {
    ranks[rank] = make_optimizer(small_model(1, 3), {2, 2}, groups[rank], config);
    optim::LayerWiseDistributedOptimizer& optimizer = *ranks[rank];
    optim::StepInside::of(optimizer).device_api = &optim::faulty_api();
    bind_step(optimizer, 0, -1);
    before[rank] = bits_of_state(optimizer);
    optim::FaultyStep::fault = rank == 0 ? optim::Fault::Stats : optim::Fault::None;
    const optim::StepResult result = optimizer.step();
    try {
      optimizer.state_dict();
    } catch (const ckpt::Error& error) {
      of_state = error.what();
    }
    optimizer.state_dict();
    result.grad_norm->get();
  });
  BOOST_TEST(errors[0].find("out of memory") != std::string::npos, errors[0]);
  BOOST_TEST(errors[1].find("another process could not") != std::string::npos, errors[1]);
  BOOST_TEST(of_state.find("1 of the last steps") != std::string::npos, of_state);
  for (size_t rank = 0; rank < 2; ++rank) {
    BOOST_TEST(std::ranges::equal(before[rank], bits_of_state(*ranks[rank]), same_bits));
  }
}

// What the caller does to the model's tensors between steps counts, as without offload.
BOOST_AUTO_TEST_CASE(changed_parameters_are_stepped_from_their_new_values) {
  std::vector<OffloadOutcome> found;
  for (const Offload* const offload : {static_cast<const Offload*>(nullptr), &kWhole}) {
    const LayerWisePtr optimizer = make_offloading(kAdam, Types::Mixed, offload);
    run_steps(*optimizer, 0, 1);
    for (const optim::Param& param : optimizer->all_params()) {
      at::Tensor(param.param).mul_(0.5);
    }
    optimizer->reload_model_params();
    found.push_back(run_steps(*optimizer, 1, 2));
  }
  expect_same_steps(found[1], found[0]);
}

BOOST_AUTO_TEST_CASE(parameters_without_gradients_neither_move_nor_count) {
  std::vector<OffloadOutcome> found;
  for (const Offload* const offload : {static_cast<const Offload*>(nullptr), &kHalf}) {
    const LayerWisePtr optimizer = make_offloading(kAdam, Types::BF16, offload);
    bind_step(*optimizer, 0, -1);
    optimizer->get_parameters()[0]->model.main_grad = at::Tensor();
    optimizer->step();
    found.push_back(run_steps(*optimizer, 1, 2));
    BOOST_TEST(found.back().counts[0] == 1);
    BOOST_TEST(found.back().counts[1] == 2);
  }
  expect_same_steps(found[1], found[0]);
}

using Calls = std::vector<std::string>;

// Three of twelve parameters, whose norm is fp32 and travels both ways.
BOOST_AUTO_TEST_CASE(copies_and_updates_take_turns_in_this_order) {
  const Calls together = {"follow", "to_host", "to_host",   "to_host",   "mark", "wait",
                          "wait",   "wait",    "to_device", "to_device", "join"};
  const Calls overlapping = {"follow",  "to_host",   "mark", "to_host", "mark",
                             "to_host", "mark",      "wait", "wait",    "to_device",
                             "wait",    "to_device", "join"};
  for (const bool overlaps : {false, true}) {
    const Offload offload = {0.2, overlaps};
    const LayerWisePtr optimizer = make_offloading(kAdam, Types::BF16, &offload);
    bind_step(*optimizer, 0, -1);
    CopiesTwin::forget_calls();
    optimizer->step();
    const Calls first = CopiesTwin::log;
    BOOST_TEST((first[0] == "pin" && first[1] == "pin" && first[2] == "make"));
    bind_step(*optimizer, 1, -1);
    CopiesTwin::forget_calls();
    optimizer->step();  // memory and streams are there
    BOOST_TEST(CopiesTwin::log == (overlaps ? overlapping : together),
               boost::test_tools::per_element());
  }
}

// Every call that can fail fails once: until the CPU waits, nothing has moved.
BOOST_AUTO_TEST_CASE(a_copy_that_fails_is_reported_and_the_next_step_is_whole) {
  for (const Offload& offload : {kHalf, kHalfOverlapping}) {
    int64_t failures = 0;
    for (bool fails = true; fails; ++failures) {
      const LayerWisePtr optimizer = make_offloading(kAdam, Types::Mixed, &offload);
      bind_step(*optimizer, 0, -1);
      const std::vector<at::Tensor> before = bits_of_state(*optimizer);
      CopiesTwin::forget_calls(failures);
      try {
        optimizer->step();
        fails = false;
      } catch (const ckpt::Error& error) {
        BOOST_TEST((error.code() == ckpt::ErrorCode::IoFailure));
        BOOST_TEST(error.problem().find('\n') == std::string::npos);
      }
      const bool has_begun = std::ranges::count(CopiesTwin::log, "wait") > 0;
      CopiesTwin::forget_calls();
      if (fails && !has_begun) {
        BOOST_TEST(std::ranges::equal(bits_of_state(*optimizer), before, same_bits));
      }
      bind_step(*optimizer, 1, -1);
      BOOST_TEST(optimizer->step().update_successful);
    }
    BOOST_TEST(failures > 10);
  }
  BOOST_TEST(CopiesTwin::pinned == 0);
}

BOOST_AUTO_TEST_CASE(a_device_that_says_no_leaves_offloaded_parameters_untouched) {
  using optim::Fault;
  for (const Fault fault : {Fault::Make, Fault::Memory, Fault::Bind, Fault::Rates, Fault::Control,
                            Fault::Stats, Fault::Update}) {
    const LayerWisePtr optimizer =
        make_offloading(kAdam, Types::Mixed, &kHalfOverlapping, &optim::faulty_api());
    bind_step(*optimizer, 0, -1);
    const std::vector<at::Tensor> before = bits_of_state(*optimizer);
    optim::FaultyStep::fault = fault;
    BOOST_CHECK_THROW(optimizer->step(), ckpt::Error);
    optim::FaultyStep::fault = Fault::None;
    BOOST_TEST(std::ranges::equal(bits_of_state(*optimizer), before, same_bits));
    BOOST_TEST(optimizer->step().update_successful);
  }
}

// Kernels against the CPU's loops, where there is a GPU.
BOOST_FIXTURE_TEST_CASE(a_gpu_and_the_cpu_give_the_bits_of_the_gpu_alone, OneThread) {
  if (lacks_gpu()) return;
  Run run = run_on_gpu();
  run.config.optimizer = "adam";
  const Outcome expected = run_layout({}, run).front();
  run.config.optimizer_cpu_offload = true;
  for (const double fraction : {0.3, 1.0}) {
    for (const bool overlaps : {false, true}) {
      run.config.optimizer_offload_fraction = fraction;
      run.config.overlap_cpu_optimizer_d2h_h2d = overlaps;
      expect_same(run_layout({}, run).front(), expected);
    }
  }
}

BOOST_AUTO_TEST_SUITE_END()
