#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <training/filed_state.h>
#include <training/opened_training.h>
#include <training/repair.h>
#include <training/verify.h>

// Known faults of writers: what a version of Megatron-Core leaves in what it saves, how that shows,
// and how it is mended. Each is a row of known_issues() and a file of this folder; verify and
// convert ask all rows, at the same places. A function that a fault has no use for is null.
namespace optim {

// A training state as it is carried, and where its bytes come from.
struct RepairedState {
  FiledState state;
  std::shared_ptr<const ckpt::PayloadSource> payloads;  // null: the checkpoint's own
  std::vector<RepairFinding> repairs;                   // that were asked for, in their order
};

// What verify knows when it has looked at all values of this process's part.
struct SeenValues {
  const FiledState& state;
  const OpenedTraining& checkpoint;
  bool do_masters_differ = false;                  // some of them, from their weights
  std::function<bool(const ckpt::Chunk&)> is_own;  // whether a chunk is of this process's part
  std::function<ckpt::Where(const ckpt::TensorEntry&, const ckpt::Chunk&)> where;  // in the files
};

struct Issue {
  RepairKind kind;
  std::string_view name;  // as --repair says it

  // Whether a state has it. Reads values where it has to. Null: it shows before a state is read.
  RepairFinding (*find)(const FiledState&, const OpenedTraining&) = nullptr;
  // Where options ask for it. Throws Corrupt where it cannot be mended, or not without a loss that
  // options do not accept.
  RepairFinding (*mend)(RepairedState&, const OpenedTraining&, const RepairOptions&) = nullptr;
  // Where they do not: throws Corrupt for a state that must not be carried as it is.
  void (*refuse)(const FiledState&) = nullptr;
  // Of a state whose masters prove no place: throws Unsupported where it may have the fault.
  void (*refuse_unproven)(const FiledState&, const OpenedTraining&) = nullptr;
  // What to do about masters that differ from their weights, where this may be why; else empty.
  std::string (*explain)(const FiledState&) = nullptr;

  // For verify: what settings tell, and what values do.
  void (*report_settings)(const FiledState&, VerifyReport&) = nullptr;
  void (*report_values)(const SeenValues&, VerifyReport&) = nullptr;
};

extern const Issue kGtpRows, kBucketShift, kGroupOrder, kCommonState;
std::span<const Issue* const> known_issues();  // in the order of kRepairKinds

// Mends what options ask for; of the rest, refuses what must not be carried.
RepairedState repair_state(FiledState state, const OpenedTraining& source,
                           const RepairOptions& options);

}  // namespace optim
