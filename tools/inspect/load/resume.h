#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include <training/filed_state.h>
#include <training/layer_wise_checkpoint.h>
#include <training/opened_training.h>
#include <training/rank_reads.h>

// Whether Megatron-LM goes on from a checkpoint: what its load_checkpoint does with it and a run's
// arguments. Its rules were read in the releases' sources and hold for what they did with the pairs
// in tests/can_load.
namespace tools::inspect {

// Source trees whose rules are known, oldest first.
enum class MegatronTree : uint8_t {
  Core0153,
  Core0161,
  Core0171,
  April2026,
  Core0182,
  Core0190,
  August2026
};
inline constexpr size_t kTrees = 7;
// As --target-megatron says it: "0.15", "0.16", "0.17", "0.18-dev", "0.18", "0.19", "0.20-dev".
std::string_view name(MegatronTree tree);
std::optional<MegatronTree> tree_named(std::string_view text);
std::vector<std::string> tree_names();

// What a checkpoint says: arguments by Megatron's names, with "optimizer" as the command line has
// it, and how state is filed.
struct ResumeFacts {
  nlohmann::json args;  // an object
  bool is_dist = false, is_layer_wise = false, is_zero1 = false;
  bool has_buckets = false, has_ranges = false, has_gathered = false;  // filings
  bool is_fully_sharded = false;                                       // saved by a run under FSDP
  bool has_float32_params = false;  // among 16-bit ones, and stepped
  bool is_float32 = false;          // all weights are
  bool has_optimizer = true, has_random_states = true;
  bool distributes_adam = true;  // of a LayerWise chain: AdamW beside it is filed as ZeRO-1
  bool has_common_file = true;
  int64_t iteration = 0;
  bool is_release = false;             // its folder is called so: an iteration without optimizer
  bool has_backend_file = true;        // metadata.json
  bool has_rng_of_data_ranks = false;  // as 0.16 files it where experts are split
  std::set<std::string> globals;       // classes and functions that its pickles name
  std::set<std::string> rank_folders;  // of torch: mp_rank_00, ...
  std::string mend;                    // of a fault of its writer that is known; empty: none
};
// Throws Unsupported for what has no arguments of a run.
ResumeFacts resume_facts(const optim::OpenedTraining& checkpoint, const optim::FiledState& state);

struct ResumeRun {
  MegatronTree tree = MegatronTree::April2026;
  nlohmann::json changes = nlohmann::json::object();  // arguments that are others; null: not given
  std::string missing = {};                           // what is not told of it; empty: nothing
  std::string unrecognized = {};  // an option that other releases have; empty: none
};

// Sizes by the arguments that say them.
struct SizeArgument {
  const char* name;
  std::optional<uint32_t> optim::SizeChange::*size;
};
inline constexpr SizeArgument kSizeArguments[] = {
    {"tensor_model_parallel_size", &optim::SizeChange::tensor_parallel},
    {"pipeline_model_parallel_size", &optim::SizeChange::pipeline_parallel},
    {"num_virtual_stages_per_pipeline_rank", &optim::SizeChange::virtual_pipeline_parallel},
    {"context_parallel_size", &optim::SizeChange::context_parallel},
    {"expert_model_parallel_size", &optim::SizeChange::expert_parallel},
    {"expert_tensor_parallel_size", &optim::SizeChange::expert_tensor_parallel},
    {"world_size", &optim::SizeChange::world_size}};

// Throws InvalidArgument for sizes that the model cannot have. Nothing where the run is not of
// this model, or not told.
std::optional<optim::RunGrid> grid_of_run(const optim::FiledState& state, const ResumeRun& run);

enum class ResumeVerdict : uint8_t {
  Continues,        // all state as it is stored; the next step is the same
  NextStepDiffers,  // loads what it is told to load; `reasons`
  LoadsWrong,       // raises nothing, and state is not what is stored; `reasons`
  Refuses,          // `message`, raised at `place`
  NotKnown,         // `message`: which fact is missing
};
std::string_view name(ResumeVerdict verdict);  // "continues", "next_step_differs", ...

struct ResumeReason {
  // What is other: "wrong" state, "state" that it is told not to load, "step" the optimizer's
  // arithmetic, "gradients" what it is given, "random_numbers".
  std::string_view of;
  std::string text;
};

struct ResumeCertificate {
  ResumeVerdict verdict = ResumeVerdict::Continues;
  std::string message = {};
  std::string place = {};  // "megatron/training/checkpointing.py:1684"
  std::vector<ResumeReason> reasons = {};
  std::vector<std::string> notes = {};  // arguments that the checkpoint overrules
  std::string mend = {};                // what to do
  bool loads_optimizer = true;
  std::vector<optim::RankReads> ranks = {};  // of a load that raises nothing, where it is known
};

// Pure. The first rule that refuses decides, in the order in which Megatron asks.
ResumeCertificate certify(const ResumeFacts& checkpoint, const ResumeRun& run);

// Of a root without latest_checkpointed_iteration.txt.
ResumeCertificate certificate_without_tracker();

}  // namespace tools::inspect
