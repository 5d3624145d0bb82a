#include "targets/conservation.h"

#include <stdexcept>
#include <string>

namespace ckpt {
namespace {

std::string text_of(const Holdings& holdings) {
  return std::to_string(holdings.tensors) + " tensors of " + std::to_string(holdings.elements) +
         " elements and " + std::to_string(holdings.objects) + " objects";
}

Holdings one_tensor(const Extents& shape) { return {1, element_count(shape), 0}; }

// With the tensors in it.
Holdings one_object(const Value& root) {
  Holdings sum{0, 0, 1};
  sum += holdings_in(root);
  return sum;
}

Holdings holdings_of(const TargetArchive& archive) {
  const auto* const bare = std::get_if<BareTensor>(&archive.content);
  if (bare != nullptr) return one_tensor(bare->shape);
  const auto* const tree = std::get_if<std::shared_ptr<const ValueTree>>(&archive.content);
  if (tree != nullptr) return one_object((*tree)->root());
  Holdings sum;
  for (const TargetRecord& record : archive.records) {
    const auto* source = std::get_if<TensorSource>(&record.source);
    if (source != nullptr) sum += one_tensor(source->box.sizes);
  }
  return sum;
}

}  // namespace

Holdings& Holdings::operator+=(const Holdings& other) {
  tensors += other.tensors;
  elements += other.elements;
  objects += other.objects;
  return *this;
}

Holdings holdings_in(const Value& root) {
  Holdings sum;
  for (const TensorAt& tensor : tensors_in(root)) sum += one_tensor(tensor.view.shape);
  return sum;
}

Holdings holdings_of(const Target& target) {
  Holdings sum;
  for (const TargetFile& file : target.files) {
    for (const TargetArchive& archive : file.archives) sum += holdings_of(archive);
  }
  return sum;
}

Holdings holdings_of(const PlainState& state) {
  return listed_holdings(state, [](const PlainEntry&) { return true; });
}

Holdings holdings_of_mappings(const PlainState& state) {
  Holdings sum;
  for (const auto& [place, mapping] : MappingTypes(state.entries).objects()) {
    const auto attributes = mapping.state();
    if (attributes && attributes->is(Kind::Dict)) sum += holdings_in(*attributes);
  }
  return sum;
}

Holdings listed_holdings(const PlainState& state, bool (*is_listed)(const PlainEntry&)) {
  Holdings sum;
  for (const PlainEntry& entry : state.entries) {
    if (!is_listed(entry)) continue;
    sum += entry.tensor ? one_tensor(entry.tensor->shape)
                        : one_object(entry.document->tree.value(entry.node));
  }
  return sum;
}

void check_conserved(const Holdings& held, const Holdings& carried, const Holdings& listed) {
  Holdings sum = carried;
  sum += listed;
  if (sum == held) return;
  throw std::logic_error("the source holds " + text_of(held) + ", the target holds " +
                         text_of(carried) + ", and " + text_of(listed) +
                         " are listed as not carried");
}

}  // namespace ckpt
