// A segment's chunks become chunks of the whole, behind those of the segments before it.
#include "layouts/parts/segmented_tensors.h"

#include <algorithm>

#include <ckpt/error.h>

#include "layouts/parts/store_errors.h"

namespace optim {
namespace {

using ckpt::TensorEntry;
using store_errors::corrupt;

// "optimizer.state.exp_avg.decoder.layers.0.mixer.A_log": where the parameter's key begins.
size_t begin_of_param(std::string_view key) {
  for (const std::string_view layers : {kLayersPrefix, kMtpLayersPrefix}) {
    const size_t found = key.find(layers);
    if (found == 0 || (found != key.npos && key[found - 1] == '.')) return found;
  }
  return key.npos;
}

struct Segments {
  size_t begin_of_param = 0;
  std::vector<size_t> tensors;  // of the catalog; [segment], npos: it has none
};

bool fit(const TensorEntry& a, const TensorEntry& b, size_t axis) {
  if (a.dtype != b.dtype || a.shape.size() != b.shape.size()) return false;
  for (size_t i = 0; i < a.shape.size(); ++i) {
    if (i != axis && a.shape[i] != b.shape[i]) return false;
  }
  return true;
}

}  // namespace

SegmentedTensors::SegmentedTensors(const ckpt::Catalog& catalog, const KeyRules& rules) {
  constexpr size_t kNone = ~size_t{0};
  std::map<std::string, Segments> by_key;
  for (size_t i = 0; i < catalog.tensors.size(); ++i) {
    const TensorEntry& tensor = catalog.tensors[i];
    const size_t dot = tensor.key.rfind('.');
    const bool may_be =
        tensor.file.empty() && dot != tensor.key.npos &&
        rules.table->is_name_of_segment(std::string_view(tensor.key).substr(dot + 1));
    const size_t begin = may_be ? begin_of_param(tensor.key) : tensor.key.npos;
    if (begin == tensor.key.npos) continue;
    const auto found = segment_of_key(std::string_view(tensor.key).substr(begin), rules);
    if (!found) continue;
    Segments& segments = by_key[tensor.key.substr(0, dot)];
    segments.begin_of_param = begin;
    segments.tensors.resize(found->rule->segments.size(), kNone);
    segments.tensors[found->segment] = i;
  }
  for (const auto& [key, segments] : by_key) {
    if (std::ranges::count(segments.tensors, kNone) > 0) continue;
    std::vector<const TensorEntry*> tensors;
    is_joined_.resize(catalog.tensors.size());
    for (const size_t tensor : segments.tensors) {
      is_joined_[tensor] = true;
      tensors.push_back(&catalog.tensors[tensor]);
    }
    const std::string param = key.substr(segments.begin_of_param);
    const size_t axis = stacked_axes(param, rules).count();
    join(key, axis, tensors);
    std::vector<uint64_t> sections;
    for (const TensorEntry* const tensor : tensors) sections.push_back(tensor->shape[axis]);
    const auto [known, is_first] = sections_.emplace(param, sections);
    if (!is_first && known->second != sections) {
      corrupt(key, "has segments of other sizes than the parameter, or another state of it");
    }
  }
}

void SegmentedTensors::join(const std::string& key, size_t axis,
                            const std::vector<const TensorEntry*>& of) {
  TensorEntry whole = *of.front();
  for (const TensorEntry* const segment : of) {
    if (segment->shape.size() <= axis || !fit(*of.front(), *segment, axis)) {
      corrupt(segment->key, "has a different type or shape from '" +
                                ckpt::escaped(of.front()->key) + "', a part of the same tensor");
    }
    if (segment == of.front()) continue;
    for (ckpt::Chunk chunk : segment->chunks) {
      chunk.box.offsets[axis] += whole.shape[axis];
      whole.chunks.push_back(std::move(chunk));
    }
    whole.shape[axis] += segment->shape[axis];
  }
  whole.key = key;
  joined_.push_back(std::move(whole));
}

const std::vector<uint64_t>* SegmentedTensors::sections(const std::string& key) const {
  const auto found = sections_.find(key);
  return found == sections_.end() ? nullptr : &found->second;
}

}  // namespace optim
