#include "report/flat_groups.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <map>
#include <set>
#include <string_view>

#include <training/trainer_facts.h>

#include "model/tensor_names.h"
#include "state/words.h"

namespace optim {
namespace {

constexpr std::string_view kGroups = "param_groups";

// A stored setting: what is behind "param_groups." in its key, and where its value is.
struct FlatSetting {
  std::string rest;
  const ckpt::ObjectEntry* object = nullptr;
  const TensorEntry* tensor = nullptr;

  std::string first_step() const { return rest.substr(0, rest.find('.')); }
  std::string without_first() const {
    return rest.substr(std::min(rest.find('.'), rest.size() - 1) + 1);
  }
  std::string param() const { return rest.substr(0, rest.rfind('.')); }
  std::string name() const { return rest.substr(rest.rfind('.') + 1); }
};

// By the key in front of "param_groups".
using ByOptimizer = std::vector<std::pair<std::string, std::vector<FlatSetting>>>;

void add_setting(std::string_view key, FlatSetting setting, ByOptimizer& optimizers) {
  const size_t at = key.starts_with(kGroups) ? 0 : key.find(".param_groups");
  if (at == key.npos || key.find("/shard_") != key.npos) return;  // Megatron's, not settings
  const std::string optimizer(key.substr(0, at));
  std::string_view rest = key.substr(at + kGroups.size() + (at == 0 ? 0 : 1));
  if (!rest.empty() && rest.front() != '.') return;
  setting.rest = rest.substr(rest.empty() ? 0 : 1);
  if (optimizers.empty() || optimizers.back().first != optimizer) {
    const auto known = std::ranges::find(
        optimizers, optimizer, [](const auto& each) -> auto& { return each.first; });
    if (known != optimizers.end()) return known->second.push_back(std::move(setting));
    optimizers.push_back({optimizer, {}});
  }
  optimizers.back().second.push_back(std::move(setting));
}

ByOptimizer settings_in(const ckpt::Catalog& catalog) {
  ByOptimizer optimizers;
  for (const ckpt::ObjectEntry& object : catalog.objects) {
    if (object.region) add_setting(object.key, {{}, &object}, optimizers);
  }
  for (const TensorEntry& tensor : catalog.tensors) {
    if (tensor.file.empty()) add_setting(tensor.key, {{}, nullptr, &tensor}, optimizers);
  }
  return optimizers;
}

// "0.lr", "0.params": each number has its parameters beside its settings.
bool are_numbered(const std::vector<FlatSetting>& settings) {
  std::set<std::string> numbers, with_params;
  for (const FlatSetting& setting : settings) {
    if (!is_number(setting.first_step())) return false;
    numbers.insert(setting.first_step());
    if (setting.without_first() == "params") with_params.insert(setting.first_step());
  }
  return numbers == with_params;
}

class FlatGroupReader {
 public:
  explicit FlatGroupReader(const OpenedTraining& checkpoint) : checkpoint_(checkpoint) {}

  FlatGroups run() {
    for (const auto& [optimizer, settings] : settings_in(checkpoint_.catalog())) {
      if (settings.size() == 1 && settings[0].rest.empty()) {
        add_list(optimizer, settings[0]);
      } else if (are_numbered(settings)) {
        add_numbered(optimizer, settings);
      } else {
        add_named(optimizer, settings);
      }
    }
    return std::move(result_);
  }

 private:
  Value read(const FlatSetting& setting) {
    auto document = std::make_shared<Document>();
    if (setting.object != nullptr) {
      *document = checkpoint_.read_object(*setting.object);
    } else {
      const auto scalar = scalar_of(*setting.tensor, checkpoint_);
      ValueTree& tree = document->tree;
      tree.set_root(scalar ? tree.real(*scalar) : tree.str("a tensor"));
    }
    result_.documents.push_back(document);
    return document->tree.root();
  }

  static std::vector<std::string> names_in(const Value& params) {
    std::vector<std::string> names;
    if (!params.is(Kind::List) && !params.is(Kind::Tuple)) return names;
    for (size_t i = 0; i < params.size(); ++i) names.push_back(ckpt::key_text(params[i]));
    return names;
  }

  static void add(FlatGroup& group, const std::string& name, const Value& value) {
    if (name == "params") {
      group.params = names_in(value);
    } else if (name != "param_names") {
      group.settings.emplace_back(name, value);
    }
  }

  // One object that is the list of all groups.
  void add_list(const std::string& optimizer, const FlatSetting& setting) {
    const Value groups = read(setting);
    for (size_t i = 0; groups.is(Kind::List) && i < groups.size(); ++i) {
      FlatGroup group{optimizer, {}, {}};
      for (size_t j = 0; groups[i].is(Kind::Dict) && j < groups[i].item_count(); ++j) {
        const auto [key, value] = groups[i].item(j);
        add(group, ckpt::key_text(key), value);
      }
      result_.groups.push_back(std::move(group));
    }
  }

  void add_numbered(const std::string& optimizer, const std::vector<FlatSetting>& settings) {
    std::map<uint64_t, FlatGroup> groups;
    for (const FlatSetting& setting : settings) {
      if (setting.first_step().size() > 9) continue;  // not a group's number
      FlatGroup& group = groups[std::stoull(setting.first_step())];
      group.optimizer = optimizer;
      add(group, setting.without_first(), read(setting));
    }
    for (auto& [number, group] : groups) result_.groups.push_back(std::move(group));
  }

  void add_named(const std::string& optimizer, const std::vector<FlatSetting>& settings) {
    std::vector<std::string> params;  // in their order
    std::map<std::string, FlatGroup> by_param;
    for (const FlatSetting& setting : settings) {
      const auto [found, is_new] = by_param.try_emplace(setting.param());
      if (is_new) params.push_back(setting.param());
      found->second.settings.emplace_back(setting.name(), read(setting));
    }
    std::map<std::string, size_t> groups;  // by signature
    for (const std::string& param : params) {
      FlatGroup& own = by_param[param];
      const auto [found, is_new] =
          groups.try_emplace(signature_of_group(own, param), result_.groups.size());
      if (is_new) result_.groups.push_back({optimizer, std::move(own.settings), {}});
      result_.groups[found->second].params.push_back(param);
    }
  }

  // Parameters with a setting that cannot be compared have a group of their own.
  static std::string signature_of_group(const FlatGroup& group, const std::string& param) {
    std::map<std::string, std::string> values;  // ranks write them in other orders
    for (const auto& [name, value] : group.settings) {
      const auto of_value = signature_of(value);
      if (!of_value) return "of " + param;
      values.emplace(name, *of_value);
    }
    std::string signature;
    for (const auto& [name, value] : values) signature += name + "=" + value + ";";
    return signature;
  }

  const OpenedTraining& checkpoint_;
  FlatGroups result_;
};

// --- what tells values apart ---

constexpr int kNestingMax = 8;

std::optional<std::string> signature_at(const Value& value, int depth) {
  const auto kind = std::to_string(static_cast<int>(value.kind())) + ":";
  switch (value.kind()) {
    case Kind::None: return kind;
    case Kind::Bool:
    case Kind::Int: return kind + std::to_string(value.as_int());
    case Kind::Float: return kind + std::to_string(std::bit_cast<uint64_t>(value.as_float()));
    case Kind::BigInt:
    case Kind::Str: return kind + std::to_string(value.text().size()) + std::string(value.text());
    case Kind::List:
    case Kind::Tuple: break;
    default: return std::nullopt;
  }
  std::string signature = kind + "(";
  for (size_t i = 0; i < value.size() && depth < kNestingMax; ++i) {
    const auto element = signature_at(value[i], depth + 1);
    if (!element) return std::nullopt;
    signature += *element + ",";
  }
  return depth < kNestingMax ? std::optional(signature + ")") : std::nullopt;
}

}  // namespace

FlatGroups find_flat_groups(const OpenedTraining& checkpoint) {
  if (checkpoint.catalog().format != ckpt::Format::TorchDist) return {};
  return FlatGroupReader(checkpoint).run();
}

std::optional<std::pair<Value, std::shared_ptr<const Document>>> step_setting(
    const std::vector<double>& counts) {
  if (counts.empty()) return std::nullopt;
  const auto [least, greatest] = std::ranges::minmax(counts);
  auto document = std::make_shared<Document>();
  ValueTree& tree = document->tree;
  const auto add = [&](double count) {
    const bool is_whole = std::floor(count) == count && std::fabs(count) < 1e15;
    return is_whole ? tree.integer(static_cast<int64_t>(count)) : tree.real(count);
  };
  tree.set_root(least == greatest ? add(least) : tree.tuple({add(least), add(greatest)}));
  return std::pair(document->tree.root(), std::shared_ptr<const Document>(document));
}

std::optional<std::string> signature_of(const Value& value) { return signature_at(value, 0); }

}  // namespace optim
