#include <algorithm>
#include <array>
#include <bit>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include <optim/rule_table.h>

#include "rules/refuse_key.h"
#include "step/layer_wise/layer_wise_sharding.h"

namespace optim {
namespace {

// FNV-1a: the same in every build.
class Digest {
 public:
  void add(std::string_view text) {
    for (const char letter : text) add_byte(static_cast<unsigned char>(letter));
    add_byte(0xFF);
  }
  void add(int64_t number) { add(std::to_string(number)); }
  void add(double number) { add(std::bit_cast<int64_t>(number)); }
  std::string text() const { return std::to_string(value_); }

 private:
  void add_byte(unsigned char byte) { value_ = (value_ ^ byte) * 1099511628211U; }
  uint64_t value_ = 14695981039346656037U;
};

// What must be the same, by the name that an error gives it.
using Facts = std::vector<std::pair<const char*, std::string>>;

std::string digest_of_config(const OptimizerConfig& config) {
  OptimizerConfig shared = config;
  shared.config_logger_dir.clear();  // a process may write elsewhere
  Digest digest;
  digest.add(to_json(shared));
  return digest.text();
}

std::string digest_of_options(const LayerWiseOptions& options) {
  Digest digest;
  digest.add(static_cast<int64_t>(options.init_state_fns.size()));
  digest.add(static_cast<int64_t>(options.ownership));
  digest.add(int64_t{options.layout_ranks.value_or(0)});
  digest.add(options.gather_bucket_bytes);
  return digest.text();
}

void add_override(Digest& digest, const std::string& field, const OverrideValue& value) {
  digest.add(field);
  std::visit(
      [&](const auto& v) {
        if constexpr (std::is_same_v<std::decay_t<decltype(v)>, std::string>) {
          digest.add(v);
        } else {
          digest.add(static_cast<double>(v));
        }
      },
      value);
}

struct DigestSetting {
  Digest& digest;
  void operator()(const bool* value) const { digest.add(int64_t{*value}); }
  void operator()(const int64_t* value) const { digest.add(*value); }
  void operator()(const double* value) const { digest.add(*value); }
  void operator()(const std::optional<bool>* value) const {
    digest.add(int64_t{*value ? static_cast<int>(**value) : -1});
  }
  void operator()(const SettingChoice& choice) const { digest.add(choice.names[*choice.value]); }
  void operator()(const std::optional<QkvSplit>* value) const {
    const QkvSplit split = value->value_or(QkvSplit());
    for (const int64_t rows : {split.query_rows, split.key_rows, split.value_rows}) {
      digest.add(rows);
    }
  }
  void operator()(const std::vector<NewtonSchulzStep>* rows) const {
    for (const auto& [a, b, c] : *rows) {
      for (const double number : {a, b, c}) digest.add(number);
    }
  }
  void operator()(const std::vector<std::pair<int64_t, int64_t>>* steps) const {
    for (const auto& [step, frequency] : *steps) {
      for (const int64_t number : {step, frequency}) digest.add(number);
    }
  }
};

void add(Digest& digest, RuleConfig rule) {
  digest.add(rule.name());
  for (const Setting& setting : settings_of(rule)) {
    digest.add(setting.name);
    std::visit(DigestSetting{digest}, setting.place);
  }
}

std::string digest_of_groups(const std::vector<OptimizerGroup*>& groups, bool of_experts) {
  Digest digest;
  for (const OptimizerGroup* const group : groups) {
    const ParamGroup& settings = group->settings;
    if (settings.is_expert_parallel != of_experts) continue;
    digest.add(settings.updated_by);
    digest.add(int64_t{settings.optimizer_index});
    digest.add(int64_t{settings.default_config});
    digest.add(int64_t{settings.is_decoupled_lr});
    for (const double number : {settings.wd_mult, settings.lr_mult, settings.max_lr.value_or(-1),
                                settings.min_lr.value_or(-1), group->lr, group->weight_decay}) {
      digest.add(number);
    }
    for (const auto& [field, value] : settings.others) add_override(digest, field, value);
    add(digest, group->rule_config);
    digest.add("next group");
  }
  return digest.text();
}

// Among the groups of experts, or among the others.
int64_t number_of_group(const ModelOfProcess& model, size_t id) {
  const auto end = model.groups.begin() + model.ownership.group_of[id];
  return std::count_if(model.groups.begin(), end, [&](const OptimizerGroup* group) {
    return group->settings.is_expert_parallel == model.ownership.is_expert[id];
  });
}

std::string digest_of_params(const ModelOfProcess& model, bool of_experts) {
  Digest digest;
  for (size_t id = 0; id < model.params.size(); ++id) {
    if (model.ownership.is_expert[id] != of_experts) continue;
    const Param& param = model.params[id];
    digest.add(param.info.name);
    digest.add(number_of_group(model, id));
    digest.add(c10::toString(param.param.scalar_type()));
    for (const int64_t size : param.param.sizes()) digest.add(size);
    const auto& is_in_first = model.options.is_in_first_model_chunk;
    digest.add(int64_t{is_in_first && is_in_first(param.info)});
  }
  return digest.text();
}

std::string digest_of_owners(const Ownership& ownership, bool of_experts) {
  Digest digest;
  for (size_t id = 0; id < ownership.owner.size(); ++id) {
    if (ownership.is_expert[id] == of_experts) digest.add(int64_t{ownership.owner[id]});
  }
  return digest.text();
}

void check_same(const Facts& facts, const char* group, Collectives& collectives) {
  std::string mine;
  for (const auto& [name, digest] : facts) mine += std::string(20 - digest.size(), ' ') + digest;
  const std::vector<std::string> all = collectives.all_gather(mine);
  for (size_t process = 0; process < all.size(); ++process) {
    for (size_t i = 0; i < facts.size(); ++i) {
      if (all[process].compare(20 * i, 20, mine, 20 * i, 20) == 0) continue;
      refuse_key({}, "process " + std::to_string(process) + " of the group " + group +
                         " disagrees with this one on: " + facts[i].first);
    }
  }
}

}  // namespace

void check_groups(const ProcessGroupCollection& groups, const LayerWiseOptions& options) {
  const int processes = rank_in(groups.dp_cp).size;
  const std::array<std::pair<const char*, const ProcessGroupPtr*>, 4> parallel = {
      {{"mp", &groups.mp},
       {"tp", &groups.tp},
       {"expt_tp", &groups.expt_tp},
       {"tp_ep_pp", &groups.tp_ep_pp}}};
  for (const auto& [name, group] : parallel) {
    if (rank_in(*group).size == 1 || groups.world) continue;
    refuse_key("world", std::string("is required when '") + name + "' has several processes");
  }
  if (groups.world && rank_in(groups.world).size % processes != 0) {
    refuse_key("world", "its size is not a multiple of the data-parallel group's");
  }
  const int expert_processes = rank_in(groups.expt_dp).size;
  if (processes % expert_processes != 0) {
    refuse_key("expt_dp", "its size does not divide the data-parallel group's");
  }
  const bool several_ranks = options.layout_ranks && *options.layout_ranks != uint32_t(processes);
  if (several_ranks && expert_processes != 1 && expert_processes != processes) {
    refuse_key("expt_dp", "requires as many ranks as processes");
  }
  if (options.gather_bucket_bytes < 1) refuse_key("gather_bucket_bytes", "is not positive");
}

void check_same_model(const ModelOfProcess& model, Collectives& dense, Collectives& experts) {
  check_same({{"configuration", digest_of_config(model.config)},
              {"options", digest_of_options(model.options)},
              {"parameter groups", digest_of_groups(model.groups, false)},
              {"parameters", digest_of_params(model, false)},
              {"owners of parameters", digest_of_owners(model.ownership, false)}},
             "dp_cp", dense);
  check_same({{"parameter groups of experts", digest_of_groups(model.groups, true)},
              {"experts", digest_of_params(model, true)},
              {"owners of experts", digest_of_owners(model.ownership, true)}},
             "expt_dp", experts);
}

}  // namespace optim
