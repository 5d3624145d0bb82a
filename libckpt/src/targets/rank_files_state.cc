// A state of names as optimizer.state_dict() has it: numbers, in the order of the groups.
// Source: torch/distributed/checkpoint/state_dict.py of PyTorch 2.11 (_split_optim_state_dict).
#include <algorithm>
#include <map>
#include <memory>
#include <utility>

#include <ckpt/error.h>

#include "base/text.h"
#include "targets/plain_target.h"

namespace ckpt {
namespace {

bool is_at(const PlainEntry& entry, std::string_view first, std::string_view second) {
  return entry.path.size() > 2 && entry.path[0].text == first && entry.path[1].text == second;
}

[[noreturn]] void refuse(const PlainEntry& entry, std::string problem, const char* hint = "") {
  throw Error(ErrorCode::Unsupported, {{}, {}, entry.key}, std::move(problem), hint);
}

class Numbering {
 public:
  explicit Numbering(PlainState& state) : state_(state) {}

  void run() {
    std::map<uint64_t, PlainEntry*> groups;
    for (PlainEntry& entry : state_.entries) {
      if (!is_at(entry, "optim", "param_groups")) continue;
      const auto group = number_in<uint64_t>(entry.path[2].text);
      if (!group || entry.path.size() != 4) {
        refuse(entry, "is keyed by a parameter's name: nothing says which groups there were",
               "save without flatten_optimizer_state_dict, or --exclude the optimizer");
      }
      if (entry.path[3].text == "params") groups.emplace(*group, &entry);
    }
    for (const auto& [group, entry] : groups) number(*entry);
    for (PlainEntry& entry : state_.entries) {
      if (is_at(entry, "optim", "state")) set_number(entry);
    }
  }

 private:
  // The parameters of a group, which become numbers.
  void number(PlainEntry& group) {
    auto made = std::make_shared<Document>();
    const NodeId list = made->tree.list();
    const bool is_list = !group.tensor && group.document->tree.value(group.node).is(Kind::List);
    if (!is_list) refuse(group, "is not a list of parameters");
    const Value params = group.document->tree.value(group.node);
    for (size_t i = 0; i < params.size(); ++i) {
      const bool is_name = params[i].is(Kind::Str);
      if (!is_name && !params[i].is(Kind::Int)) refuse(group, "is not a list of parameters");
      const int64_t number = is_name ? static_cast<int64_t>(numbers_.size()) : params[i].as_int();
      const std::string name = key_text(params[i]);
      if (!numbers_.emplace(name, number).second) refuse(group, "has a parameter twice");
      if (is_name) state_.param_names.push_back(name);
      made->tree.append(list, made->tree.integer(number));
    }
    made->tree.set_root(list);
    group.document = std::move(made);
    group.node = list;
  }

  void set_number(PlainEntry& entry) {
    PathStep& step = entry.path[2];
    const auto number = numbers_.find(step.text);
    if (number == numbers_.end()) refuse(entry, "belongs to a parameter that is in no group");
    if (!state_.renamed_keys) state_.renamed_keys = std::make_shared<ValueTree>();
    step.text = std::to_string(number->second);
    step.key = state_.renamed_keys->value(state_.renamed_keys->integer(number->second));
    entry.key = joined(entry.path);
  }

  PlainState& state_;
  std::map<std::string, int64_t, std::less<>> numbers_;
};

// A model's own state dict, of names without steps, in its place. Not a training state whose keys
// are flat: what is a model in it, only its names say.
void put_into_model(PlainState& state) {
  constexpr std::string_view kOthers[] = {"optim.", "optimizer.", "extra_state.", "ranks."};
  for (const PlainEntry& entry : state.entries) {
    const bool is_other = std::ranges::any_of(
        kOthers, [&](std::string_view front) { return entry.key.starts_with(front); });
    if (!entry.tensor || entry.path.size() != 1 || is_other) return;
  }
  for (PlainEntry& entry : state.entries) {
    entry.path.insert(entry.path.begin(), {"model"});
    entry.key = joined(entry.path);
  }
}

}  // namespace

void number_for_rank_files(uint64_t ranks, PlainState& state) {
  std::erase_if(state.entries, [&](const PlainEntry& entry) {
    if (entry.path.size() < 3 || entry.path[0].text != "ranks") return false;
    if (number_in<uint64_t>(entry.path[1].text).value_or(0) < ranks) return false;
    state.not_carried.push_back({entry.path[2].text + " of rank " + entry.path[1].text,
                                 "there is no such rank in the new files"});
    return true;
  });
  put_into_model(state);
  Numbering(state).run();
}

}  // namespace ckpt
