// Several processes that step on a device: what they ask of their group, in which order, and what
// becomes of the others where one cannot make a step. By the kernels' CPU twins.
#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <ranges>
#include <thread>

#include "faulty_step.h"
#include "optim/step/layer_wise_runs.h"
#include "recording_group.h"
#include "step/optimizer/peers_and_device.h"

namespace {

using namespace optim;

// Writes down which part of the update is queued when.
class LoggedStep final : public FaultyStep {
 public:
  static inline thread_local Log* log = nullptr;  // of the calling rank
  using FaultyStep::FaultyStep;
  kernels::DeviceStatus queue_update(uint32_t part, Stream stream) override {
    if (log != nullptr) log->push_back("update " + std::to_string(part));
    return FaultyStep::queue_update(part, stream);
  }
};

std::unique_ptr<kernels::DeviceStep> make_logged_step(kernels::StepPlan plan,
                                                      kernels::DeviceStatus& status) {
  status = FaultyStep::fault == Fault::Make ? FaultyStep::kRefused : 0;
  if (status != 0) return nullptr;
  return std::make_unique<LoggedStep>(std::move(plan));
}

const kernels::DeviceApi& logged_api() {
  static const kernels::DeviceApi api = {[]() -> const char* { return nullptr; },
                                         [](kernels::DeviceStatus) { return "out of memory"; },
                                         make_logged_step,
                                         make_copies_twin,
                                         pin_twin,
                                         unpin_twin};
  return api;
}

using RankPtr = std::unique_ptr<LayerWiseDistributedOptimizer>;

// The same body on both ranks, each in a thread of its own.
struct TwoRanks {
  std::vector<RecordedRank> groups = make_recorded_groups(2);
  std::vector<RankPtr> optimizers = std::vector<RankPtr>(2);

  void run(const std::function<void(size_t rank)>& body) {
    std::vector<std::jthread> threads;
    for (size_t rank = 0; rank < 2; ++rank) threads.emplace_back(body, rank);
  }

  void make(const Layout& layout, const OptimizerConfig& config) {
    run([&](size_t rank) {
      optimizers[rank] = make_optimizer(small_model(1, 3), layout, groups[rank].groups, config);
      StepInside::of(*optimizers[rank]).device_api = &logged_api();
      optimizers[rank]->bind_grads([](const ParamInfo& info) { return gradient_of(info, 0); });
    });
    for (const RecordedRank& rank : groups) rank.log->clear();
  }

  // Each rank's log of what `body` does.
  std::vector<Log> logs_of(const std::function<void(size_t rank)>& body) {
    for (const RecordedRank& rank : groups) rank.log->clear();
    run([&](size_t rank) {
      LoggedStep::log = groups[rank].log.get();
      body(rank);
      LoggedStep::log = nullptr;
    });
    return {*groups[0].log, *groups[1].log};
  }
};

std::vector<at::Tensor> weights_and_masters_of(LayerWiseDistributedOptimizer& optimizer) {
  std::vector<at::Tensor> all;
  for (const Param& param : optimizer.all_params()) all.push_back(param.param.clone());
  for (const OptimizedParam* const param : optimizer.get_parameters()) {
    all.push_back(master_of(*param).clone());
  }
  return all;
}

int64_t latest_step_of(LayerWiseDistributedOptimizer& optimizer) {
  int64_t most = 0;
  for (const OptimizedParam* const param : optimizer.get_parameters()) {
    most = std::max(most, param->step);
  }
  return most;
}

// The problem that `call` reports; nothing where it does not.
std::string problem_of(const std::function<void()>& call) {
  try {
    call();
    return "";
  } catch (const ckpt::Error& error) {
    return (error.code() == ckpt::ErrorCode::IoFailure ? "" : "other code: ") + error.problem();
  }
}

struct FailingStep {
  const char* name;
  Fault fault;
  bool overlaps;
  bool scales;
};
std::ostream& operator<<(std::ostream& out, const FailingStep& c) { return out << c.name; }

const FailingStep kFailing[] = {
    {"no memory", Fault::Memory, false, false},
    {"no step", Fault::Make, false, false},
    {"no statistics", Fault::Stats, false, false},
    {"no statistics, overlapping", Fault::Stats, true, false},
    {"no statistics, loss scaling", Fault::Stats, false, true},
    {"no rates, loss scaling, overlapping", Fault::Rates, true, true},
};

bool contains(const std::string& text, const char* part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(device_ranks)

// Rank 1 fails before the statistics are summed up; rank 0, which waits for its sum, gets one.
BOOST_DATA_TEST_CASE(a_step_that_one_rank_cannot_make_changes_nothing_on_any,
                     boost::unit_test::data::make(kFailing)) {
  OptimizerConfig config = muon_config();
  if (sample.scales) config.loss_scale = 4;
  const Layout layout = {2, 2, OwnershipPolicy::PingPong, sample.overlaps, false, 300};
  TwoRanks ranks, expected;
  ranks.make(layout, config);
  expected.make(layout, config);
  std::vector<std::vector<at::Tensor>> before(2);
  std::vector<std::string> problems(2);
  ranks.run([&](size_t rank) {
    LayerWiseDistributedOptimizer& optimizer = *ranks.optimizers[rank];
    before[rank] = weights_and_masters_of(optimizer);
    if (rank == 1) FaultyStep::fault = sample.fault;
    problems[rank] = problem_of([&] {
      const StepResult result = optimizer.step();
      result.grad_norm->get();  // without loss scaling the step does not wait to know
    });
    FaultyStep::fault = Fault::None;
  });
  BOOST_TEST(contains(problems[0], "another process could not make this step"), problems[0]);
  BOOST_TEST(contains(problems[1], "out of memory"), problems[1]);
  for (size_t rank = 0; rank < 2; ++rank) {
    BOOST_TEST(std::ranges::equal(weights_and_masters_of(*ranks.optimizers[rank]), before[rank],
                                  same_bits));
  }
  ranks.run([&](size_t rank) { ranks.optimizers[rank]->step(); });
  expected.run([&](size_t rank) { expected.optimizers[rank]->step(); });
  for (size_t rank = 0; rank < 2; ++rank) {
    BOOST_TEST(std::ranges::equal(weights_and_masters_of(*ranks.optimizers[rank]),
                                  weights_and_masters_of(*expected.optimizers[rank]), same_bits));
  }
}

BOOST_AUTO_TEST_CASE(counts_of_steps_that_were_not_made_are_taken_back_before_they_are_saved) {
  TwoRanks ranks;
  ranks.make({2, 2}, muon_config());
  std::vector<std::string> first(2), second(2);
  ranks.run([&](size_t rank) {
    LayerWiseDistributedOptimizer& optimizer = *ranks.optimizers[rank];
    optimizer.step();
    if (rank == 1) FaultyStep::fault = Fault::Stats;
    problem_of([&] { optimizer.step(); });
    FaultyStep::fault = Fault::None;
    first[rank] = problem_of([&] { optimizer.state_dict(); });
    second[rank] = problem_of([&] { optimizer.state_dict(); });
  });
  BOOST_TEST(contains(first[0], "1 of the last steps changed nothing"), first[0]);
  BOOST_TEST(first[1] == "");  // it knows
  for (size_t rank = 0; rank < 2; ++rank) {
    BOOST_TEST(second[rank] == "");
    BOOST_TEST(latest_step_of(*ranks.optimizers[rank]) == 1);
  }
}

BOOST_AUTO_TEST_CASE(all_ranks_ask_for_the_same_whatever_fails) {
  for (const bool overlaps : {false, true}) {
    TwoRanks ranks;
    ranks.make({2, 2, OwnershipPolicy::PingPong, overlaps, false, 300}, muon_config());
    for (const Fault fault : {Fault::None, Fault::Make, Fault::Stats, Fault::Update, Fault::None}) {
      const auto asked = ranks.logs_of([&](size_t rank) {
        if (rank == 1) FaultyStep::fault = fault;
        problem_of([&] { ranks.optimizers[rank]->step(); });
        FaultyStep::fault = Fault::None;
      });
      std::vector<Log> collectives(2);
      for (size_t rank = 0; rank < 2; ++rank) {
        std::ranges::copy_if(asked[rank], std::back_inserter(collectives[rank]),
                             [](const std::string& line) { return !line.starts_with("update"); });
      }
      BOOST_TEST(collectives[0].size() > 1U);
      BOOST_TEST(collectives[0] == collectives[1], boost::test_tools::per_element());
    }
  }
}

// overlap_param_gather: a part's parameters leave before the next part is updated.
BOOST_AUTO_TEST_CASE(parameters_leave_while_later_ones_are_updated) {
  TwoRanks ranks;
  ranks.make({2, 2, OwnershipPolicy::PingPong, true, false, 300}, muon_config());
  for (const Log& log : ranks.logs_of([&](size_t rank) { ranks.optimizers[rank]->step(); })) {
    std::vector<std::string> kinds;  // without repetitions
    for (const std::string& line : log) {
      const std::string kind = line.substr(0, line.find(','));
      if (kinds.empty() || kinds.back() != kind) kinds.push_back(kind);
    }
    const std::vector<std::string> expected = {"all-reduce", "update 0",   "all-gather",
                                               "update 1",   "all-gather", "update 2",
                                               "all-gather", "update 3",   "all-gather"};
    BOOST_TEST(kinds == expected, boost::test_tools::per_element());
  }
}

BOOST_AUTO_TEST_CASE(broadcasts_of_a_round_are_one_operation) {
  TwoRanks ranks;
  ranks.make({2, 2, OwnershipPolicy::PingPong, false, true}, muon_config());
  for (const Log& log : ranks.logs_of([&](size_t rank) { ranks.optimizers[rank]->step(); })) {
    const auto begin = std::ranges::find(log, "group");
    const auto end = std::find(begin, log.end(), "end of group");
    BOOST_REQUIRE((end != log.end()));
    BOOST_TEST(std::distance(begin, end) == 3);  // one from each rank
    BOOST_TEST((begin + 1)->starts_with("broadcast from 0"));
    BOOST_TEST((begin + 2)->starts_with("broadcast from 1"));
  }
  const auto one_by_one =
      ranks.logs_of([&](size_t rank) { ranks.optimizers[rank]->broadcast_params(); });
  for (const Log& log : one_by_one) {
    BOOST_TEST(std::ranges::count(log, "group") == 1);
    BOOST_TEST(static_cast<size_t>(std::ranges::count_if(log, [](const std::string& line) {
                 return line.starts_with("broadcast");
               })) == ranks.optimizers[0]->all_params().size());
  }
}

BOOST_AUTO_TEST_SUITE_END()
