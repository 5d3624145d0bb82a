// Source: megatron/bridge/peft/*.py and models/conversion/peft_bridge.py of Megatron-Bridge 0.6.2.
#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include <ckpt/files_beside.h>
#include <ckpt/printed.h>
#include <ckpt/safetensors_target.h>

#include "args/bridge_args.h"
#include "convert/peft.h"
#include "huggingface/table_walk.h"
#include "huggingface/viewed_tensor.h"
#include "model/expression.h"
#include "state/words.h"

namespace optim {
namespace {

using nlohmann::json;

constexpr std::string_view kWeight = ".weight", kAdapter = ".adapter",
                           kOneExpert = ".local_experts.";
constexpr const char* kFront = "base_model.model.";
constexpr std::string_view kCutByRanks = ".linear_fc1.";

[[noreturn]] void refuse(const std::string& key, const std::string& problem) {
  throw Error(ErrorCode::Unsupported, {.file = {}, .key = key}, problem);
}

// "(groups qkv head) hidden": the axes of rows and those of columns.
std::pair<std::string, std::string> split_axes(const std::string& axes) {
  const bool is_joined = axes.ends_with(')');
  const size_t at = is_joined ? axes.rfind('(') : axes.rfind(' ') + 1;
  if (at == 0 || at == axes.npos) return {};
  return {axes.substr(0, at - 1), axes.substr(at)};
}

// LoRA's settings, as a run of Bridge has them.
struct Settings {
  json rank, alpha, dropout;
};

Settings settings_of(const OpenedTraining& source) {
  const std::string config = bridge_config(source);
  json stated;
  if (!config.empty()) {
    const ValueTree tree = ckpt::read_yaml(config, kBridgeConfig);
    const auto section = tree.root().find("peft");
    for (size_t i = 0; section && section->is(Kind::Dict) && i < section->item_count(); ++i) {
      const auto [field, value] = section->item(i);
      if (field.is(Kind::Str)) stated[std::string(field.text())] = json_of(value);
    }
  }
  const auto refuse_field = [](const std::string& field, const std::string& problem) {
    throw Error(ErrorCode::Unsupported, {kBridgeConfig, {}, field}, problem,
                "rank and alpha of an adapter are in no tensor");
  };
  if (!stated.is_object()) refuse_field("peft", "is not there: the adapter's settings are unknown");
  const json kind = stated.value("_target_", json());
  if (kind != "megatron.bridge.peft.lora.LoRA" &&
      kind != "megatron.bridge.peft.canonical_lora.CanonicalLoRA") {
    refuse_field("peft._target_", "is " + kind.dump() + "; LoRA and CanonicalLoRA are known");
  }
  for (const char* const field : {"dim", "alpha"}) {
    if (stated.value(field, json()).is_number()) continue;
    refuse_field("peft." + std::string(field), "is not a number");
  }
  return {stated["dim"], stated["alpha"], stated.value("dropout", json(0.0))};
}

struct Factors {
  TensorRef in, out;
  bool is_used = false;
};

class AdapterExport {
 public:
  AdapterExport(const TrainingState& state, const NameTable& table, const json& args)
      : table_(table), args_(args), scope_(with_axes(table, args, json::object())) {
    for (const TrainedParam& param : state.params) add_factor(param);
  }

  std::vector<HuggingFaceExport::Tensor> run() {
    for_each_tensor(table_, scope_, [&](const TableTensor& tensor) { add(tensor); });
    for (const auto& [module, factors] : factors_) {
      if (!factors.is_used) {
        refuse((factors.in ? factors.in : factors.out)->key,
               "has no place in " + table_.architecture + " by the table " + table_.name);
      }
    }
    return std::move(tensors_);
  }

 private:
  // As grouped experts name it.
  static std::string without_experts_twice(std::string module) {
    const std::string twice = ".experts.experts.";
    const size_t at = module.find(twice);
    return at == module.npos ? module : module.replace(at, twice.size(), ".experts.");
  }

  void add_factor(const TrainedParam& param) {
    const std::string& name = param.info.name;
    const size_t at = name.find(std::string(kAdapter) + ".");
    for (const bool is_in : {true, false}) {
      const std::string_view end = is_in ? ".linear_in.weight" : ".linear_out.weight";
      if (at == name.npos || !name.ends_with(end)) continue;
      const std::string front = without_experts_twice(name.substr(0, at));
      const size_t own = at + kAdapter.size();
      Factors& factors = factors_[front + name.substr(own, name.size() - end.size() - own)];
      (is_in ? factors.in : factors.out) = param.weight;
      require_float(*param.weight, "");
      return;
    }
    refuse(name, "is not a factor of LoRA: an adapter-only iteration was expected");
  }

  // Of a tensor's name in the model: of itself, or of all experts.
  Factors* find(const std::string& name, const std::string& suffix) {
    std::string module = module_of_weight(name);
    if (module.empty()) return nullptr;
    auto found = factors_.find(module + suffix);
    const size_t one = module.find(kOneExpert);
    if (found == factors_.end() && one != module.npos) {
      module.erase(one, module.find('.', one + kOneExpert.size()) - one);
      found = factors_.find(module + suffix);
    }
    return found == factors_.end() ? nullptr : &found->second;
  }

  void add(const TableTensor& tensor) {
    for (const std::string& suffix : {std::string(), canonical_suffix(tensor.key)}) {
      for (const TableTensor::Part& part : tensor.parts) {
        for (const std::string& name : part.names) {
          Factors* const factors = find(name, suffix);
          if (factors == nullptr) continue;
          return add(tensor, *factors, !suffix.empty());
        }
      }
    }
  }

  void add(const TableTensor& tensor, Factors& factors, bool is_canonical) {
    factors.is_used = true;
    if (!factors.in || !factors.out) {
      refuse((factors.in ? factors.in : factors.out)->key,
             "has no twin: LoRA needs linear_in and linear_out");
    }
    const bool is_of_expert = tensor.row->parts[0].from[0].find("{expert}") != std::string::npos;
    const std::string base = tensor.key.substr(0, tensor.key.rfind(kWeight));
    const auto make = [&](const TensorRef& factor, bool is_b) {
      const bool is_stacked = factor->shape.size() == 3 && is_of_expert;
      if (factor->shape.size() != (is_stacked ? 3 : 2)) {
        refuse(factor->key, "has the shape " + ckpt::shape_text(factor->shape));
      }
      std::optional<uint32_t> expert;
      if (is_stacked) expert = tensor.parts[0].expert;
      FactorRow known = row_of_factor(tensor, scope_, expert);
      const uint64_t rank = factor->shape[factor->shape.size() - (is_b ? 1 : 2)];
      RowPart& part = known.row.parts[0];
      json axes = {{kRankAxis, rank}};
      const std::string columns = std::to_string(known.columns);
      if (!is_b) {
        part.view = is_stacked ? "stack__ rank__ " + columns : "rank__ " + columns;
        part.as = is_stacked ? "(stack__ rank__) " + columns : part.view;
        std::erase_if(part.slice, [](const auto& cut) { return cut.first != kStackAxis; });
        part.rows.clear();
      } else if (is_canonical) {
        set_canonical(tensor, factor->key, part, axes);
      }
      const std::string key = kFront + base + (is_b ? ".lora_B.weight" : ".lora_A.weight");
      tensors_.push_back(
          {key, view_tensor(known.row, with_axes(table_, args_, axes), {{factor, 0, 0}})});
      return rank;
    };
    if (make(factors.in, false) != make(factors.out, true)) {
      refuse(factors.out->key, "has a different rank from " + ckpt::escaped(factors.in->key));
    }
  }

  // Of an adapter that CanonicalLoRA has of one projection: in the folder's order, but for rows
  // that Bridge cuts in two on each rank, as if they were of two projections, the first halves
  // first.
  void set_canonical(const TableTensor& tensor, const std::string& key, RowPart& part,
                     json& axes) const {
    if (tensor.row->parts[0].as != tensor.row->parts[0].view) {
      refuse(key, "is of rows in a different order from the folder's");
    }
    part = {part.from, "(half__ ranks__ rows__) rank__", "(ranks__ half__ rows__) rank__"};
    const bool is_cut = key.find(kCutByRanks) != key.npos;
    const uint64_t halves = is_cut ? 2 : 1;
    const uint64_t ranks =
        is_cut ? args_.value("tensor_model_parallel_size", uint64_t{1}) : uint64_t{1};
    const uint64_t rows = join_parts(*tensor.row, scope_, 1).shape[0];
    axes["half__"] = halves;
    axes["ranks__"] = ranks;
    axes["rows__"] = rows / std::max<uint64_t>(1, halves * ranks);
  }

  const NameTable& table_;
  const json& args_;
  NameScope scope_;
  std::map<std::string, Factors> factors_;  // by module, and ".adapter_q"
  std::vector<HuggingFaceExport::Tensor> tensors_;
};

// As Bridge writes it.
json config_of_adapter(const Settings& settings,
                       const std::vector<HuggingFaceExport::Tensor>& tensors) {
  std::set<std::string> modules;
  json ranks = json::object();
  for (const auto& [key, value] : tensors) {
    const size_t end = key.find(".lora_A.weight");
    if (end == key.npos) continue;
    const std::string module =
        key.substr(std::string_view(kFront).size(), end - std::string_view(kFront).size());
    modules.insert(module.substr(module.rfind('.') + 1));
    if (value.shape[0] != settings.rank) ranks[module] = value.shape[0];
  }
  return {{"peft_type", "LORA"},
          {"auto_mapping", nullptr},
          {"base_model_name_or_path", ""},
          {"bias", "none"},
          {"fan_in_fan_out", false},
          {"inference_mode", true},
          {"init_lora_weights", true},
          {"lora_alpha", settings.alpha},
          {"lora_dropout", settings.dropout},
          {"modules_to_save", nullptr},
          {"r", settings.rank},
          {"rank_pattern", ranks},
          {"alpha_pattern", json::object()},
          {"target_modules", modules},
          {"task_type", "CAUSAL_LM"},
          {"use_dora", false},
          {"use_rslora", false}};
}

}  // namespace

FactorRow row_of_factor(const TableTensor& tensor, const NameScope& scope,
                        std::optional<uint32_t> expert) {
  const TensorRow& row = *tensor.row;
  const RowPart& given = row.parts[0];
  const auto [rows, columns] = split_axes(given.view);
  const auto [as_rows, as_columns] = split_axes(given.as);
  const bool is_cut = std::ranges::any_of(given.slice, [&, &of = columns](const auto& slice) {
    return (" " + of + " ").find(slice.first) != of.npos;
  });
  const bool is_one = tensor.parts.size() == 1 && tensor.key.ends_with(kWeight);
  if (!is_one || rows.empty() || columns != as_columns || is_cut ||
      (expert && !given.rows.empty())) {
    refuse(tensor.key,
           "is not one matrix of Megatron's with its columns: no adapter of it is known");
  }
  const Joined joined = join_parts(row, scope, 1);
  FactorRow made{row, joined.shape.back()};
  RowPart& part = made.row.parts[0];
  part.view = rows + " " + kRankAxis;
  part.as = as_rows + " " + kRankAxis;
  if (!expert) return made;
  part.view = std::string(kStackAxis) + " " + part.view;
  const bool is_joined = as_rows.starts_with('(');
  part.as = "(" + std::string(kStackAxis) + " " + (is_joined ? as_rows.substr(1) : as_rows + ")") +
            " " + kRankAxis;
  part.slice[kStackAxis] = std::to_string(*expert) + ":" + std::to_string(*expert + 1);
  return made;
}

NameScope with_axes(const NameTable& table, const json& args, json axes) {
  axes["vocabulary"] = axes["vocabulary_rows"] = args.value("vocab_size", json());
  axes[kStackAxis] = args.value("num_experts", json());
  return {table, args, std::move(axes)};
}

std::string module_of_weight(const std::string& name) {
  const size_t end = name.rfind(kWeight), number = end + kWeight.size();
  if (end == name.npos || name.find_first_not_of("0123456789", number) != name.npos) return {};
  return name.substr(0, end);
}

std::string canonical_suffix(const std::string& key) {
  for (const char* const name : {"q", "k", "v", "gate", "up"}) {
    if (key.ends_with("." + std::string(name) + "_proj.weight")) {
      return ".adapter_" + std::string(name);
    }
  }
  return {};
}

HuggingFaceExport export_adapter(const OpenedTraining& source, const TrainingState& state,
                                 const ConvertOptions& options) {
  const HuggingFaceOptions& names = *options.hugging_face;
  const Settings settings = settings_of(source);
  HuggingFaceExport made;
  made.args = arguments_of(state, names);
  const json vocabulary = made.args.value("vocab_size", json());
  made.table = table_of(made.args, {{"vocabulary", vocabulary}, {"vocabulary_rows", vocabulary}},
                        names, made.names);
  made.tensors = AdapterExport(state, made.table, made.args).run();
  ckpt::TypeChange changed(options.base.types);
  for (auto& [key, value] : made.tensors) value.entry = changed.apply(value.entry, key);
  ckpt::SafetensorsSpec spec;
  for (const auto& [key, value] : made.tensors) {
    spec.tensors.push_back({key, {value.entry, ckpt::whole(value.entry->shape)}, value.shape});
  }
  made.target = ckpt::make_safetensors_target(std::move(spec));
  made.target.files[0].path = "adapter_model.safetensors";
  made.target.files.insert(
      made.target.files.begin(),
      {"adapter_config.json", {}, config_of_adapter(settings, made.tensors).dump(2) + "\n"});
  changed.report(made.target);
  return made;
}

}  // namespace optim
