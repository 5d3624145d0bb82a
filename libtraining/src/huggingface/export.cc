// A training state's weights under the names of Hugging Face, by a table.
#include "huggingface/export.h"

#include <algorithm>
#include <map>
#include <set>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include <ckpt/folder.h>
#include <ckpt/printed.h>
#include <ckpt/safetensors_target.h>
#include <training/exported_model.h>
#include <training/layer_wise_checkpoint.h>
#include <training/size_change.h>

#include "grid/glu_rows.h"
#include "grid/placement.h"
#include "huggingface/config_args.h"
#include "huggingface/model_files.h"
#include "huggingface/name_table.h"
#include "huggingface/quantized.h"
#include "huggingface/table_walk.h"
#include "model/expression.h"
#include "model/model_rules.h"
#include "model/tensor_names.h"
#include "state/computed_tensors.h"
#include "state/not_checked.h"
#include "state/words.h"

namespace optim {
namespace {

using nlohmann::json;

constexpr const char* kOwnTable = "--names FILE takes a table of your own: docs/huggingface.md";

// The only table whose conditions hold.
NameTable choose_table(const json& args, const json& given) {
  std::vector<std::string> chosen;
  std::string unfit;
  for (const std::string& name : known_tables()) {
    const NameTable table = find_table(name);
    const NameScope scope(table, args, given);
    const auto* const unmet = first_unmet(table.needed, scope);
    if (unmet) unfit += (unfit.empty() ? "" : ", ") + name + " (" + unmet->first + ")";
    if (!unmet && !first_unmet(table.chosen_for, scope)) chosen.push_back(name);
  }
  if (chosen.size() == 1) return find_table(chosen[0]);
  if (!chosen.empty()) {
    throw Error(ErrorCode::Unsupported, {.file = {}, .key = "args"},
                "fit " + chosen[0] + " and " + chosen[1], "--names says which of them it is");
  }
  throw Error(ErrorCode::Unsupported, {.file = {}, .key = "args"},
              "fit none of the architectures that are known: " + unfit,
              "--names FAMILY says what is missing; " + std::string(kOwnTable));
}

class Exporter {
 public:
  Exporter(const TrainingState& state, const HuggingFaceOptions& options, const NameTable& table,
           const NameScope& scope)
      : state_(state), options_(options), table_(table), scope_(scope) {
    for (const TrainedParam& param : state.params) params_[param.info.name] = &param;
  }

  void run(ckpt::TypeChange& types, HuggingFaceExport& made) {
    for_each_tensor(table_, scope_, [&](TableTensor tensor) { add(std::move(tensor), types); });
    refuse_rest();
    made.tensors = std::move(tensors_);
    made.linears = std::move(linears_);
  }

  // What is padding is said by arguments alone.
  void report_cut_rows(ckpt::Target& target) const {
    const ModelFacts& facts = state_.facts;
    for (const auto& [name, rows] : cut_) {
      const auto& [stored, made] = rows;
      target.not_carried.push_back(
          {.what = name,
           .reason = counted(stored - made, "row") + " of padding behind the vocabulary " +
                     (stored - made == 1 ? "is" : "are") + " cut: " + std::to_string(stored) +
                     " -> " + std::to_string(made) + " rows (vocabulary " +
                     std::to_string(facts.vocabulary.value_or(made)) +
                     (facts.has_end_token ? ", and NullTokenizer's end token)" : ")"),
           .is_changed = true});
    }
  }

 private:
  void add(TableTensor tensor, ckpt::TypeChange& types) {
    const TensorRow& row = *tensor.row;
    std::vector<ViewedPart> parts;
    for (const TableTensor::Part& part : tensor.parts) {
      parts.push_back({find(row, part.names), part.expert, part.part});
    }
    ViewedTensor value = view_tensor(row, scope_, parts);
    note_rows(row.parts[0].from[0], parts[0].source->shape, value.shape);
    if (tensor.added != 0) {
      value.entry = std::make_shared<const TensorEntry>(
          ckpt::with_cast(*value.entry, value.entry->dtype, {.added = tensor.added}));
    }
    value.entry = types.apply(std::move(value.entry), tensor.key, keeps_type(row.parts[0].from[0]));
    const std::string& from = row.parts[0].from[0];
    const bool is_linear = from.find(".linear_") != from.npos && from.find(".weight") != from.npos;
    if (is_linear) linears_.insert(tensor.key);
    tensors_.push_back({std::move(tensor.key), std::move(value)});
  }

  void note_rows(const std::string& from, const Extents& stored, const Extents& made) {
    if (stored.empty() || made.empty() || !is_vocabulary(state_, from)) return;
    if (made[0] < stored[0]) cut_.insert({from, {stored[0], made[0]}});
  }

  TensorRef find(const TensorRow& row, const std::vector<std::string>& names) {
    for (const std::string& name : names) {
      const auto found = params_.find(name);
      if (found == params_.end()) continue;
      used_.insert(name);
      const TrainedParam& param = *found->second;
      const TensorRef& weight = options_.masters && param.master ? param.master : param.weight;
      require_float(*weight, "--weights master exports float32 masters");
      return weight;
    }
    throw Error(ErrorCode::Unsupported, {.file = {}, .key = ckpt::joined(names, " or ")},
                "is not in the checkpoint, and " + table_.name + " needs it for " + row.target);
  }

  void refuse_rest() const {
    for (const TrainedParam& param : state_.params) {
      if (used_.contains(param.info.name)) {
        if (glu_rows(state_, param.info.name).order != GluRows::Order::Unclear) continue;
        throw Error(ErrorCode::Unsupported, {.file = {}, .key = param.info.name},
                    "it is not known in which order its rows of gate and up stand");
      }
      throw Error(ErrorCode::Unsupported, {.file = {}, .key = param.info.name},
                  "has no place in " + table_.architecture + " by the table " + table_.name,
                  kOwnTable);
    }
  }

  const TrainingState& state_;
  const HuggingFaceOptions& options_;
  const NameTable& table_;
  const NameScope& scope_;
  std::unordered_map<std::string_view, const TrainedParam*> params_;
  std::set<std::string> used_;
  std::vector<HuggingFaceExport::Tensor> tensors_;
  std::set<std::string> linears_;
  std::map<std::string, std::pair<uint64_t, uint64_t>> cut_;  // rows stored, rows made
};

// A model in float32 is its own masters.
void require_masters(const TrainingState& state) {
  const bool has_masters = std::ranges::any_of(
      state.params, [](const TrainedParam& param) { return param.master != nullptr; });
  const bool is_float32 = std::ranges::all_of(state.params, [](const TrainedParam& param) {
    return param.weight->dtype == DType::Float32;
  });
  if (has_masters || is_float32) return;
  throw Error(ErrorCode::Unsupported, {.file = {}, .key = {}},
              "--weights master: the checkpoint holds no float32 masters",
              "--weights model exports the weights");
}

// Of special tokens.
void copy_ids(const std::filesystem::path& folder, json& config) {
  const json other = read_object(folder / "config.json");
  for (const char* const id : {"bos_token_id", "eos_token_id", "pad_token_id"}) {
    if (const auto found = other.find(id); found != other.end()) config[id] = *found;
  }
}

// Of the folder whose tokenizer is taken.
void copy_tokenizer(const std::filesystem::path& folder, json& config, ckpt::Target& target) {
  std::ranges::move(copies_of_tokenizer(folder), std::back_inserter(target.files));
  if (ckpt::source_of(folder)->has(folder / "config.json")) copy_ids(folder, config);
}

std::string json_text_of(const json& document) { return document.dump(2) + "\n"; }

void add_files(const NameTable& table, const NameScope& scope, const HuggingFaceOptions& options,
               HuggingFaceExport& made) {
  json config = {{"architectures", {table.architecture}},
                 {"model_type", table.model_type},
                 {"bos_token_id", nullptr},
                 {"eos_token_id", nullptr},
                 {"pad_token_id", nullptr}};
  for (const auto& [field, text] : table.config) config[field] = scope.value(text);
  if (!made.quantization.is_null()) config["quantization_config"] = made.quantization;
  if (is_folder(options.args_from)) {
    require_same_config(config, options.args_from);
    copy_ids(options.args_from, config);
  }
  std::vector<ckpt::TargetFile> weights = std::move(made.target.files);
  made.target.files.clear();
  if (options.tokenizer_from.empty()) {
    made.target.warnings.push_back("no tokenizer: give --tokenizer-from");
  } else {
    copy_tokenizer(options.tokenizer_from, config, made.target);
  }
  json generation = {{"_from_model_config", true}};
  for (const char* const id : {"bos_token_id", "eos_token_id", "pad_token_id"}) {
    if (!config[id].is_null()) generation[id] = config[id];
  }
  made.target.files.push_back({"generation_config.json", {}, json_text_of(generation)});
  made.target.files.push_back({"config.json", {}, json_text_of(config)});
  std::ranges::move(weights, std::back_inserter(made.target.files));
}

// Of 16 bits, the sum is less exact than what was trained.
void report_sums(HuggingFaceExport& made) {
  std::string first;
  uint64_t count = 0;
  for (const auto& [key, value] : made.tensors) {
    const auto& cast = value.entry->cast;
    if (!cast || cast->added == 0 || ckpt::is_widening(value.entry->dtype)) continue;
    if (count++ == 0) first = key;
  }
  if (count == 0) return;
  made.target.not_carried.push_back(
      {"bits of " + std::to_string(count) + (count == 1 ? " norm" : " norms"),
       "rounded behind the 1 that is added: --dtype '" + first + "'=float32 keeps them"});
}

// Strides along the axes of which dimensions are made.
Extents strides_of_axes(const Extents& shape, const Extents& strides, const Extents& axes) {
  Extents made(axes.size(), 1);
  size_t axis = axes.size();
  for (size_t dim = shape.size(); dim-- > 0;) {
    for (uint64_t inner = 1; axis > 0 && (inner < shape[dim] || axes[axis - 1] == 1);) {
      made[--axis] = strides[dim] * inner;
      inner *= axes[axis];
    }
  }
  return made;
}

}  // namespace

json arguments_of(const TrainingState& state, const HuggingFaceOptions& options) {
  const auto& [names, more] = std::tie(options.names, options.args_from);
  const Value args = state.args();
  json known = json::object();
  for (const auto& [name, value] : ckpt::items_of(args)) {
    if (name.is(Kind::Str)) known[std::string(name.text())] = json_of(value);
  }
  if (more.empty()) return known;
  if (is_folder(more)) {
    const json stated = args_of_config(more, names).args;
    for (const auto& [name, value] : stated.items()) {
      if (known.value(name, json()).is_null()) known[name] = value;
    }
    return known;
  }
  const json added = read_object(more);
  for (const auto& [name, value] : added.items()) {
    const auto stated = known.find(name);
    if (stated != known.end() && !stated->is_null() && *stated != value) {
      throw Error(ErrorCode::Unsupported, {.file = more.string(), .key = name},
                  "is " + value.dump() + ", but args say " + stated->dump(),
                  "--args-from adds what args of the checkpoint do not say");
    }
    known[name] = value;
  }
  return known;
}

json given_sizes(const TrainingState& state) {
  const auto found = std::ranges::find(state.params, kWordEmbeddings,
                                       [](const TrainedParam& param) { return param.info.name; });
  if (found == state.params.end() || found->weight->shape.empty()) {
    const bool is_submodel = state.facts.divided_stack.starts_with(kLanguageModel);
    throw Error(ErrorCode::Unsupported, {.file = {}, .key = std::string(kWordEmbeddings)},
                is_submodel ? "is below 'language_model.': models with a vision model beside it "
                              "are not exported to Hugging Face"
                            : "is not in the checkpoint: it holds no language model as a whole");
  }
  if (auto problem = contradicted_vocabulary(state)) {
    throw Error(ErrorCode::Corrupt, {.file = {}, .key = "args.vocab_size"}, std::move(*problem),
                "--vocab-size gives the true size");
  }
  const uint64_t rows = found->weight->shape[0];
  return {{"vocabulary", static_cast<int64_t>(token_count(state.facts, rows))},
          {"vocabulary_rows", static_cast<int64_t>(rows)}};
}

NameTable table_of(const json& args, const json& given, const HuggingFaceOptions& options,
                   std::string& names) {
  const bool is_chosen = options.names == "auto";
  const bool is_by_config = is_folder(options.args_from);
  NameTable table = is_by_config ? args_of_config(options.args_from, options.names).table
                    : is_chosen  ? choose_table(args, given)
                                 : find_table(options.names);
  names = table.name + ", " + table.architecture +
          (is_by_config ? ", by config.json"
           : is_chosen  ? ", chosen by args"
                        : "");
  require_conditions(table, NameScope(table, args, given), "args");
  return table;
}

HuggingFaceExport export_model(const TrainingState& state, const HuggingFaceOptions& options,
                               const std::vector<ckpt::TypeRule>& type_rules,
                               const ckpt::Checkpoint* source) {
  if (options.masters) require_masters(state);
  std::vector<ckpt::TypeRule> rules = type_rules;
  const bool is_fp8 = take_fp8_blocks(rules);
  const json args = arguments_of(state, options);
  json given = given_sizes(state);
  HuggingFaceExport made;
  const NameTable table = table_of(args, given, options, made.names);
  const NameScope scope(table, args, given);
  ckpt::TypeChange types(rules);
  Exporter exporter(state, options, table, scope);
  exporter.run(types, made);
  given["dtype"] = std::string(ckpt::name(type_of_most(inventory_of(made.tensors).tensors)));
  if (is_fp8) quantize(source, made);
  ckpt::SafetensorsSpec spec;
  spec.as_folder = true;
  spec.file_bytes_max = options.shard_bytes;
  for (const auto& [key, value] : made.tensors) {
    spec.tensors.push_back({key, {value.entry, ckpt::whole(value.entry->shape)}, value.shape});
  }
  made.target = ckpt::make_safetensors_target(std::move(spec));
  types.report(made.target);
  exporter.report_cut_rows(made.target);
  report_sums(made);
  if (is_fp8) {
    made.target.not_carried.push_back(
        {"bits of weights of linear layers", "rounded to e4m3 with scales of blocks", {}, true});
  }
  add_files(table, NameScope(table, args, given), options, made);
  made.table = table;
  made.args = args;
  made.given = given;
  return made;
}

void state_vocabulary(uint64_t rows, TrainingState& state) {
  target_vocabulary(state, state.grid, {.vocabulary = rows});
  state.facts.vocabulary = rows;
  state.facts.has_end_token = false;
}

DType type_of_most(const std::vector<TensorEntry>& tensors) {
  std::map<DType, uint64_t> counts;
  for (const TensorEntry& tensor : tensors) {
    counts[tensor.dtype] += ckpt::element_count(tensor.shape);
  }
  if (counts.empty()) return DType::Float32;
  return std::ranges::max_element(counts, {}, [](const auto& count) { return count.second; })
      ->first;
}

ckpt::Inventory inventory_of(const std::vector<HuggingFaceExport::Tensor>& tensors) {
  ckpt::Inventory inventory;
  for (const auto& [key, value] : tensors) {
    inventory.tensors.push_back(*value.entry);
    inventory.tensors.back().key = key;
  }
  return inventory;
}

void name_axes(const std::vector<HuggingFaceExport::Tensor>& tensors, ckpt::Inventory& folder) {
  std::unordered_map<std::string_view, const ViewedTensor*> views;
  for (const auto& [key, value] : tensors) views.emplace(key, &value);
  for (TensorEntry& tensor : folder.tensors) {
    const auto view = views.find(tensor.key);
    const bool is_whole = tensor.chunks.size() == 1 && tensor.chunks[0].box.sizes == tensor.shape;
    if (view == views.end() || !is_whole || tensor.shape != view->second->shape) continue;
    if (tensor.chunks[0].view) {  // of products that are transposed
      auto strided = std::make_shared<ckpt::StridedView>(*tensor.chunks[0].view);
      strided->strides =
          strides_of_axes(tensor.shape, strided->strides, view->second->entry->shape);
      tensor.chunks[0].view = std::move(strided);
    }
    tensor.shape = view->second->entry->shape;
    tensor.chunks[0].box = ckpt::whole(tensor.shape);
  }
}

// An export that is read, not written.
ExportedModel exported_model(const OpenedTraining& checkpoint) {
  HuggingFaceExport made =
      export_model(read_training_state(checkpoint, {.model_only = true}), {}, {});
  ExportedModel model{{}, nullptr, made.names};
  ComputedTensors tensors(checkpoint);
  for (const auto& [key, value] : made.tensors) {
    model.inventory.tensors.push_back(
        tensors.add(key, value.entry->dtype, value.shape, elements_of(checkpoint, value.entry)));
  }
  model.payloads = tensors.payloads();
  return model;
}

}  // namespace optim
