// The iterations of a root, one after the other: of two neighbours both are open, so that what did
// not move can be told by its bytes.
#include <training/lineage.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <set>
#include <utility>

#include <ckpt/error.h>
#include <ckpt/statistics.h>
#include <ckpt/tensor_stream.h>
#include <training/value_at.h>

#include "args/common_state.h"
#include "args/iteration_names.h"
#include "grid/build_state.h"
#include "report/logical_names.h"
#include "state/read_range.h"
#include "state/remainders.h"
#include "state/state_values.h"
#include "verify/checks.h"

namespace optim {
namespace {

// Of tensors whose statistics are held at a time: each has a histogram.
constexpr size_t kBatch = 4096;

// A tensor of one iteration, and what its elements are like.
struct Seen {
  const OpenedTraining* checkpoint;  // that has it, or a file beside it
  TensorRef entry;
  std::string name;   // of the parameter; empty where its file only numbers it
  std::string state;  // empty: the weight
  uint64_t element_count = 0, zero_count = 0, nonfinite_count = 0;
  ckpt::Statistics::Moments moments = {};
};

bool is_like(const Seen& a, const Seen& b) {
  const auto facts = [](const Seen& seen) {
    const auto& of = seen.moments;
    return std::tuple(seen.element_count, seen.zero_count, seen.nonfinite_count, of.min, of.max,
                      of.mean, of.std);
  };
  return a.entry->dtype == b.entry->dtype && a.entry->shape == b.entry->shape &&
         facts(a) == facts(b);
}

// What the low half of a master has that its weight lacks.
bool is_remainder(const Seen& seen) { return seen.state == kRemainderState; }

bool is_master(const Seen& seen) {
  return seen.state == kMasterState || seen.state == kDistributedMaster || is_remainder(seen);
}

bool is_moment(const Seen& seen) { return !seen.state.empty() && !is_master(seen); }

bool is_zero(const Seen& seen) { return seen.zero_count == seen.element_count; }

// A complete iteration whose payload was read.
struct Snapshot {
  std::shared_ptr<const OpenedTraining> checkpoint;
  decltype(GroupReport::beside) beside;
  size_t row = 0;
  std::optional<int64_t> step;
  std::vector<Seen> tensors = {};  // in the order of the model
  std::map<std::string, size_t> by_key = {};

  const Seen* find(const std::string& key) const {
    const auto found = by_key.find(key);
    return found == by_key.end() ? nullptr : &tensors[found->second];
  }
  // Of parameters with a tensor that is so.
  std::set<std::string> names_with(bool (*is_so)(const Seen& seen)) const {
    std::set<std::string> names;
    for (const Seen& seen : tensors) {
      if (is_so(seen)) names.insert(seen.name);
    }
    return names;
  }
  void index() {
    for (size_t i = 0; i < tensors.size(); ++i) by_key.emplace(tensors[i].entry->key, i);
  }
};

std::vector<Seen> named_tensors(const OpenedTraining& checkpoint) {
  const LogicalNames names(checkpoint);
  std::vector<Seen> tensors;
  for (const LogicalTensor& tensor : names.tensors()) {
    TensorRef entry = entry_of(tensor);
    const bool is_count = tensor.state == "step" || tensor.state == "common_step";
    if (entry == nullptr || is_count || repeats_much(*entry)) continue;
    Seen seen{&checkpoint, std::move(entry), tensor.name, tensor.state};
    if (holds_parameters(seen.entry->dtype) || is_master(seen)) tensors.push_back(std::move(seen));
  }
  return tensors;
}

// The states in an optimizer's own file, under FILE:KEY.
void add_states_of(const OpenedTraining& file, const std::string& name, std::vector<Seen>& all) {
  for (const LogicalTensor& tensor : list_contents(file).tensors) {
    const bool is_moment = tensor.role == KeyKind::OptimizerState && tensor.value != nullptr &&
                           tensor.state != "step" && holds_parameters(tensor.dtype);
    if (!is_moment || repeats_much(*tensor.value)) continue;
    auto entry = std::make_shared<ckpt::TensorEntry>(*tensor.value);
    entry->key = name + ":" + entry->key;
    all.push_back({&file, std::move(entry), tensor.name, tensor.state});
  }
}

void take_statistics(Seen& seen, const ckpt::Statistics& statistics) {
  seen.element_count = statistics.element_count;
  seen.zero_count = statistics.zero_count;
  seen.nonfinite_count = statistics.nan_count + statistics.inf_count;
  const bool has_finite = statistics.moments && !std::isnan(statistics.moments->norm);
  if (has_finite) seen.moments = *statistics.moments;
}

void read_statistics(Snapshot& snapshot, const ckpt::ExecuteOptions& execution) {
  std::span<Seen> all(snapshot.tensors);
  for (std::span<Seen> batch; !all.empty(); all = all.subspan(batch.size())) {
    const OpenedTraining& file = *all[0].checkpoint;
    const auto end =
        std::ranges::find_if(all, [&](const Seen& seen) { return seen.checkpoint != &file; });
    batch = all.first(std::min(kBatch, static_cast<size_t>(end - all.begin())));
    std::vector<ckpt::TensorEntry> entries;
    for (const Seen& seen : batch) entries.push_back(*seen.entry);
    const std::vector<ckpt::Statistics> statistics =
        ckpt::make_statistics(entries, file, execution, {0});
    for (size_t i = 0; i < batch.size(); ++i) take_statistics(batch[i], statistics[i]);
  }
}

// --- norms ---

void add(const Seen& seen, StateNorms& squares) {
  const bool is_finite = seen.nonfinite_count == 0;
  const double square = is_finite ? seen.moments.norm * seen.moments.norm : std::nan("");
  if (seen.state.empty()) {
    squares.weights = squares.weights.value_or(0) + square;
  } else {
    squares.states[seen.state] += square;
  }
  squares.nonfinite_count += seen.nonfinite_count;
}

StateNorms rooted(StateNorms squares) {
  if (squares.weights) squares.weights = std::sqrt(*squares.weights);
  for (auto& [state, square] : squares.states) square = std::sqrt(square);
  return squares;
}

void add_norms(const Snapshot& snapshot, LineageRow& row) {
  StateNorms all;
  std::map<std::string, size_t> places;
  for (const Seen& seen : snapshot.tensors) {
    if (is_remainder(seen)) continue;
    const std::string module = seen.name.empty() ? "optimizer" : module_of_key(seen.name);
    const auto [place, is_new] = places.emplace(module, row.modules.size());
    if (is_new) row.modules.push_back({module, {}});
    add(seen, row.modules[place->second].norms);
    add(seen, all);
  }
  for (ModuleNorms& module : row.modules) module.norms = rooted(module.norms);
  row.norms = rooted(all);
}

// --- the scale of Megatron's grad scaler, which fp16 training keeps beside its optimizer ---

bool is_one_number(const ckpt::TensorEntry& tensor) {
  return tensor.dtype == ckpt::DType::Float32 && ckpt::element_count(tensor.shape) == 1;
}

// Of `torch` files, and of common.pt.
std::optional<ckpt::TensorEntry> listed_scale(const OpenedTraining& checkpoint) {
  const auto& tensors = checkpoint.catalog().tensors;
  const auto found = std::ranges::find_if(tensors, [](const ckpt::TensorEntry& tensor) {
    return tensor.key.ends_with("/grad_scaler/scale") && is_one_number(tensor);
  });
  return found == tensors.end() ? std::nullopt : std::optional(*found);
}

// Of the common state that lies in the store.
std::optional<ckpt::TensorEntry> stored_scale(const OpenedTraining& checkpoint) {
  const CommonState* const common = checkpoint.common_state();
  if (!common || common->key.empty()) return std::nullopt;
  const auto value = value_at(common->document->tree.root(), "/optimizer/grad_scaler/scale");
  if (!value || !ckpt::as_tensor(*value)) return std::nullopt;
  const std::vector<ckpt::TensorEntry> tensors =
      tensors_of_object(*common->document, *value, common->key);
  const bool is_there = tensors.size() == 1 && is_one_number(tensors[0]);
  return is_there ? std::optional(tensors[0]) : std::nullopt;
}

std::optional<double> loss_scale_of(const OpenedTraining& checkpoint) {
  try {
    auto tensor = listed_scale(checkpoint);
    if (!tensor) tensor = stored_scale(checkpoint);
    if (!tensor) return std::nullopt;
    return static_cast<double>(checkpoint.read_as<float>(*tensor).front());
  } catch (const ckpt::Error&) {
    return std::nullopt;  // what is wrong with it is the status's to say
  }
}

// --- one iteration ---

std::string problem_of(const Status& status) {
  if (!status.missing.empty()) return ckpt::escaped(status.missing.front()) + " is missing";
  return status.problem;
}

// Of which other iteration the state is, in words; empty where its folder's name may be right.
std::string renamed_from(const OpenedTraining& checkpoint, const Summary& summary,
                         const NamedIteration& named) {
  const std::vector<ckpt::Finding> others = find_other_iterations(checkpoint);
  if (!others.empty()) return others.front().problem;
  const TrainerFacts& trainer = summary.trainer;
  if (!named.counts_steps || !trainer.step || *trainer.step == named.folder.iteration) return {};
  const std::string source = trainer.source.empty() ? "" : " (" + trainer.source + ")";
  return "the state is from step " + std::to_string(*trainer.step) + source +
         ", but the folder's name says " + std::to_string(named.folder.iteration);
}

// Returns the files beside the checkpoint that have its optimizer.
decltype(GroupReport::beside) add_summary(const OpenedTraining& checkpoint, LineageRow& row) {
  Summary summary = summarize(checkpoint);
  row.health = summary.status.health;
  row.problem = problem_of(summary.status);
  row.is_complete = row.health == Health::Complete || row.health == Health::FilesPresent;
  const std::string renamed = renamed_from(checkpoint, summary, row.named);
  const bool is_all = row.health == Health::Damaged && summary.status.problem_count == 1;
  if (!renamed.empty() && (row.is_complete || is_all)) {
    row.is_renamed = true;
    row.is_complete = false;
    row.problem = renamed;
  }
  row.file_bytes = summary.files.count_bytes;
  for (const ckpt::FileBeside& file : summary.beside) *row.file_bytes += file.count_bytes;
  row.step = summary.step ? summary.step : summary.trainer.step;
  for (const OptimizerFacts& optimizer : summary.optimizers) {
    for (const double rate : optimizer.learning_rates) {
      const bool is_known = std::ranges::find(row.learning_rates, rate) != row.learning_rates.end();
      if (!is_known) row.learning_rates.push_back(rate);
    }
  }
  row.loss_scale = loss_scale_of(checkpoint);
  return std::move(summary.groups.beside);
}

class Tracer {
 public:
  explicit Tracer(const LineageOptions& options) : options_(options) {}

  void add(NamedIteration named) {
    ckpt::Limits limits = options_.limits;
    limits.allow_missing_data = true;  // a row says what is missing
    const bool is_other =
        !lineage_.rows.empty() && lineage_.rows.back().named.writer != named.writer;
    if (is_other) before_.reset();
    LineageRow& row = lineage_.rows.emplace_back(LineageRow{.named = std::move(named)});
    try {
      auto checkpoint =
          std::make_shared<const OpenedTraining>(open_checkpoint(path_of(row.named), {{}, limits}));
      auto beside = add_summary(*checkpoint, row);
      if (row.is_complete && !options_.quick) read(std::move(checkpoint), std::move(beside));
    } catch (const ckpt::Error& error) {
      if (options_.execution.stop.stop_requested()) throw;
      row.problem = error.what();
      row.is_unsupported = error.code() == ckpt::ErrorCode::Unsupported;
      row.is_complete = false;
      row.health.reset();
    }
  }

  Lineage finish() { return std::move(lineage_); }

 private:
  void read(std::shared_ptr<const OpenedTraining> checkpoint,
            decltype(GroupReport::beside) beside) {
    LineageRow& row = lineage_.rows.back();
    Snapshot now{std::move(checkpoint), std::move(beside), lineage_.rows.size() - 1, row.step};
    now.tensors = named_tensors(*now.checkpoint);
    for (const auto& [name, file] : now.beside) add_states_of(*file, name, now.tensors);
    read_statistics(now, options_.execution);
    now.index();
    add_norms(now, row);
    find_nonfinite(now);
    find_zero_moments(now);
    find_stopped(now);
    before_ = std::move(now);
  }

  void report(LineageEvent event) {
    if (reported_.insert({event.kind, event.key}).second) lineage_.events.push_back(event);
  }

  void find_nonfinite(const Snapshot& now) {
    for (const Seen& seen : now.tensors) {
      if (seen.nonfinite_count == 0) continue;
      report({LineageEventKind::NotFinite, now.row, seen.entry->key, {}, seen.nonfinite_count});
    }
  }

  void find_zero_moments(const Snapshot& now) {
    if (now.step.value_or(0) == 0) return;
    for (const Seen& seen : now.tensors) {
      if (!is_moment(seen) || seen.element_count == 0 || !is_zero(seen)) continue;
      report({LineageEventKind::ZeroMoment, now.row, seen.entry->key});
    }
  }

  void find_stopped(const Snapshot& now) {
    if (!before_ || now.step == before_->step) return;  // saved twice
    // Those that the optimizer has something to move by.
    const auto moving =
        now.names_with([](const Seen& seen) { return is_moment(seen) && !is_zero(seen); });
    // A 16-bit weight may stand still while its master moves; a remainder of a master stands still
    // with its weight.
    const auto mastered = now.names_with(is_master);
    for (const Seen& seen : now.tensors) {
      const bool is_watched =
          is_master(seen) || (seen.state.empty() && !mastered.contains(seen.name));
      if (!is_watched || !moving.contains(seen.name) || seen.element_count == 0) continue;
      if (!stands_still(seen)) continue;
      const Seen* const weight = now.find(seen.name);
      if (is_remainder(seen) && (weight == nullptr || !stands_still(*weight))) continue;
      report({LineageEventKind::Stopped, now.row, seen.entry->key, before_->row});
    }
  }

  // Statistics tell most of what moved without reading it again.
  bool stands_still(const Seen& seen) const {
    const Seen* const other = before_->find(seen.entry->key);
    return other != nullptr && is_like(seen, *other) &&
           ckpt::same_bytes(*seen.entry, *seen.checkpoint, *other->entry, *other->checkpoint);
  }

  const LineageOptions& options_;
  Lineage lineage_;
  std::optional<Snapshot> before_;
  std::set<std::pair<LineageEventKind, std::string>> reported_;
};

}  // namespace

std::string_view name(LineageEventKind kind) {
  static constexpr std::string_view kNames[] = {"not_finite", "stopped", "zero_moment"};
  return kNames[static_cast<size_t>(kind)];
}

Lineage trace_lineage(const std::filesystem::path& root, const LineageOptions& options) {
  NamedIterations found = find_iterations(root, options.limits);
  if (found.folders.empty() && !found.elsewhere.empty()) {
    throw ckpt::Error(ckpt::ErrorCode::NotFound, {.file = root.string(), .key = {}},
                      "its iteration folders are links that lead out of it",
                      "--follow-links lists them");
  }
  if (found.folders.empty()) {
    throw ckpt::Error(ckpt::ErrorCode::NotFound, {.file = root.string(), .key = {}},
                      "has no iteration folders; expected folders such as " + iteration_names(),
                      "give the folder that contains them; for one checkpoint: ckpt-inspect PATH");
  }
  Tracer tracer(options);
  for (NamedIteration& named : found.folders) tracer.add(std::move(named));
  Lineage lineage = tracer.finish();
  lineage.elsewhere = std::move(found.elsewhere);
  return lineage;
}

}  // namespace optim
