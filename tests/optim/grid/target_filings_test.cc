// How a target files each optimizer of a chain, or why it cannot.
#include <boost/test/unit_test.hpp>

#include <training/layer_wise_checkpoint.h>
#include <training/opened_training.h>

#include "layouts/layouts.h"
#include "support/errors.h"

using ckpt::Format;

namespace {

constexpr const char* kOfMuon = "lw_muon_bf16_torch_dp2";  // Muon, and AdamW beside it
constexpr const char* kInFile = "do_adam_bf16_torch_dp2";
constexpr const char* kInBuckets = "do_adam_bf16_torch_dist_dp_reshardable_dp2";
constexpr const char* kInRanges = "v012_do_adam_fully_sharded_dp2";

struct FilingCase {
  const char* sample;
  Format container;
  const optim::Filing* filing;
  const optim::Release* release;
  std::string_view expected;  // filings and release, or the problem
};
constexpr FilingCase kFilingCases[] = {
    {kOfMuon, Format::TorchDist, nullptr, nullptr, "layer_wise layer_wise 0.16"},
    {kOfMuon, Format::TorchDist, nullptr, &optim::kCore018, "layer_wise fully_reshardable 0.18"},
    {kOfMuon, Format::TorchDist, nullptr, &optim::kCore019, "layer_wise fully_reshardable 0.19"},
    {kOfMuon, Format::TorchDist, &optim::kBuckets, &optim::kCore019,
     "layer_wise dp_reshardable 0.19"},
    {kOfMuon, Format::TorchDist, &optim::kDealt, &optim::kCore019,
     "layer_wise fully_reshardable 0.19"},
    {kOfMuon, Format::TorchDist, &optim::kBuckets, nullptr,
     "the state of muon cannot be written as dp_reshardable: a DistributedOptimizer keeps Adam's "
     "state, by ranges of elements"},
    {kOfMuon, Format::Torch, &optim::kBuckets, nullptr,
     "torch checkpoints cannot be written as dp_reshardable"},
    {kInFile, Format::Torch, nullptr, &optim::kCore019, "flat_file 0.16"},
    {kInFile, Format::TorchDist, nullptr, nullptr, "fully_reshardable 0.16"},
    {kInFile, Format::TorchDist, nullptr, &optim::kCore018, "fully_reshardable 0.16"},
    {kInFile, Format::TorchDist, &optim::kBuckets, &optim::kCore019, "dp_reshardable 0.19"},
    {kInFile, Format::TorchDist, &optim::kDealt, nullptr, "layer_wise 0.16"},
    {kInBuckets, Format::Torch, nullptr, nullptr, "flat_file 0.16"},
    {kInBuckets, Format::TorchDist, nullptr, nullptr, "dp_reshardable 0.16"},
    {kInBuckets, Format::TorchDist, &optim::kFlatFile, nullptr,
     "torch_dist checkpoints cannot be written as flat_file"},
    {kInRanges, Format::TorchDist, nullptr, nullptr, "fully_reshardable 0.16"},
    {kInRanges, Format::TorchDist, &optim::kRanges, nullptr,
     "torch_dist checkpoints cannot be written as fully_sharded_model_space"},
    {kInRanges, Format::Torch, nullptr, nullptr, "flat_file 0.16"},
};

std::string words_of(const optim::FiledAs& filed) {
  std::string text;
  for (const optim::Filing* const filing : filed.optimizers)
    text += std::string(filing->name) + " ";
  return text + std::string(filed.release->name);
}

}  // namespace

BOOST_AUTO_TEST_SUITE(target_filings)

BOOST_AUTO_TEST_CASE(each_optimizer_gets_one_or_it_is_said_why_none_fits) {
  for (const FilingCase& one : kFilingCases) {
    BOOST_TEST_CONTEXT(one.sample << ", expected " << one.expected) {
      const auto path = std::filesystem::path(SHARDWISE_GOLDEN_DIR) / one.sample / "ckpt";
      const optim::FiledState state = optim::read_training_state(optim::open_checkpoint(path));
      const optim::FilingChange change = {.filing = one.filing, .release = one.release};
      std::string found;
      const auto error = test::error_of(
          [&] { found = words_of(optim::choose_filings(state, one.container, change)); });
      BOOST_TEST((error ? error->problem() : found) == one.expected);
    }
  }
}

BOOST_AUTO_TEST_SUITE_END()
