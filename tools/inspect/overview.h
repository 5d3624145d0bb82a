#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ckpt/checkpoint.h>
#include <ckpt/verify.h>
#include <optim/contents.h>
#include <optim/groups.h>
#include <optim/run_facts.h>

#include "inspect/modules.h"
#include "inspect/optimizer_facts.h"

namespace tools::inspect {

struct Total {
  uint64_t count = 0;
  uint64_t count_bytes = 0;
  void add(uint64_t bytes) {
    ++count;
    count_bytes += bytes;
  }
};

// Whether a checkpoint is whole, as far as its metadata tells.
enum class Health : uint8_t {
  Complete,      // a quick check finds nothing
  FilesPresent,  // every file is there; very many chunks, of which none was looked at
  Unsure,        // every file is there, and the state does not fit its parameters
  Incomplete,    // files are missing
  Damaged,       // the quick check finds damage
};
std::string_view name(Health health);  // "complete", "files_present", ...

struct Status {
  Health health = Health::Complete;
  std::vector<std::string> missing;  // files
  std::string problem;               // the first other one, with its place
  uint64_t problem_count = 0;
};

// What the page about a checkpoint says; empty where the checkpoint does not say.
struct Overview {
  std::string path;            // what was opened: the file, or the folder
  bool is_of_tracker = false;  // which names the iteration
  std::string format_variant;  // "megatron", "dcp", "hf"; empty: a plain file
  std::string sharding;        // of the optimizer, optim::optimizer_sharding()
  std::string format;          // in words
  std::vector<std::pair<std::string, std::string>> writers;  // what wrote it, and its version
  optim::RunFacts run;

  uint64_t stored_tensor_bytes = 0;
  std::map<std::string, Total> kinds;    // as stored
  std::map<std::string, Total> dtypes;   // as stored
  Total files;                           // that belong to it, as verify counts them
  std::optional<uint64_t> writer_count;  // ranks that wrote files of a torch_dist folder

  optim::Contents contents;  // each tensor once
  std::optional<uint64_t> parameter_count;
  ModuleTable modules;

  optim::GroupReport groups;
  std::vector<OptimizerFacts> optimizers;
  std::vector<std::string> states;  // names of the optimizer's state, where groups are not known
  std::optional<int64_t> step;

  Status status;
};

// Reads metadata alone, but for one number: the step count where a tensor holds it.
Overview make_overview(const ckpt::Checkpoint& checkpoint, bool is_of_tracker);

}  // namespace tools::inspect
