#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <ckpt/execute.h>
#include <ckpt/limits.h>
#include <training/named_iteration.h>
#include <training/summary.h>

// The iterations of a checkpoint root, and how its state went from one to the next.
namespace optim {

// L2 norms of a part of the model; NaN where an element is NaN or infinite.
struct StateNorms {
  std::optional<double> weights = {};
  std::map<std::string, double> states = {};  // by name: "exp_avg", "fp32_param", ...
  uint64_t nonfinite_count = 0;               // NaN and infinite elements, of both
};

struct ModuleNorms {
  std::string module;  // "decoder.layers.0", "embedding.word_embeddings"
  StateNorms norms;
};

struct LineageRow {
  NamedIteration named;
  std::optional<Health> health = {};  // none: it could not be opened
  bool is_complete = false;
  bool is_renamed = false;      // its state is of another iteration, as verify() finds; not read
  bool is_unsupported = false;  // not opened: a kind of checkpoint that is not read as a whole
  std::string problem = {};     // the first thing that is wrong with it; empty: nothing was found
  std::optional<uint64_t> file_bytes = {};
  std::optional<int64_t> step = {};
  std::vector<double> learning_rates = {};  // of its groups, each once
  std::optional<double> loss_scale = {};
  std::optional<StateNorms> norms = {};   // of what is complete, where payload was to be read
  std::vector<ModuleNorms> modules = {};  // in the order of the model
};

enum class LineageEventKind : uint8_t {
  NotFinite,  // a tensor has NaN or infinite elements
  Stopped,    // a master, or a weight without one, is as an iteration before, its moments are not 0
  ZeroMoment,  // a moment is all zero after a step
};
std::string_view name(LineageEventKind kind);  // "not_finite", ...

// The first iteration at which something is true of a tensor, in those that were read.
struct LineageEvent {
  LineageEventKind kind = LineageEventKind::NotFinite;
  size_t row = 0;  // of Lineage::rows
  std::string key = {};
  std::optional<size_t> since = {};  // Stopped: the row before
  uint64_t count = 0;                // NotFinite: of elements
};

struct Lineage {
  std::vector<LineageRow> rows;             // by naming, the oldest first
  std::vector<LineageEvent> events;         // by row and kind, in the order of the model
  std::vector<std::string> elsewhere = {};  // folders without a row: links out of the root
};

struct LineageOptions {
  bool quick = false;  // metadata alone: no norms, no events
  ckpt::Limits limits;
  ckpt::ExecuteOptions execution;
};

// Folders as Megatron, Hugging Face's Trainer, Accelerate, torchtitan, verl and DeepSpeed name
// them. What is wrong with an iteration is told in its row. Throws NotFound where there is no such
// folder, or none of an iteration in it.
Lineage trace_lineage(const std::filesystem::path& root, const LineageOptions& options = {});

}  // namespace optim
