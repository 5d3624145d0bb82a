// Which rank has written which file, and what every rank states of all optimizers.
#include "layouts/torch/flat_files.h"

#include <ckpt/error.h>

#include "layouts/parts/rank_groups.h"
#include "layouts/torch/placed_value.h"
#include "state/value_compare.h"

namespace optim {
namespace {

using ckpt::Kind;
using ckpt::Value;

// A chain of optimizers is a list, of which this is one; an optimizer alone stands without a list.
Value state_in_chain(const Value& root, const Place& place, size_t index, size_t count) {
  if (count == 1) {
    if (!root.is(Kind::Dict)) place.corrupt("is not the state of one DistributedOptimizer");
    return root;
  }
  if (!root.is(Kind::List) || root.size() != count) {
    place.corrupt("is not a list of the states of " + std::to_string(count) +
                  " DistributedOptimizers");
  }
  return root[index];
}

}  // namespace

bool FlatFiles::writes(const WorldRank& rank, uint32_t optimizer) const {
  return buffers_.writes(optimizer, rank.at);
}

// Ranks that write to one file overwrite what the others wrote.
void FlatFiles::require_writers() const {
  std::map<std::string, uint32_t> writers;
  for (const WorldRank& rank : source_.ranks) {
    for (uint32_t i = 0; i < into_.view.chain.size(); ++i) {
      if (!writes(rank, i)) continue;
      const auto [known, is_first] = writers.emplace(rank.flat_file(), rank.rank);
      if (is_first || known->second == rank.rank) continue;
      Place{rank.flat_file(), ""}.corrupt("ranks " + std::to_string(known->second) + " and " +
                                          std::to_string(rank.rank) +
                                          " both write it, so that state was lost");
    }
  }
  for (const ckpt::FileEntry& file : source_.checkpoint.catalog().files) {
    if (!file.path.ends_with(kFlatFileName) || writers.contains(file.path)) continue;
    Place{file.path, ""}.corrupt("unexpected rank file: no rank of this layout writes it",
                                 "it may be left over from a run of another layout");
  }
}

void FlatFiles::read(const std::vector<ParamGroup>& groups) {
  require_writers();
  const size_t count = into_.view.chain.size();
  for (const WorldRank& rank : source_.ranks) {
    for (uint32_t i = 0; i < count; ++i) {
      if (!writes(rank, i)) continue;
      const Place root{rank.flat_file(), ""};
      const Value value = state_in_chain(source_.document(root.file).tree.root(), root, i, count);
      gathered_.read({rank.at, value, count == 1 ? root : root / i,
                      [this](const Place& at) -> const auto& { return source_.tensor_at(at);
    }
  },
                     buffers_.of(i, rank.at));
}
}  // namespace optim
states_.join();
read_groups(groups);
}

// Every rank states those of all optimizers.
void FlatFiles::read_groups(const std::vector<ParamGroup>& groups) {
  RankGroups merged(into_.common, into_.view);
  RankItems items(equal_items_of(source_.checkpoint));
  for (const WorldRank& rank : source_.ranks) {
    if (!rank.writes_model) continue;
    const ckpt::Document& document = source_.document(rank.model_file());
    const Place root{rank.model_file(), ""};
    const RankOptimizers stated =
        optimizers_of(member(document.tree.root(), "optimizer", root), root / "optimizer");
    if (stated.states.size() != into_.view.chain.size()) {
      (root / "optimizer")
          .corrupt("holds " + std::to_string(stated.states.size()) + " optimizers, expected " +
                   std::to_string(into_.view.chain.size()));
    }
    for (uint32_t i = 0; i < stated.states.size(); ++i) {
      const Place& place = stated.places[i];
      const Value inner = member(stated.states[i], "optimizer", place);
      require_state_in_buffers(inner, place / "optimizer");
      const Value values = list_member(inner, "param_groups", place / "optimizer");
      merged.add_list(
          i, groups,
          {values, document, place / "optimizer" / "param_groups", rank_name(place.file)});
      items.add({rank.rank, i, false, document, stated.states[i], place}, {"optimizer"});
      items.add({rank.rank, i, true, document, inner, place / "optimizer"},
                {"state", "param_groups"});
    }
  }
  items.settle(into_.common, into_.view);
}

}  // namespace optim
