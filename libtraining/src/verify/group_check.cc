#include <cmath>
#include <iomanip>
#include <map>
#include <sstream>
#include <tuple>
#include <utility>

#include "args/value_place.h"
#include "grid/rank_files.h"
#include "grid/whole_states.h"
#include "layouts/group_search.h"
#include "state/value_compare.h"
#include "state/words.h"
#include "verify/checks.h"

namespace optim {
namespace {

// A step count of the types in which optimizers keep it; `bytes`: the element of a tensor.
std::optional<double> number_in(const Value& step, const std::optional<std::string>& bytes) {
  if (step.is(Kind::Int)) return static_cast<double>(step.as_int());
  if (step.is(Kind::Float)) return step.as_float();
  const auto tensor = ckpt::as_tensor(step);
  if (!tensor || !bytes) return std::nullopt;
  return step_number(tensor->dtype, *bytes);
}

bool is_count(double number) {
  return std::isfinite(number) && number >= 0 && number == std::floor(number);
}

std::string number_text(double number) {
  if (std::isnan(number)) return "NaN";
  std::ostringstream text;
  text << std::setprecision(15) << number;
  return text.str();
}

class GroupCheck {
 public:
  GroupCheck(const OpenedTraining& checkpoint, VerifyReport& report)
      : checkpoint_(checkpoint), report_(report) {}

  void run(const FoundOptimizer& found) {
    const uint32_t number = optimizers_[found.file + found.object]++;
    check_common_step(found);
    compare_scalers(found, number);
    std::map<std::string, size_t> identities;
    std::map<std::string, uint32_t> counts;  // of groups with one identity
    for (size_t i = 0; i < found.groups.size(); ++i) {
      const Value group = found.groups[i];
      if (!group.is(Kind::Dict)) continue;
      ++report_.group_count;
      check_settings(found, i);
      const auto identity = group_identity(group);
      // Megatron's optimizers have one count, on all ranks; others may have one for each group.
      FirstSteps own;
      check_steps(found, i, identity ? steps_[number] : own);
      if (!identity) continue;
      compare_with_other_ranks(found, i, {scope_of(found), number, *identity, counts[*identity]++});
      const auto [known, is_new] = identities.try_emplace(*identity, i);
      if (!is_new && differ(found.groups[known->second], group)) {
        compare_identities(found, known->second, i, *identity);
      }
    }
  }

 private:
  struct Step {
    std::string whose;
    std::optional<std::string> text;  // none where it could not be read
  };
  // Of groups and of parameters, which may count in different types.
  struct FirstSteps {
    std::optional<std::string> group, param;
  };

  void compare_identities(const FoundOptimizer& found, size_t known, size_t group,
                          const std::string& identity) {
    const std::string other = "group " + std::to_string(known);
    const auto setting = told_apart_by(found.groups[known], found.groups[group]);
    if (!setting) {
      return find(found, place_of(group),
                  "Megatron cannot distinguish it from " + other + " (" + identity + ")",
                  "when loaded, both take the settings of the later one");
    }
    report_.not_proven.push_back(
        {"the settings of group " + std::to_string(group) + " once they are loaded",
         "Megatron before core 0.19 cannot distinguish it from " + other +
             ", and gives both the "
             "settings of the later one; core 0.19 does, by " +
             std::string(*setting)});
  }

  // What Megatron looks at, too, since core 0.19 (its change 4705); None counts as missing.
  static std::optional<std::string_view> told_apart_by(const Value& a, const Value& b) {
    for (const std::string_view key : {"max_lr", "min_lr", "start_wd", "end_wd", "optimizer"}) {
      const auto of_a = stated(a, key), of_b = stated(b, key);
      const bool both = of_a && of_b;
      if (both ? first_difference(*of_a, *of_b).has_value() : of_a || of_b) return key;
    }
    return std::nullopt;
  }

  static std::optional<Value> stated(const Value& group, std::string_view key) {
    const auto value = group.find(key);
    return value && value->is(Kind::None) ? std::nullopt : value;
  }

  // Settings that both have: all but the parameters.
  static bool differ(const Value& a, const Value& b) {
    for (const auto& [key, value] : ckpt::items_of(a)) {
      if (!key.is(Kind::Str) || key.text() == "params" || key.text() == "step") continue;
      const auto other = b.find(key.text());
      if (!other || first_difference(value, *other)) return true;
    }
    return false;
  }

  // Which groups of several ranks are copies of one: their settings must be equal.
  struct OneGroup {
    std::optional<std::string> scope;  // nullopt: no other rank states it
    uint32_t optimizer;                // of the chain
    std::string identity;
    uint32_t number;  // of those with that identity
    auto operator<=>(const OneGroup&) const = default;
  };

  // "" for rank files, and for objects of one DistributedOptimizer what their keys call it.
  static std::optional<std::string> scope_of(const FoundOptimizer& found) {
    if (found.file.starts_with("mp_rank_")) return "";
    const size_t end = found.object.find("dp_group_idx_");
    return end != found.object.npos ? std::optional(found.object.substr(0, end)) : std::nullopt;
  }

  // Against the first rank that holds parameters of the group: its copy is complete.
  void compare_with_other_ranks(const FoundOptimizer& found, size_t group, const OneGroup& which) {
    if (!which.scope) return;
    const StatedGroup own{found.groups[group],
                          rank_name(found.object.empty() ? found.file : found.object),
                          found.groups[group].find("step") || !is_without_buffers(found)};
    const auto [known, is_first] = stated_.try_emplace(which, own, found.document);
    if (is_first) return;
    auto& [stated, document] = known->second;
    if (const auto difference = group_difference(stated, own)) {
      find(found, place_of(group) + escaped_step(difference->key), difference->problem,
           kMixedFilesHint);
    }
    if (!is_unstepped(stated)) return;
    stated = own;
    document = found.document;
  }

  // All that a rank has is frozen: its DistributedOptimizer has no buffer.
  bool is_without_buffers(const FoundOptimizer& found) const {
    const ckpt::Catalog& catalog = checkpoint_.catalog();
    if (found.file.empty()) {
      const std::string copy = found.object.substr(0, found.object.rfind('.') + 1);
      return !copy.empty() && std::ranges::none_of(catalog.tensors, [&](const TensorEntry& tensor) {
        return tensor.key.starts_with(copy);
      });
    }
    const std::string file =
        found.file.substr(0, found.file.rfind('/') + 1) + std::string(kFlatFileName);
    return std::ranges::find(catalog.files, file, &ckpt::FileEntry::path) != catalog.files.end() &&
           std::ranges::find(catalog.tensors, file, &TensorEntry::file) == catalog.tensors.end();
  }

  // Loss scale and its counters, of which all ranks have the same: they step or skip together.
  void compare_scalers(const FoundOptimizer& found, uint32_t optimizer) {
    const auto scope = scope_of(found);
    if (!found.scaler || !found.scaler->is(Kind::Dict) || !scope) return;
    const std::string parent = found.pointer.substr(0, found.pointer.rfind('/'));
    for (const auto& [key, value] : ckpt::items_of(*found.scaler)) {
      const std::string name = ckpt::key_text(key);
      const std::string pointer = parent + "/grad_scaler" + escaped_step(name);
      const auto text = step_text(found, value, pointer);
      if (!text) continue;
      const auto [first, is_first] = scalers_.try_emplace(
          {*scope, optimizer, name}, *text, found.file.empty() ? found.object : found.file);
      if (is_first || first->second.first == *text) continue;
      find_at(found, pointer, "differs from that of " + rank_name(first->second.second),
              kMixedFilesHint);
    }
  }

  void check_settings(const FoundOptimizer& found, size_t group) {
    const Value settings = found.groups[group];
    for (const auto& [key, value] : ckpt::items_of(settings)) {
      const bool is_nan = value.is(Kind::Float) && std::isnan(value.as_float());
      if (!is_nan || !key.is(Kind::Str) || key.text() == "step") continue;  // a step is a count
      find(found, place_of(group) + escaped_step(key.text()), "is NaN",
           "the next step would make every parameter of the group NaN");
    }
  }

  // The steps that torch's AdamW keeps for each parameter, and fused optimizers in the group.
  void check_steps(const FoundOptimizer& found, size_t group, FirstSteps& first) {
    if (const auto step = found.groups[group].find("step")) {
      auto text = step_text(found, *step, {});
      check_count(found, place_of(group), "the group", number_in(*step, text));
      compare(found, group, {"the group", std::move(text)}, first.group);
    }
    const auto state = found.state();
    const auto params = found.groups[group].find("params");
    if (!state || !state->is(Kind::Dict) || !params || !params->is(Kind::List)) return;
    for (size_t i = 0; i < params->size(); ++i) {
      const Value param = (*params)[i];
      const auto own = param.is(Kind::Int) ? state->find(param.as_int()) : std::nullopt;
      const auto step = own && own->is(Kind::Dict) ? own->find("step") : std::nullopt;
      if (!step) continue;
      const std::string number = std::to_string(param.as_int());
      auto text = step_text(found, *step, found.pointer + "/state/" + number + "/step");
      const auto count = number_in(*step, text);
      // NaN and infinity are findings of the tensor that holds the count.
      if (!first.param && count && std::isfinite(*count)) {
        check_count(found, place_of(group), "parameter " + number, count);
      }
      if (!compare(found, group, {"parameter " + number, std::move(text)}, first.param)) return;
    }
  }

  // The one step of all parameters, as torch_dist keeps it.
  void check_common_step(const FoundOptimizer& found) {
    const auto state = found.state();
    if (!state || !state->is(Kind::Dict)) return;
    const auto step = state->find("common_step");
    if (!step) return;
    const std::string place = "/state/common_step";
    check_count(found, place, "the common step",
                number_in(*step, step_text(found, *step, found.pointer + place)));
  }

  void check_count(const FoundOptimizer& found, const std::string& place, const std::string& whose,
                   std::optional<double> count) {
    if (!count || is_count(*count)) return;
    find(found, place, whose + " has the step count " + number_text(*count),
         "a step count is a whole number of at least 0");
  }

  // Remembers the first step; false, and a finding, where one differs from it.
  bool compare(const FoundOptimizer& found, size_t group, const Step& step,
               std::optional<std::string>& first) {
    if (!first) first = step.text;
    if (!step.text || *first == *step.text) return true;
    find(found, place_of(group), step.whose + " has a different step count from those before it",
         "the state may come from different iterations");
    return false;
  }

  std::optional<std::string> step_text(const FoundOptimizer& found, const Value& step,
                                       const std::string& pointer) const {
    if (!ckpt::as_tensor(step)) return ckpt::key_text(step);
    const TensorEntry* tensor = checkpoint_.catalog().find_tensor(pointer, found.file);
    if (tensor == nullptr || ckpt::element_count(tensor->shape) != 1) return std::nullopt;
    std::string bytes(ckpt::count_bytes(*tensor), '\0');
    checkpoint_.read(*tensor, ckpt::whole(tensor->shape), std::as_writable_bytes(std::span(bytes)));
    return bytes;
  }

  static std::string place_of(size_t group) { return "/param_groups/" + std::to_string(group); }

  void find(const FoundOptimizer& found, const std::string& place, std::string problem,
            std::string hint) {
    find_at(found, found.pointer + place, std::move(problem), std::move(hint));
  }

  void find_at(const FoundOptimizer& found, const std::string& pointer, std::string problem,
               std::string hint) {
    std::string file = checkpoint_.shown_name(found.file);
    if (found.file.empty()) file = found.object.empty() ? checkpoint_.file_name(0) : "";
    report_.find({file, std::nullopt, found.object + pointer}, std::move(problem), std::move(hint));
  }

  const OpenedTraining& checkpoint_;
  VerifyReport& report_;
  std::map<std::string, uint32_t> optimizers_;  // found in a file
  std::map<uint32_t, FirstSteps> steps_;        // of each optimizer of the chain
  // [scope, optimizer, field] what the first rank states, and where
  std::map<std::tuple<std::string, uint32_t, std::string>, std::pair<std::string, std::string>>
      scalers_;
  // With the document that keeps it alive.
  std::map<OneGroup, std::pair<StatedGroup, std::shared_ptr<const Document>>> stated_;
};

}  // namespace

void check_groups(const OpenedTraining& checkpoint, VerifyReport& report) {
  GroupCheck check(checkpoint, report);
  for (const FoundOptimizer& found : find_optimizers(checkpoint)) check.run(found);
}

}  // namespace optim
