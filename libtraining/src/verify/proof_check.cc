// The promise of the conversion that wrote a folder, against what is in the folder now.
#include <algorithm>
#include <utility>

#include <ckpt/hash.h>
#include <training/conservation.h>
#include <training/logical_inventory.h>
#include <training/megatron_folders.h>

#include "proof/proof_file.h"
#include "verify/checks.h"

namespace optim {
namespace {

void find(VerifyReport& report, const Promise& promise, std::string key, std::string problem) {
  report.find({promise.file, std::nullopt, std::move(key)}, std::move(problem),
              "the folder is not as the conversion left it: something changed it afterwards");
}

std::string counts_of(const StateCount& count) {
  return std::to_string(count.element_count) + " elements in " +
         std::to_string(count.tensor_count) + " tensors";
}

void check_counts(const Promise& promise, const std::vector<StateCount>& found,
                  VerifyReport& report) {
  for (const StateCount& wanted : promise.states) {
    const auto same = std::ranges::find_if(found, [&](const StateCount& count) {
      return ckpt::escaped(count.state) == wanted.state &&
             count.is_of_experts == wanted.is_of_experts;
    });
    const StateCount held = same == found.end() ? StateCount() : *same;
    if (held.element_count == wanted.element_count && held.tensor_count == wanted.tensor_count) {
      ++report.kept_state_count;
      continue;
    }
    find(report, promise, wanted.state,
         std::string(wanted.is_of_experts ? "of experts, " : "") + "the conversion wrote " +
             counts_of(wanted) + ", there are " + counts_of(held));
  }
}

}  // namespace

void check_proof(const OpenedTraining& checkpoint, const FiledState* state,
                 const VerifyOptions& options, VerifyReport& report) {
  if (!is_megatron(checkpoint) || options.share.rank != 0) return;
  try {
    const auto promise = promise_of(checkpoint);
    if (!promise) return;
    if (state == nullptr) {
      report.not_checked.push_back(
          {"what " + promise->file + " promises", "parameters are not known"});
      return;
    }
    report.promised_state_count = promise->states.size();
    check_counts(*promise, count_states(*state), report);
    const bool looks = !options.quick && options.selection.is_everything();
    if (promise->logical_digest.empty() || !looks || options.share.world_size != 1) return;
    const ckpt::Inventory inventory = logical_inventory(*state);
    const std::string found = hex(ckpt::hash(inventory, checkpoint, options.execution).digest);
    report.has_promised_digest = found == promise->logical_digest;
    if (report.has_promised_digest) return;
    find(
        report, *promise, "logical_digest",
        "the conversion promised the logical hash " + promise->logical_digest + ", found " + found);
  } catch (const ckpt::Error& error) {
    if (error.code() != ckpt::ErrorCode::Corrupt) throw;
    report.find(error.where(), error.problem(), error.hint());
  }
}

}  // namespace optim
