// To what Megatron reads under FSDP: fsdp_dtensor and torch_dcp.
#include <algorithm>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ckpt/root.h>

#include "convert/checks.h"
#include "convert/files_beside.h"
#include "convert/named_conversion.h"
#include "layouts/layouts.h"
#include "state/words.h"

namespace optim {
namespace {

// Megatron compares the groups of a file with the run's.
constexpr const char* kEpOfGroups[] = {
    "experts are in one group with others: Megatron continues at EP 1; for another EP, reshard "
    "first",
    "experts have groups of their own: Megatron continues at EP above 1; for EP 1, reshard first"};

// What optimizers have beside groups and states: fp16's grad_scaler, which Megatron-FSDP does not
// save. Source: sharded_param_state_fsdp_dtensor() of core 0.19's distrib_optimizer.py.
std::vector<ckpt::NotCarried> drop_scalers(NamedConversion& made) {
  const auto is_plain = [](const ChainedOptimizerState& of) { return of.others.empty(); };
  if (std::ranges::all_of(made.target_state().chain, is_plain)) return {};
  std::vector<ckpt::NotCarried> dropped;
  auto rest = std::make_shared<FiledState>(made.target_state());
  for (size_t i = 0; i < rest->chain.size(); ++i) {
    ChainedOptimizerState& optimizer = rest->chain[i];
    for (const auto& [name, value] : std::exchange(optimizer.others, {})) {
      dropped.push_back({"optimizer." + std::to_string(i) + "." + name,
                         "Megatron-FSDP saves none: the run starts with its initial loss scale"});
    }
  }
  made.filed = std::move(rest);
  made.continuation->next_step = NextStep::Different;
  made.continuation->reasons.push_back("the loss scale begins anew, as Megatron-FSDP saves none");
  return dropped;
}

}  // namespace

NamedConversion to_fsdp(const FiledState& state, Job& job, const ConvertOptions& options) {
  SizeChange sizes = options.sizes;
  sizes.vocabulary.reset();
  FilingChange form = options.form;
  if (options.fsdp_dtensor) form.release = nullptr;
  if (!sizes.empty() || !form.empty() || options.link || options.into) {
    throw Error(ErrorCode::InvalidArgument, {},
                "a run under FSDP reads its folder at any number of data-parallel ranks",
                "leave out sizes, --link, --into and options about the optimizer's files");
  }
  NamedConversion made{.state = state, .grid = state.grid};
  made.source_states = count_states(state);
  if (!state.chain.empty()) {
    const FilingChange by_name{.filing = &kByName};
    const FiledAs filed = choose_filings(state, ckpt::Format::TorchDist, by_name);
    ParallelSizes of_groups;
    if (options.fsdp_dtensor) of_groups.expert_parallel = expert_parallel_under_fsdp(state);
    made.filed = filed_as(state, filed, by_name, of_groups);
    made.continuation = continuation_of(state, {.grid = state.grid,
                                                .is_seeded_anew = state.rng_states.size() > 1,
                                                .loses_step_count = options.torch_dcp});
    made.continuation->next_step = std::max(made.continuation->next_step, NextStep::OrderOfSums);
  }
  std::vector<ckpt::NotCarried> scalers;
  if (options.fsdp_dtensor && !state.chain.empty()) scalers = drop_scalers(made);
  const bool as_root = job.source.was_root() || state.folder_name == kRelease;
  made.target = options.torch_dcp ? make_fsdp2_target(made.target_state())
                                  : make_state_dict_target(made.target_state(), options.form);
  std::ranges::move(scalers, std::back_inserter(made.target.not_carried));
  if (options.fsdp_dtensor && made.continuation && state.facts.expert_count > 0) {
    made.target.warnings.push_back(kEpOfGroups[expert_parallel_under_fsdp(state) > 1]);
  }
  if (as_root) make_root(made.target, state.folder_name);
  made.states = count_states(made.target_state());
  list_files_beside(job.source, made.target);
  job.check_result = layer_wise_check(made.target_state(), job.payloads(), {0, made.states},
                                      made.target.not_carried, options.base);
  return made;
}

}  // namespace optim
