#include "convert/corrected_vocabulary.h"

#include <string>

#include "grid/vocabulary.h"

namespace optim {

void correct_vocabulary(const SizeChange& change, TrainingState& state) {
  const auto given = change.vocabulary, stated = state.facts.vocabulary;
  const bool is_larger = given && stated && *given > *stated;  // else target_vocabulary() refuses
  if (!is_larger || *given > INT64_MAX || !contradicted_vocabulary(state)) return;
  ckpt::ValueTree& tree = state.common.tree;
  tree.put(state.args().id(), "vocab_size", tree.integer(static_cast<int64_t>(*given)));
  state.facts.vocabulary = given;
  state.not_carried.push_back({.what = "args.vocab_size",
                               .reason = std::to_string(*stated) + " -> " + std::to_string(*given) +
                                         ", as --vocab-size says: the stored rows contradict it",
                               .is_changed = true});
}

}  // namespace optim
