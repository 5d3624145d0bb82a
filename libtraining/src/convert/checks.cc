#include "convert/checks.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <set>
#include <stdexcept>
#include <string_view>
#include <vector>

#include <ckpt/statistics.h>
#include <ckpt/tensor_stream.h>
#include <training/conservation.h>
#include <training/known_arguments.h>
#include <training/logical_inventory.h>
#include <training/megatron_folders.h>
#include <training/size_change.h>
#include <training/verify.h>

#include "args/common_state.h"
#include "grid/placement.h"
#include "grid/whole_states.h"
#include "huggingface/export.h"
#include "issues/issue.h"
#include "layouts/job/layer_wise_target.h"
#include "state/not_checked.h"
#include "state/passing_proof.h"
#include "state/remainders.h"
#include "state/state_values.h"
#include "state/words.h"
#include "verify/checks.h"

namespace optim {
namespace {

// Options that would have no effect are refused.
[[noreturn]] void refuse(const char* what, const std::string& options) {
  throw Error(ErrorCode::InvalidArgument, {},
              std::string(what) + " has no optimizer state whose form could be chosen",
              "leave out --optimizer-sharding, " + options +
                  "--bucket-size, --pad-buckets and --state-dtype");
}

using Others = std::vector<std::pair<std::string, NodeId>>;

// What filed_as() compares without reading a byte, compared by bytes.
void require_equal(const Others& a, const Others& b, const Document& document,
                   const OpenedTraining& source) {
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    const auto tensors_of = [&](const auto& item) {
      return tensors_of_object(document, document.tree.value(item.second), item.first);
    };
    const auto one = tensors_of(a[i]), other = tensors_of(b[i]);
    const bool is_equal =
        std::ranges::equal(one, other, [&](const TensorEntry& x, const TensorEntry& y) {
          return ckpt::same_bytes(x, source, y, source);
        });
    if (is_equal) continue;
    throw Error(ErrorCode::Corrupt, {.file = {}, .key = a[i].first},
                "the optimizers of dense parameters and of experts, which become one, hold "
                "different values of it",
                "with --ep above 1 experts keep an optimizer of their own");
  }
}

// Names modules that Megatron lacks; rows of --model-rules say what they are.
constexpr std::string_view kOwnModules = "spec";

RunGrid grid_of(const FiledState& state, const ConvertOptions& options) {
  return options.sizes.empty() ? state.grid : target_grid(state, options.sizes);
}

// Experts in one tensor on each rank (moe_single_grouped_weight) are apart in a store; only an
// optimizer takes them for one parameter.
bool are_experts_apart(const FiledState& state, std::string_view argument) {
  return argument.starts_with("moe_single_grouped_") && state.chain.empty() &&
         state.filed.container == ckpt::Format::TorchDist;
}

bool is_laid_out_anew(const FiledState& state, const ConvertOptions& options) {
  if (options.base.format.value_or(state.filed.container) != state.filed.container) return true;
  return grid_of(state, options) != state.grid;
}

// Whether it asks what modules are made of: not where the keys of a store hold whole tensors and
// the ranks that share a replica stay as they are.
bool asks_for_modules(const FiledState& state, const ConvertOptions& options) {
  const bool is_store =
      state.filed.container == ckpt::Format::TorchDist &&
      options.base.format.value_or(state.filed.container) == state.filed.container;
  if (!is_store || state.filed.has_store_hooks() || !options.form.empty()) return true;
  RunGrid grid = grid_of(state, options);
  grid.sizes.data_parallel = state.grid.sizes.data_parallel;
  grid.sizes.context_parallel = state.grid.sizes.context_parallel;
  grid.optimizer_instances = state.grid.optimizer_instances;
  return grid != state.grid;
}

std::string text_of_unknown(const std::vector<std::string>& names) {
  constexpr size_t kShown = 20;
  const std::string count = std::to_string(names.size());
  std::string text = names.size() == 1
                         ? "args has an argument that this version does not know ("
                         : "args has " + count + " arguments that this version does not know (";
  for (size_t i = 0; i < std::min(names.size(), kShown); ++i) text += (i ? ", " : "") + names[i];
  if (names.size() > kShown) text += ", and " + std::to_string(names.size() - kShown) + " more";
  return text + "): whether they change the layout is not known";
}

// The rows from `first` on, as a tensor of their own.
TensorEntry rows_from(const TensorEntry& tensor, uint64_t first) {
  TensorEntry rest = tensor;
  rest.shape[0] -= first;
  rest.chunks.clear();
  const uint64_t element_bytes = ckpt::bytes_per_element(tensor.dtype);
  for (Chunk chunk : tensor.chunks) {
    const uint64_t begin = chunk.box.offsets[0], end = begin + chunk.box.sizes[0];
    if (end <= first || chunk.view) continue;
    const uint64_t skipped = begin < first ? first - begin : 0;
    const uint64_t row = ckpt::element_count(chunk.box.sizes) / chunk.box.sizes[0];
    chunk.payload_offset_bytes += skipped * row * element_bytes;
    chunk.box.offsets[0] = begin + skipped - first;
    chunk.box.sizes[0] -= skipped;
    rest.chunks.push_back(std::move(chunk));
  }
  return rest;
}

// The largest value in the rows that are left out.
double largest_in(const TensorEntry& tensor, const ckpt::PayloadSource& source, uint64_t first) {
  if (tensor.shape.empty() || tensor.shape[0] <= first) return 0;
  const auto moments = ckpt::make_statistics(rows_from(tensor, first), source, {0}).moments;
  return moments ? std::max(std::abs(moments->min), std::abs(moments->max)) : 0;
}

OpenedTraining open_written(const ckpt::WrittenResult& written,
                            const ckpt::ConvertOptions& options) {
  return OpenedTraining(
      ckpt::open_result(written, {std::nullopt, options.limits, &kMegatronFolders}));
}

// The checks of `ckpt-inspect verify`.
void refuse_damage(const ckpt::WrittenResult& written, const ckpt::ConvertOptions& options) {
  if (!options.verify) return;
  VerifyOptions checks;
  checks.limits = options.limits;
  checks.execution = named_steps(options, "verifying");
  const VerifyReport report = written.source ? verify(open_written(written, options), checks)
                                             : verify(written.path, checks);
  ckpt::refuse_damage(report.findings);
}

ckpt::ResultCheck content_check(const std::vector<ckpt::NotCarried>& not_carried,
                                const ckpt::ConvertOptions& options) {
  return {not_carried, options.verify, named_steps(options, "comparing")};
}

FiledState read_state(const OpenedTraining& written, const ReadOptions& options) {
  try {
    return read_training_state(written, options);
  } catch (const Error& error) {
    ckpt::refuse_unreadable(error);
  }
}

// Each element of each state, and no other.
void require_counts(const std::vector<StateCount>& wanted, const FiledState& found) {
  const std::vector<StateCount> counts = count_states(found);
  for (const StateCount& count : wanted) {
    if (std::ranges::find(counts, count) != counts.end()) continue;
    throw std::logic_error("the result does not hold " + std::to_string(count.element_count) +
                           " elements of " + ckpt::escaped(count.state));
  }
  if (counts.size() != wanted.size()) throw std::logic_error("the result holds other states");
}

// The first rows of a tensor.
void cut_rows(TensorEntry& tensor, uint64_t rows) {
  if (tensor.shape.empty() || tensor.shape[0] <= rows) return;
  tensor.shape[0] = rows;
  std::erase_if(tensor.chunks, [&](const Chunk& chunk) { return chunk.box.offsets[0] >= rows; });
  for (Chunk& chunk : tensor.chunks) {
    chunk.box.sizes[0] = std::min(chunk.box.sizes[0], rows - chunk.box.offsets[0]);
  }
}

struct Compared {
  ckpt::Inventory &wanted, &found;
};

void cut_to_common_rows(const FiledState& state, uint64_t rows, const Compared& both) {
  std::set<std::string> keys;
  for (const TrainedParam& param : state.params) {
    if (!is_vocabulary(state, param.info.name)) continue;
    keys.insert(param.weight->key);
    if (param.master) keys.insert(param.master->key);
    for (const StateTensor& kept : param.states) keys.insert(kept.value->key);
  }
  uint64_t common = rows;
  for (const TensorEntry& tensor : both.wanted.tensors) {
    if (keys.contains(tensor.key)) common = std::min(common, tensor.shape[0]);
  }
  for (ckpt::Inventory* const inventory : {&both.wanted, &both.found}) {
    for (TensorEntry& tensor : inventory->tensors) {
      if (keys.contains(tensor.key)) cut_rows(tensor, common);
    }
  }
}

ckpt::Inventory wanted_tensors(const FiledState& state, const ckpt::KeyRules& key_rules) {
  const ckpt::KeyRules rules = rules_for(state, key_rules);
  ckpt::Inventory inventory;
  for (const TensorRef& tensor : tensors_of(state)) {
    const auto key = key_in_safetensors(tensor->key, rules);
    if (!key) continue;
    inventory.tensors.push_back(*tensor);
    inventory.tensors.back().key = *key;
  }
  return inventory;
}

}  // namespace

void require_form_of_optimizer(const ConvertOptions& options, const char* what) {
  if (!options.form.empty()) refuse(what, "--target-megatron, ");
}

void require_layout_alone(const ConvertOptions& options) {
  FilingChange form = options.form;
  form.release = nullptr;
  if (!form.empty()) refuse("a model without its optimizer", "");
}

void require_equal_in_merged(const TrainingState& state, const TrainingState& filed,
                             const OpenedTraining& source) {
  std::map<uint32_t, const ChainedOptimizerState*> first;  // by optimizer of `filed`
  const ChainedOptimizerState* compared = nullptr;
  for (size_t i = 0; i < state.params.size(); ++i) {
    if (!state.params[i].info.requires_grad) continue;
    const ChainedOptimizerState& of = state.chain.at(state.params[i].optimizer);
    const auto [known, is_first] = first.emplace(filed.params[i].optimizer, &of);
    if (is_first || known->second == &of || compared == &of) continue;
    require_equal(known->second->others, of.others, state.common, source);
    require_equal(known->second->inner_others, of.inner_others, state.common, source);
    compared = &of;
  }
}

void correct_vocabulary(const ConvertOptions& options, TrainingState& state) {
  const auto given = options.sizes.vocabulary, stated = state.facts.vocabulary;
  if (given && options.hugging_face) return state_vocabulary(*given, state);
  const bool is_larger = given && stated && *given > *stated;  // else target_vocabulary() refuses
  if (!is_larger || *given > INT64_MAX || !contradicted_vocabulary(state)) return;
  ValueTree& tree = state.common.tree;
  tree.put(state.args().id(), "vocab_size", tree.integer(static_cast<int64_t>(*given)));
  state.facts.vocabulary = given;
  state.not_carried.push_back({.what = "args.vocab_size",
                               .reason = std::to_string(*stated) + " -> " + std::to_string(*given) +
                                         ", as --vocab-size says: the stored rows contradict it",
                               .is_changed = true});
}

std::vector<std::string> check_arguments(const FiledState& state, const OpenedTraining& source,
                                         const ConvertOptions& options) {
  if (options.rank_files || options.shards)
    refuse_kind(source, "a state of FSDP, for files of its ranks");
  if (!is_laid_out_anew(state, options)) return {};
  const ArgsOf origin = state.config.empty() ? ArgsOf::MegatronLm : ArgsOf::Bridge;
  for (const RefusedArgument& refused : refused_arguments(state.args(), origin)) {
    const bool is_of_modules = refused.name == kOwnModules;
    if (is_of_modules && (options.rules || !asks_for_modules(state, options))) continue;
    if (are_experts_apart(state, refused.name)) continue;
    throw Error(ErrorCode::Unsupported,
                {.file = source.shown_path(), .key = "args." + refused.name}, refused.problem,
                refused.instead);
  }
  const std::vector<std::string> unknown = unknown_arguments(state.args(), origin);
  if (unknown.empty()) return {};
  const std::string text = text_of_unknown(unknown);
  if (options.base.strict) {
    throw Error(ErrorCode::Unsupported, {.file = source.shown_path(), .key = {}}, text,
                "without --strict the conversion goes on as if they did not, and lists them");
  }
  return {text};
}

std::vector<std::string> other_splits(const ModelRules& rules) {
  std::vector<std::string> told;
  const ModelRules& built_in = ModelRules::built_in();
  for (const ModelRule& row : rules.rows()) {
    const uint32_t* const same = built_in.row_named(row.part, row.name);
    if (same == nullptr || built_in.rows()[*same].split == row.split) continue;
    told.push_back(
        "'" + ckpt::escaped(row.name) + "' is split as '" + std::string(name(row.split)) +
        "', as --model-rules says; Megatron's own module splits it as '" +
        std::string(name(built_in.rows()[*same].split)) + "', and no proof finds a wrong split");
  }
  return told;
}

void refuse_contradicted(const FiledState& state, const OpenedTraining& source, bool has_rules) {
  using Decides = ContradictedArg::Decides;
  const auto found = contradicted_arg(state, has_rules ? Decides::Shapes : Decides::Cut);
  if (!found) return;
  throw Error(ErrorCode::Corrupt, {.file = source.shown_path(), .key = "args." + found->name},
              found->problem,
              has_rules ? "a row of --model-rules may have the wrong 'split'"
                        : "names and places of parameters follow from it; ckpt-inspect "
                          "verify SOURCE says more");
}

void tell_cut_rows(const TrainingState& state, const ckpt::PayloadSource& source, uint64_t rows,
                   ckpt::Target& target) {
  for (const TrainedParam& param : state.params) {
    if (rows == 0 || !is_vocabulary(state, param.info.name)) continue;
    if (param.weight->shape[0] <= rows) continue;
    double largest = largest_in(*param.weight, source, rows);
    if (param.master) largest = std::max(largest, largest_in(*param.master, source, rows));
    for (const StateTensor& kept : param.states) {
      largest = std::max(largest, largest_in(*kept.value, source, rows));
    }
    for (ckpt::NotCarried& loss : target.not_carried) {
      if (loss.what != param.info.name || !loss.is_changed) continue;
      char text[64];
      std::snprintf(text, sizeof text, "; the largest value in them is %.9g", largest);
      loss.reason += text;
    }
  }
}

std::string naming_of(const FiledState& state) {
  if (state.filed.is_zero1()) return "the order of the flat buffers";
  return state.filed.only() == &kWhole ? "the order of the model" : "the ping-pong deal";
}

std::optional<std::string> why_not_proven(const FiledState& state, const OpenedTraining& source) {
  if (state.chain.empty()) return std::nullopt;
  if (has_remainders(state)) return kWhyRemaindersProveNothing;
  return why_weights_may_differ(source);
}

std::vector<std::string> states_not_proven(const FiledState& state) {
  LeftOut unexplained("parameter");
  for (const uint32_t i : find_stateless(state).unexplained) {
    unexplained.add(state.params[i].info.name, why_unexplained(state, state.params[i]));
  }
  std::vector<NotProven> found;
  unexplained.put_into(found);
  std::vector<std::string> lines;
  for (const NotProven& each : found) lines.push_back(each.what + ": " + each.reason);
  for (const std::string& counts : uneven_counts(state)) {
    lines.push_back("that every element is there: " + counts);
  }
  return lines;
}

void check_unproven(const FiledState& state, const OpenedTraining& source,
                    const std::stop_token& stop) {
  for (const Issue* const issue : known_issues()) {
    if (issue->refuse_unproven != nullptr) issue->refuse_unproven(state, source);
  }
  require_remainders(state, source, stop);
  if (are_names_computed(state)) require_near_masters(state, source, stop);
}

// What conversions do before they publish: the result is read as any later reader would.
ckpt::ExecuteOptions named_steps(const ckpt::ConvertOptions& options, std::string_view step) {
  ckpt::ExecuteOptions execute;
  execute.threads = options.execute.threads;
  execute.memory_bytes_max = options.execute.memory_bytes_max;
  execute.process_bytes_max = options.execute.process_bytes_max;
  execute.stop = options.execute.stop;
  if (!options.execute.on_progress) return execute;
  execute.on_progress = [report = options.execute.on_progress, step](ckpt::Progress progress) {
    progress.step = step;
    report(progress);
  };
  return execute;
}

CheckWritten plain_check(const OpenedTraining& source, ckpt::TargetSpec spec,
                         std::vector<ckpt::NotCarried> not_carried,
                         const ckpt::ConvertOptions& options) {
  return [&source, &options, spec = std::move(spec),
          not_carried = std::move(not_carried)](const ckpt::WrittenResult& written) {
    refuse_damage(written, options);
    return ckpt::check_plain_result(source, spec, written, content_check(not_carried, options));
  };
}

CheckWritten layer_wise_check(const FiledState& state, const ckpt::PayloadSource& payloads,
                              const WrittenAs& made, std::vector<ckpt::NotCarried> not_carried,
                              const ckpt::ConvertOptions& options) {
  const ReadOptions reading{.rules = state.rules, .model_only = state.chain.empty()};
  return [&state, &payloads, &options, reading, made,
          not_carried = std::move(not_carried)](const ckpt::WrittenResult& written) {
    refuse_damage(written, options);
    const OpenedTraining result = open_written(written, options);
    ckpt::Inventory wanted = logical_inventory(state);
    const FiledState written_state = read_state(result, reading);
    require_counts(made.states, written_state);
    ckpt::Inventory found = logical_inventory(written_state);
    if (made.vocabulary_rows != 0) cut_to_common_rows(state, made.vocabulary_rows, {wanted, found});
    ckpt::require_same_content({wanted, payloads}, {found, result},
                               content_check(not_carried, options));
    return ckpt::count_carried(result);
  };
}

CheckWritten layer_wise_safetensors_check(const FiledState& state,
                                          const ckpt::PayloadSource& payloads,
                                          std::vector<ckpt::NotCarried> not_carried,
                                          const ckpt::ConvertOptions& options) {
  return [&state, &payloads, &options,
          not_carried = std::move(not_carried)](const ckpt::WrittenResult& written) {
    refuse_damage(written, options);
    const OpenedTraining result = open_written(written, options);
    const ckpt::Inventory wanted = wanted_tensors(state, options.keys);
    const ckpt::Inventory found{native_inventory(result).tensors, {}};
    ckpt::require_same_content({wanted, payloads}, {found, result},
                               content_check(not_carried, options));
    return ckpt::count_carried(result);
  };
}

CheckWritten export_check(std::vector<HuggingFaceExport::Tensor> tensors,
                          const ckpt::PayloadSource& payloads,
                          std::vector<ckpt::NotCarried> not_carried,
                          const ckpt::ConvertOptions& options) {
  return [&payloads, &options, tensors = std::move(tensors),
          not_carried = std::move(not_carried)](const ckpt::WrittenResult& written) {
    refuse_damage(written, options);
    const OpenedTraining result = open_written(written, options);
    const ckpt::Inventory wanted = inventory_of(tensors);
    ckpt::Inventory found{native_inventory(result).tensors, {}};
    name_axes(tensors, found);
    ckpt::require_same_content({wanted, payloads}, {found, result},
                               content_check(not_carried, options));
    return ckpt::count_carried(result);
  };
}

}  // namespace optim
