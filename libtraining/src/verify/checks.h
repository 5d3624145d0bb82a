#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ckpt/error.h>
#include <ckpt/verify.h>
#include <training/filed_state.h>
#include <training/opened_training.h>
#include <training/verify.h>

// The checks of what a checkpoint's state must be like, one subject each. Those that take a report
// add to its findings.
namespace optim {

// --- the model against args: args_check.cc, layer_check.cc ---

// An argument of the run that the tensors of its model contradict.
struct ContradictedArg {
  // What goes wrong where the argument is followed. Shapes: what a tensor is like, which a wrong
  // way of joining its parts contradicts, too. Cut: names of parameters, or where they are cut.
  enum class Decides : uint8_t { Modules, Shapes, Cut };

  std::string name;     // num_layers
  std::string problem;  // "is 4, but the model has 3 decoder layers"
  Decides decides = Decides::Modules;
};

// Whether args describe each layer by itself, so that layers need not be alike.
bool layers_are_described(const FiledState& state);

// Arguments that the tensors of the model contradict, each once: sizes, numbers of layers and
// experts, the vocabulary, what modules layers have. docs/verify.md lists them, and those of which
// no tensor tells anything. Empty: they agree, or the model has nothing to compare with.
std::vector<ContradictedArg> contradicted_args(const FiledState& state);

// The first of them that decides so much, or more; nullopt: none does.
std::optional<ContradictedArg> contradicted_arg(const FiledState& state,
                                                ContradictedArg::Decides least);

// The same as findings: of the model alone, where its optimizer cannot be read.
void check_args(const OpenedTraining& checkpoint, VerifyReport& report);
void check_args(const FiledState& state, VerifyReport& report);

// A parameter that the rest of a model says it should have: one of Megatron's modules (the built-in
// model rules) that a layer or an expert lacks although it has nothing that others of its kind
// lack, or although it has what comes with it (linear_proj with linear_qkv, norms where the model
// has any); embeddings, final norm and output layer of a GPT model. Nothing is said of modules that
// the rules do not know, of a layer without attention or MLP, and of a model whose args describe
// each layer by itself.
void check_layers(const FiledState& state, VerifyReport& report);

// --- optimizers: group_check.cc, distributed_check.cc ---

// One step count per parameter group, no two groups that Megatron takes for each other when it
// loads them, and no setting that ranks have otherwise or lack. Adds to group_count, too.
void check_groups(const OpenedTraining& checkpoint, VerifyReport& report);

// What the optimizers of a chain must have: a step count where moments are averages over steps; of
// a DistributedOptimizer in each group, and in common one; and what Megatron-Core up to 0.12 does
// to its groups when it loads them.
void check_distributed_optimizers(const FiledState& state, const OpenedTraining& checkpoint,
                                  VerifyReport& report);

// --- what is not there: lacking_state.cc, rank_folder_check.cc, resume_files.cc ---

// What other parts of a Megatron checkpoint show that it had, and that is not in it: the common
// state of a torch_dist folder, the random states of some ranks, a moment of every parameter that
// an optimizer has stepped. `state` may be null.
void find_lacking(const OpenedTraining& checkpoint, const FiledState* state, VerifyReport& report);

// Of a `torch` iteration folder whose names are not known: whether the files are there that the
// ranks of its layout write, and whether the rank files of a LayerWise optimizer hold a master for
// each weight. Adds to not_checked and not_proven, too.
void check_rank_folders(const OpenedTraining& checkpoint, VerifyReport& report);

// Of a folder of weights: files beside them that a run resumes from, which the Trainer of
// transformers or Accelerate wrote with those that are there.
void check_resume_files(const OpenedTraining& checkpoint, VerifyReport& report);

// The files that the ranks of a `torch` iteration folder write and that are not there, sorted. None
// where it is not known how the ranks were numbered.
std::vector<std::string> missing_rank_files(const OpenedTraining& checkpoint);

// Of an argument, TrainingState::maybe_equal_args.
inline constexpr const char* kMaybeOneMember =
    "one rank file has it by value, another by name: it may be one member of an enum";

// --- what was promised: lacking_state.cc, step_check.cc, proof_check.cc ---

// Files of a Megatron checkpoint whose state is of another iteration than the folder's name says:
// training continues from the state's.
std::vector<ckpt::Finding> find_other_iterations(const OpenedTraining& checkpoint);

// The same of other programs: how many steps the files of one save say that were taken, and its
// folder's name.
void check_steps(const OpenedTraining& checkpoint, VerifyReport& report);

// A file beside a checkpoint, which must outlive it.
std::shared_ptr<const OpenedTraining> open_beside(const OpenedTraining& checkpoint,
                                                  const std::string& name);

// What shardwise-proof.json promises of the folder in which it lies: the elements of each state,
// and, unless only the structure is looked at, the logical hash of all. Nothing where there is
// none. `state`: of the checkpoint; null where its parameters are not known.
void check_proof(const OpenedTraining& checkpoint, const FiledState* state,
                 const VerifyOptions& options, VerifyReport& report);

// --- masters: deepspeed_masters.cc, state_check.cc ---

// Whether the masters of DeepSpeed's ZeRO-1 and ZeRO-2 round to the weights in the model's file.
void check_deepspeed_masters(const OpenedTraining& checkpoint, VerifyReport& report);

// Why the weights of this run may be something else than their masters rounded to 16 bits: they
// were kept in fp8, or the optimizer kept masters in another form. nullopt where nothing says so.
std::optional<std::string> why_weights_may_differ(const OpenedTraining& checkpoint);

}  // namespace optim
