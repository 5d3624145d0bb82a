// Args that Megatron got after April 2026. Source: megatron/core/transformer/enums.py of
// core_v0.18.0 on.
#include "grid/later_args.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace optim {
namespace {

using ckpt::Kind;
using ckpt::Value;

constexpr std::string_view kLaterClasses[] = {"InferenceCudaGraphScope", "CudaGraphModule"};

// Of an enumeration's value, or of one in a list of such; empty: none of those.
std::string later_class_in(const Value& value) {
  if (value.is(Kind::List) || value.is(Kind::Tuple)) {
    for (size_t i = 0; i < value.size(); ++i) {
      std::string found = later_class_in(value[i]);
      if (!found.empty()) return found;
    }
    return {};
  }
  if (value.is(Kind::Dict)) {
    for (size_t i = 0; i < value.item_count(); ++i) {
      std::string found = later_class_in(value.item(i).second);
      if (!found.empty()) return found;
    }
    return {};
  }
  const bool is_built = value.is(Kind::Object) && value.callable().is(Kind::Global);
  if (!is_built) return {};
  const std::string_view name = value.callable().name();
  return std::ranges::find(kLaterClasses, name) == std::end(kLaterClasses) ? std::string()
                                                                           : std::string(name);
}

std::vector<std::pair<std::string, std::string>> later_args_of(const TrainingState& state) {
  const Value args = state.args();
  std::vector<std::pair<std::string, std::string>> found;
  for (size_t i = 0; i < args.item_count(); ++i) {
    const auto [name, value] = args.item(i);
    const std::string later = name.is(Kind::Str) ? later_class_in(value) : std::string();
    if (!later.empty()) found.emplace_back(name.text(), later);
  }
  return found;
}

}  // namespace

bool has_later_args(const TrainingState& state) { return !later_args_of(state).empty(); }

void drop_later_args(TrainingState& state) {
  for (const auto& [name, later] : later_args_of(state)) {
    state.common.tree.erase(state.args().id(), name);
    state.not_carried.push_back({"args." + name, "Megatron of April 2026 has no class " + later +
                                                     ", and could not load it"});
  }
}

}  // namespace optim
