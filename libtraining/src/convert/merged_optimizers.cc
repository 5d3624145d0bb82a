// What filed_as() compares without reading a byte, compared by bytes.
#include "convert/merged_optimizers.h"

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include <ckpt/error.h>
#include <ckpt/tensor_stream.h>

#include "state/object_tensors.h"

namespace optim {
namespace {

using ckpt::NodeId;
using ckpt::TensorEntry;
using Others = std::vector<std::pair<std::string, NodeId>>;

void require_equal(const Others& a, const Others& b, const ckpt::Document& document,
                   const OpenedTraining& source) {
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    const auto tensors_of = [&](const auto& item) {
      return tensors_of_object(document, document.tree.value(item.second), item.first);
    };
    const auto one = tensors_of(a[i]), other = tensors_of(b[i]);
    const bool is_equal =
        std::ranges::equal(one, other, [&](const TensorEntry& x, const TensorEntry& y) {
          return ckpt::same_bytes(x, source, y, source);
        });
    if (is_equal) continue;
    throw ckpt::Error(ckpt::ErrorCode::Corrupt, {.file = {}, .key = a[i].first},
                      "the optimizers of dense parameters and of experts, which become one, hold "
                      "different values of it",
                      "with --ep above 1 experts keep an optimizer of their own");
  }
}

}  // namespace

void require_equal_in_merged(const TrainingState& view, const TrainingState& filed,
                             const OpenedTraining& source) {
  std::map<uint32_t, const ChainedOptimizerState*> first;  // by optimizer of `filed`
  const ChainedOptimizerState* compared = nullptr;
  for (size_t i = 0; i < view.params.size(); ++i) {
    if (!view.params[i].info.requires_grad) continue;
    const ChainedOptimizerState& of = view.chain.at(view.params[i].optimizer);
    const auto [known, is_first] = first.emplace(filed.params[i].optimizer, &of);
    if (is_first || known->second == &of || compared == &of) continue;
    require_equal(known->second->others, of.others, view.common, source);
    require_equal(known->second->inner_others, of.inner_others, view.common, source);
    compared = &of;
  }
}

}  // namespace optim
