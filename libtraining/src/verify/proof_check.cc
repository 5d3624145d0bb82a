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

class ProofCheck {
 public:
  ProofCheck(const OpenedTraining& checkpoint, const VerifyOptions& options, VerifyReport& report)
      : checkpoint_(checkpoint), options_(options), report_(report) {}

  void run(const FiledState* state) {
    const auto promise = promise_of(checkpoint_);
    if (!promise) return;
    file_ = promise->file;
    if (state == nullptr) {
      report_.not_checked.push_back({"what " + file_ + " promises", "parameters are not known"});
      return;
    }
    report_.promised_state_count = promise->states.size();
    check_counts(*promise, count_states(*state));
    check_digest(*promise, *state);
  }

 private:
  void check_counts(const Promise& promise, const std::vector<StateCount>& found) {
    for (const StateCount& wanted : promise.states) {
      const auto same = std::ranges::find_if(found, [&](const StateCount& count) {
        return ckpt::escaped(count.state) == wanted.state &&
               count.is_of_experts == wanted.is_of_experts;
      });
      const StateCount none;
      const StateCount& held = same == found.end() ? none : *same;
      const bool is_kept =
          held.element_count == wanted.element_count && held.tensor_count == wanted.tensor_count;
      if (is_kept) {
        ++report_.kept_state_count;
        continue;
      }
      find(wanted.state, std::string(wanted.is_of_experts ? "of experts, " : "") +
                             "the conversion wrote " + counts_of(wanted) + ", there are " +
                             counts_of(held));
    }
  }

  static std::string counts_of(const StateCount& count) {
    return std::to_string(count.element_count) + " elements in " +
           std::to_string(count.tensor_count) + " tensors";
  }

  void check_digest(const Promise& promise, const FiledState& state) {
    const bool looks =
        !options_.quick && options_.selection.is_everything() && options_.share.world_size == 1;
    if (promise.logical_digest.empty() || !looks) return;
    const ckpt::Inventory inventory = logical_inventory(state);
    const std::string found = hex(ckpt::hash(inventory, checkpoint_, options_.execution).digest);
    report_.has_promised_digest = found == promise.logical_digest;
    if (report_.has_promised_digest) return;
    find("logical_digest",
         "the conversion promised the logical hash " + promise.logical_digest + ", found " + found);
  }

  void find(std::string key, std::string problem) {
    report_.find({file_, std::nullopt, std::move(key)}, std::move(problem),
                 "the folder is not as the conversion left it: something changed it afterwards");
  }

  const OpenedTraining& checkpoint_;
  const VerifyOptions& options_;
  VerifyReport& report_;
  std::string file_;  // with the proof, as errors name it
};

}  // namespace

void check_proof(const OpenedTraining& checkpoint, const FiledState* state,
                 const VerifyOptions& options, VerifyReport& report) {
  if (!is_megatron(checkpoint) || options.share.rank != 0) return;
  try {
    ProofCheck(checkpoint, options, report).run(state);
  } catch (const ckpt::Error& error) {
    if (error.code() != ckpt::ErrorCode::Corrupt) throw;
    report.find(error.where(), error.problem(), error.hint());
  }
}

}  // namespace optim
