#include "report/flat_groups.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include <ckpt/param_order.h>
#include <training/contents.h>
#include <training/megatron_folders.h>
#include <training/trainer_facts.h>

#include "args/value_place.h"
#include "layouts/group_search.h"
#include "model/tensor_names.h"
#include "report/flat_groups.h"
#include "state/words.h"

namespace optim {
namespace {

// A parameter as a group lists it.
struct ListedParam {
  std::string text;  // its name, or its number
  NameSource source = NameSource::Numbers;
  std::optional<Extents> shape = {};  // as all of its states have it
};
using ListedParams = std::vector<ListedParam>;

// The optimizer state of a torch.save file, or of an object, by parameter.
class StateOfFile {
 public:
  StateOfFile(const OpenedTraining& checkpoint, const FoundOptimizer& found)
      : checkpoint_(checkpoint), found_(found) {
    const auto state = found.state();
    for (size_t i = 0; state && state->is(Kind::Dict) && i < state->item_count(); ++i) {
      const auto [key, of_param] = state->item(i);
      if (of_param.is(Kind::Dict)) by_param_.emplace(ckpt::key_text(key), of_param);
    }
  }

  // A number, or a tensor of one element.
  std::optional<double> step_of(const std::string& param) const {
    const auto of_param = by_param_.find(param);
    const auto step = of_param == by_param_.end() ? std::nullopt : of_param->second.find("step");
    if (!step) return std::nullopt;
    if (step->is(Kind::Int) || step->is(Kind::Float)) return step->as_float();
    const TensorEntry* const tensor = find(param, "step");
    return tensor != nullptr ? scalar_of(*tensor, checkpoint_) : std::nullopt;
  }

  std::optional<Extents> shape_of(const std::string& param) const {
    const auto of_param = by_param_.find(param);
    std::optional<Extents> shape;
    if (of_param == by_param_.end()) return shape;
    for (size_t i = 0; i < of_param->second.item_count(); ++i) {
      const std::string state = ckpt::key_text(of_param->second.item(i).first);
      const TensorEntry* const tensor = state == "step" ? nullptr : find(param, state);
      if (tensor == nullptr) continue;
      if (shape && *shape != tensor->shape) return std::nullopt;
      shape = tensor->shape;
    }
    return shape;
  }

 private:
  const TensorEntry* find(const std::string& param, const std::string& state) const {
    return checkpoint_.catalog().find_tensor(
        found_.pointer + "/state" + escaped_step(param) + escaped_step(state), found_.file);
  }

  const OpenedTraining& checkpoint_;
  const FoundOptimizer& found_;
  std::map<std::string, Value> by_param_;
};

bool is_list(const std::optional<Value>& value) {
  return value && (value->is(Kind::List) || value->is(Kind::Tuple));
}

// What `params` has, or `param_names` beside it, as torch's optimizers write that are given
// named_parameters().
ListedParams params_in(const Value& group, const Value& params, const StateOfFile& state) {
  const auto names = group.find("param_names");
  const bool has_names = is_list(names) && names->size() == params.size();
  ListedParams listed;
  for (size_t i = 0; i < params.size(); ++i) {
    ListedParam param{ckpt::key_text(params[i])};
    param.shape = state.shape_of(param.text);
    if (params[i].is(Kind::Str)) param.source = NameSource::ParamGroups;
    if (has_names && (*names)[i].is(Kind::Str)) {
      param.text = (*names)[i].text();
      param.source = NameSource::ParamNames;
    }
    listed.push_back(std::move(param));
  }
  return listed;
}

bool are_named(const ListedParams& params) {
  return std::ranges::none_of(
      params, [](const ListedParam& param) { return param.source == NameSource::Numbers; });
}

// The parameters of the models in a file, each model's in its order: by the step that stands before
// their names.
std::vector<std::vector<LogicalTensor>> models_of(const OpenedTraining& checkpoint) {
  constexpr std::string_view kBuffers[] = {"running_mean", "running_var"};
  std::map<std::string, std::vector<LogicalTensor>> models;
  for (LogicalTensor& tensor : list_contents(checkpoint).tensors) {
    const bool is_param =
        tensor.role == KeyKind::Model && holds_parameters(tensor.dtype) && tensor.value != nullptr;
    const std::string_view last = std::string_view(tensor.name).substr(tensor.name.rfind('.') + 1);
    if (!is_param || std::ranges::find(kBuffers, last) != std::end(kBuffers)) continue;
    const std::vector<std::string> steps = key_steps(tensor.value->key);
    models[steps.size() > 1 ? steps.front() : ""].push_back(std::move(tensor));
  }
  std::vector<std::vector<LogicalTensor>> all;
  for (auto& [step, model] : models) all.push_back(std::move(model));
  return all;
}

class StoredGroups {
 public:
  StoredGroups(const OpenedTraining& checkpoint, GroupReport& report)
      : checkpoint_(checkpoint),
        report_(report),
        is_folder_(checkpoint.catalog().format == ckpt::Format::TorchDist) {}

  void run() {
    report_.names = NameSource::Numbers;
    add_of_files();
    add_of_folder();
    count_elements();
    report_.has_groups_of_params = false;
    if (!is_megatron(checkpoint_)) name_params();
    if (is_folder_) add_writers();
  }

 private:
  struct OfParam {
    uint32_t optimizer = 0, group = 0;
  };

  void add_of_files() {
    std::map<std::string, uint32_t> optimizers;  // of each file
    for (const FoundOptimizer& found : find_optimizers(checkpoint_)) {
      const std::string& place = found.object.empty() ? found.file : found.object;
      const uint32_t optimizer = optimizers[place]++;
      if (found.document) report_.documents.push_back(found.document);
      const StateOfFile state(checkpoint_, found);
      for (uint32_t i = 0; i < found.groups.size(); ++i) {
        const Value group = found.groups[i];
        const auto params = group.is(Kind::Dict) ? group.find("params") : std::nullopt;
        std::vector<double> steps;
        for (size_t j = 0; is_list(params) && j < params->size(); ++j) {
          if (const auto step = state.step_of(ckpt::key_text((*params)[j]))) steps.push_back(*step);
        }
        add({place, optimizer, i, settings_of(group), {}, {}},
            is_list(params) ? std::optional(params_in(group, *params, state)) : std::nullopt,
            steps);
      }
    }
  }

  // PyTorch's torch_dist folders: a setting is an object, a step count a tensor or an object.
  void add_of_folder() {
    FlatGroups flat = find_flat_groups(checkpoint_);
    std::map<std::string, uint32_t> optimizers, groups;  // groups: of each optimizer
    for (FlatGroup& group : flat.groups) {
      const auto number = static_cast<uint32_t>(optimizers.size());
      const uint32_t optimizer = optimizers.try_emplace(group.optimizer, number).first->second;
      const std::string front = group.optimizer.empty() ? "" : group.optimizer + ".";
      ListedParams params;
      std::vector<double> steps;
      for (const std::string& name : group.params) {
        const auto* const step =
            checkpoint_.catalog().find_tensor(front + "state." + name + ".step");
        const auto count = step != nullptr ? scalar_of(*step, checkpoint_) : std::nullopt;
        if (count) steps.push_back(*count);
        params.push_back({name, is_number(name) ? NameSource::Numbers : NameSource::ParamGroups,
                          shape_of(front, name)});
      }
      const uint32_t place = groups[group.optimizer]++;
      add({group.optimizer, optimizer, place, std::move(group.settings), {}, {}}, std::move(params),
          steps);
    }
    report_.documents.insert(report_.documents.end(), flat.documents.begin(), flat.documents.end());
  }

  std::optional<Extents> shape_of(const std::string& front, const std::string& name) const {
    for (const char* state : {"exp_avg", "momentum_buffer", "exp_avg_sq", "square_avg"}) {
      const auto* const tensor =
          checkpoint_.catalog().find_tensor(front + "state." + name + "." + state);
      if (tensor != nullptr) return tensor->shape;
    }
    return std::nullopt;
  }

  void add(StoredGroup group, std::optional<ListedParams> params,
           const std::vector<double>& steps) {
    const bool has_step = std::ranges::any_of(
        group.settings, [](const auto& setting) { return setting.first == "step"; });
    const auto step = step_setting(steps);
    if (!has_step && step) {
      group.settings.emplace_back("step", step->first);
      report_.documents.push_back(step->second);
    }
    if (params) group.param_count = params->size();
    report_.groups.push_back(std::move(group));
    lists_all_ = lists_all_ && params.has_value();
    params_.push_back(std::move(params).value_or(ListedParams()));
  }

  void count_elements() {
    for (size_t i = 0; i < params_.size(); ++i) {
      uint64_t count = 0;
      bool is_known = report_.groups[i].param_count.has_value();
      for (const ListedParam& param : params_[i]) {
        is_known = is_known && param.shape;
        if (param.shape) count += ckpt::element_count(*param.shape);
      }
      if (is_known) report_.groups[i].element_count = count;
    }
  }

  // --- names ---

  void name_params() {
    if (report_.groups.empty()) return;
    if (!lists_all_) {
      report_.unnamed_reason = "a group does not list its parameters";
      return;
    }
    report_.unnamed_reason = "parameters are stored as numbers, not names";
    if (!is_folder_ && !std::ranges::all_of(params_, are_named)) name_by_order();
    const bool has_names = std::ranges::all_of(params_, are_named);
    if (has_names) {
      report_.unnamed_reason.clear();
      report_.names = NameSource::ParamGroups;
      for (const ListedParams& params : params_) {
        for (const ListedParam& param : params)
          report_.names = std::max(report_.names, param.source);
      }
    }
    report_.has_groups_of_params = has_names || !is_folder_;
    for (size_t i = 0; i < params_.size(); ++i) add_rows(i);
  }

  void name_by_order() {
    std::vector<std::vector<std::optional<Extents>>> shapes;
    uint64_t number = 0;
    for (const ListedParams& params : params_) {
      shapes.emplace_back();
      for (const ListedParam& param : params) {
        if (param.text != std::to_string(number++)) return;
        if (!param.shape) {
          report_.unnamed_reason += ", and some have no state that tells their shapes";
          return;
        }
        shapes.back().push_back(param.shape);
      }
    }
    std::optional<std::vector<std::vector<size_t>>> places;
    std::vector<LogicalTensor> named_by;
    const std::vector<std::vector<LogicalTensor>> models = models_of(checkpoint_);
    for (const std::vector<LogicalTensor>& model : models) {
      std::vector<Extents> of_model;
      for (const LogicalTensor& tensor : model) of_model.push_back(tensor.shape);
      auto found = ckpt::place_in_order(of_model, shapes);
      if (!found) continue;
      if (places) return add_why_not(!models.empty());
      places = std::move(found);
      named_by = model;
    }
    if (!places) return add_why_not(!models.empty());
    for (size_t i = 0; i < params_.size(); ++i) {
      for (size_t j = 0; j < params_[i].size(); ++j) {
        params_[i][j].text = named_by[(*places)[i][j]].name;
        params_[i][j].source = NameSource::ModelOrder;
      }
    }
  }

  void add_why_not(bool has_models) {
    if (!has_models) {
      report_.unnamed_reason += ", and their file holds no model whose order would tell them";
      return;
    }
    report_.unnamed_reason +=
        ", and their shapes fit a model of the file in no order, or in several";
  }

  void add_rows(size_t i) {
    const StoredGroup& group = report_.groups[i];
    for (const ListedParam& param : params_[i]) {
      places_.try_emplace({group.file, param.text}, OfParam{group.optimizer, group.group});
      if (is_folder_) continue;  // ranks have them
      const Extents shape = param.shape.value_or(Extents());
      report_.params.push_back({param.text,
                                {shape.begin(), shape.end()},
                                {},
                                0,
                                group.optimizer,
                                group.group,
                                param.shape.has_value()});
    }
  }

  // --- ranks ---

  // Of torch_dist: each file's chunks of optimizer state belong to the rank that wrote it. What a
  // rank has of a named parameter is one row and counts once, in however many states.
  void add_writers() {
    const ckpt::Catalog& catalog = checkpoint_.catalog();
    std::map<uint32_t, RankLoad> loads;
    std::map<uint32_t, std::set<std::string>> counted;
    std::set<std::tuple<uint32_t, std::string, std::vector<uint64_t>>> listed;
    for (const TensorEntry& tensor : catalog.tensors) {
      if (role_of(tensor) != KeyKind::OptimizerState) continue;
      const StateName state = state_name(tensor, is_megatron(checkpoint_));
      const bool is_counter = state.state == "step" && ckpt::element_count(tensor.shape) == 1;
      const std::string front = front_of(tensor.key);
      const auto place = places_.find({front, state.param});
      const bool is_named = report_.names != NameSource::Numbers && place != places_.end();
      const std::string name = is_named ? state.param : tensor.key;
      for (const Chunk& chunk : tensor.chunks) {
        const auto rank = writer_of(catalog.files[chunk.region.file].path);
        if (!rank) continue;
        const uint64_t elements = ckpt::element_count(chunk.box.sizes);
        RankLoad& load = loads.try_emplace(*rank, RankLoad{*rank, 0, 0, 0, {}}).first->second;
        load.element_count += elements;
        load.state_bytes += elements * ckpt::bytes_per_element(tensor.dtype);
        if (is_named && is_counter) continue;
        const std::string key = front + "\n" + name;
        if (!is_named || counted[*rank].insert(key).second) ++load.param_count;
        std::vector<uint64_t> box(chunk.box.offsets.begin(), chunk.box.offsets.end());
        if (is_named && !listed.emplace(*rank, key, std::move(box)).second) continue;
        const OfParam of = is_named ? place->second : OfParam{};
        report_.params.push_back({name,
                                  {chunk.box.sizes.begin(), chunk.box.sizes.end()},
                                  {},
                                  *rank,
                                  of.optimizer,
                                  of.group});
      }
    }
    for (const auto& [rank, load] : loads) report_.ranks.push_back(load);
  }

  // "app.optim" of "app.optim.state.fc.weight.exp_avg", as FlatGroup::optimizer.
  static std::string front_of(std::string_view key) {
    if (key.starts_with("state.")) return {};
    return std::string(key.substr(0, std::min(key.find(".state."), key.size())));
  }

  const OpenedTraining& checkpoint_;
  GroupReport& report_;
  const bool is_folder_;
  bool lists_all_ = true;
  std::vector<ListedParams> params_;                               // of report_.groups
  std::map<std::pair<std::string, std::string>, OfParam> places_;  // by optimizer and parameter
};

}  // namespace

std::string_view name(NameSource source) {
  static constexpr std::string_view kNames[] = {"training_state", "param_groups", "param_names",
                                                "model_order", "numbers"};
  return kNames[static_cast<size_t>(source)];
}

std::vector<std::pair<std::string, Value>> settings_of(const Value& group) {
  std::vector<std::pair<std::string, Value>> settings;
  for (size_t i = 0; group.is(Kind::Dict) && i < group.item_count(); ++i) {
    const auto [key, value] = group.item(i);
    const std::string name = ckpt::key_text(key);
    if (name != "params" && name != "param_names") settings.emplace_back(name, value);
  }
  return settings;
}

void add_stored(const OpenedTraining& checkpoint, GroupReport& report) {
  StoredGroups(checkpoint, report).run();
}

}  // namespace optim
