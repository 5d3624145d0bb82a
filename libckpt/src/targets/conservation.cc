#include "targets/conservation.h"

#include <stdexcept>
#include <string>

namespace ckpt {
namespace {

std::string text_of(const Holdings& holdings) {
  return std::to_string(holdings.tensors) + " tensors of " + std::to_string(holdings.elements) +
         " elements and " + std::to_string(holdings.objects) + " objects";
}

Holdings holdings_of_records(const TargetArchive& archive) {
  Holdings sum;
  for (const TargetRecord& record : archive.records) {
    const auto* source = std::get_if<TensorSource>(&record.source);
    if (source != nullptr) sum += {1, element_count(source->box.sizes), 0};
  }
  return sum;
}

Holdings holdings_of(const TargetArchive& archive) {
  if (const auto* tensor = std::get_if<BareTensor>(&archive.content)) {
    return {1, element_count(tensor->shape), 0};
  }
  if (std::holds_alternative<RawHeader>(archive.content)) return holdings_of_records(archive);
  Holdings sum = holdings_in(std::get<std::shared_ptr<const ValueTree>>(archive.content)->root());
  ++sum.objects;
  return sum;
}

Holdings holdings_of(const PlainEntry& entry) {
  if (entry.tensor) return ckpt::holdings_of(*entry.tensor);
  Holdings holdings = holdings_in(entry.document->tree.value(entry.node));
  ++holdings.objects;
  return holdings;
}

}  // namespace

Holdings& Holdings::operator+=(const Holdings& other) {
  tensors += other.tensors;
  elements += other.elements;
  objects += other.objects;
  return *this;
}

Holdings holdings_of(const TensorEntry& tensor) { return {1, element_count(tensor.shape), 0}; }

Holdings holdings_in(const Value& root) {
  Holdings sum;
  for (const TensorAt& tensor : tensors_in(root)) {
    sum += {1, element_count(tensor.view.shape), 0};
  }
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
  Holdings sum;
  for (const PlainEntry& entry : state.entries) sum += holdings_of(entry);
  return sum;
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
    if (is_listed(entry)) sum += holdings_of(entry);
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
