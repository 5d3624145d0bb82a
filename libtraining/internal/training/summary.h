#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <ckpt/files_beside.h>
#include <training/contents.h>
#include <training/groups.h>
#include <training/module_table.h>
#include <training/opened_training.h>
#include <training/optimizer_facts.h>
#include <training/run_facts.h>
#include <training/trainer_facts.h>

// A checkpoint at a glance: what `ckpt-inspect PATH` prints, as data.
namespace optim {

struct Total {
  uint64_t count = 0;
  uint64_t count_bytes = 0;
};

// Whether a checkpoint is whole, as far as its metadata tells.
enum class Health : uint8_t {
  Complete,      // a quick check finds nothing
  FilesPresent,  // every file is there; very many chunks, or some in a store: none was looked at
  Unsure,        // every file is there, and the state does not fit its parameters
  Incomplete,    // files are missing, or end early
  Damaged,       // the quick check finds damage
};
std::string_view name(Health health);  // "complete", "files_present", ...

struct Status {
  Health health = Health::Complete;
  std::vector<std::string> missing;     // files
  std::vector<std::string> incomplete;  // what is missing or ends early: "FILE is missing", ...
  std::string problem;                  // the first other one, with its place
  uint64_t problem_count = 0;
};

// Empty where the checkpoint does not say.
struct Summary {
  std::string path;      // what was opened: the file, or the folder
  std::string variant;   // "megatron", "dcp", "hf"; empty: a plain file
  std::string sharding;  // of the optimizer, optimizer_sharding()
  RunFacts run;
  TrainerFacts trainer;                    // of what is not Megatron's
  std::optional<ckpt::Value> dcp_version;  // of .metadata; points into the checkpoint

  uint64_t stored_tensor_bytes = 0;
  std::map<std::string, Total> kinds;    // as stored: name(KeyKind), "objects"
  std::map<std::string, Total> dtypes;   // as stored
  Total files;                           // that belong to it, as verify counts them
  std::vector<ckpt::FileBeside> beside;  // a plain checkpoint, in its folder
  std::optional<uint64_t> writer_count;  // ranks that wrote files of a torch_dist folder

  RankParts parts;                       // tensors of which the file holds one rank's part
  std::optional<FileOfSet> file_of_set;  // that the file is one of

  Contents contents;  // each tensor once
  std::optional<uint64_t> parameter_count;
  ModuleTable modules;

  GroupReport groups;
  std::vector<OptimizerFacts> optimizers;
  std::vector<std::string> states;  // names of the optimizer's state, where groups are not known
  std::optional<int64_t> step;

  Status status;
};

// Reads metadata alone, but for one number: the step count where a tensor holds it. Throws
// Error(IoFailure) where a file cannot be read; what is wrong with a checkpoint is its status.
Summary summarize(const OpenedTraining& checkpoint);

}  // namespace optim
