#include "huggingface/learned_groups.h"

#include <algorithm>
#include <set>
#include <unordered_map>
#include <utility>

#include <ckpt/printed.h>

#include "state/words.h"

namespace optim {
namespace {

// Of the dimension along which a source's vectors are counted.
uint64_t index_size(const Extents& shape, bool of_columns) {
  if (shape.size() < 2) return 1;
  return ckpt::element_count(shape) / (of_columns ? shape[shape.size() - 2] : shape.back());
}

// Dimensions of a target without the one of its vectors.
std::vector<uint64_t> index_dims(const Extents& shape, bool to_columns) {
  std::vector<uint64_t> dims(shape.begin(), shape.end());
  dims.erase(dims.end() - (to_columns ? 2 : 1));
  return dims;
}

// The sources by pattern; experts, if there are any, from 0 on in each.
bool sort_sources(const ContentMatch& match, const LearnedSides& sides, VectorRule& rule) {
  std::map<std::string, std::set<uint32_t>> experts;
  for (const uint32_t source : match.sources) {
    const LearnedTensor& tensor = sides.model[source];
    auto& numbers = experts[tensor.numbered.pattern];
    if (!numbers.insert(tensor.numbered.numbers.expert.value_or(0)).second) return false;
    if (numbers.size() > 1) continue;
    rule.sources.push_back(tensor.numbered.pattern);
    rule.shapes.push_back(tensor.entry->shape);
  }
  const size_t count = experts.begin()->second.size();
  if (count > 1) rule.expert_count = static_cast<uint32_t>(count);
  return std::ranges::all_of(experts, [&](const auto& one) {
    return one.second.size() == count && (count == 1 || *one.second.rbegin() + 1 == count);
  });
}

// Places of the target's vectors; those of expert e stand at e in the stack.
std::optional<std::vector<VectorPlace>> places_of(const LearnedTensor& tensor,
                                                  const ContentMatch& match,
                                                  const LearnedSides& sides, VectorRule& rule) {
  struct Found {
    uint32_t pattern, expert;
    uint64_t index;
    bool is_twice;
  };
  std::unordered_map<uint64_t, Found> found;
  for (const uint32_t source : match.sources) {
    const LearnedTensor& one = sides.model[source];
    const auto known = std::ranges::find(rule.sources, one.numbered.pattern);
    const auto pattern = static_cast<uint32_t>(known - rule.sources.begin());
    const ckpt::VectorPrint print = ckpt::print_of(*one.entry, sides.model_payloads);
    const auto& hashes = match.of_columns ? print.columns : print.rows;
    for (uint64_t i = 0; i < hashes.size(); ++i) {
      const uint32_t expert = rule.expert_count ? *one.numbered.numbers.expert : 0;
      const auto [at, is_new] = found.try_emplace(hashes[i], Found{pattern, expert, i, false});
      at->second.is_twice |= !is_new || hashes[i] == ckpt::VectorPrint::kNothing;
    }
  }
  const ckpt::VectorPrint print = ckpt::print_of(*tensor.entry, sides.folder_payloads);
  const auto& hashes = match.to_columns ? print.columns : print.rows;
  const size_t experts = std::max<size_t>(1, rule.expert_count);
  if (hashes.empty() || hashes.size() % experts != 0) return std::nullopt;
  const size_t count = hashes.size() / experts;
  std::vector<VectorPlace> places(count);
  for (size_t i = 0; i < hashes.size(); ++i) {
    const auto at = found.find(hashes[i]);
    if (at == found.end() || at->second.is_twice) continue;
    if (at->second.expert != i / count) return std::nullopt;
    VectorPlace& place = places[i % count];
    if (place.is_known() && place.index != at->second.index) return std::nullopt;
    place = {at->second.pattern, at->second.index};
  }
  rule.alike_count = static_cast<uint64_t>(
      std::ranges::count_if(places, [](const VectorPlace& place) { return !place.is_known(); }));
  return places;
}

// Writes one part of a row.
class PartWriter {
 public:
  PartWriter(const VectorRule& rule, const LearnedVocabulary& vocabulary, LearnedRow& made)
      : rule_(rule), vocabulary_(vocabulary), made_(made) {}

  bool write(const IndexPart& part, bool has_vector) {
    const std::string& source = rule_.sources[part.source];
    const Extents& shape = rule_.shapes[part.source];
    const uint64_t size = has_vector ? index_size(shape, rule_.of_columns) : shape[0];
    auto radix = radix_of(part, size);
    if (!radix) return false;
    RowPart row{{source}, {}, {}};
    if (radix->row_count != size) {
      if (rule_.of_columns) return false;
      row.rows = std::to_string(radix->first_row) + ":" +
                 std::to_string(radix->first_row + radix->row_count) + ":" + std::to_string(size);
    }
    add_single(part, *radix);
    axis_names_.assign(part.axes.size(), "");
    std::string index = index_group(*radix, source, row);
    std::string vector;
    if (has_vector) vector = named(shape.size() < 2 ? shape[0] : vector_size(shape));
    row.view = view_of(shape, index, vector);
    row.as = target_of(part, vector);
    if (row.view.empty() || row.as.empty()) return false;
    if (row.as == row.view) row.as.clear();
    made_.row.parts.push_back(std::move(row));
    return true;
  }

 private:
  uint64_t vector_size(const Extents& shape) const {
    return rule_.of_columns ? shape[shape.size() - 2] : shape.back();
  }
  // An axis that parts follow each other along, of one index in this part but not in all.
  void add_single(const IndexPart& part, Radix& radix) const {
    const auto joined = rule_.rule.joined;
    if (!joined || part.axes[*joined].size > 1) return;
    for (const IndexPart& other : rule_.rule.parts) {
      if (other.axes[*joined].size == 1) continue;
      radix.axes.push_back({1, 0, 1, *joined});
      return;
    }
  }
  std::string named(uint64_t size) {
    std::string name = std::string(1, static_cast<char>('a' + letter_++)) + std::to_string(size);
    made_.let[name] = std::to_string(size);
    return name;
  }
  std::string index_group(const Radix& radix, const std::string& source, RowPart& row) {
    std::string group;
    for (const RadixAxis& axis : radix.axes) {
      const bool is_vocabulary = radix.axes.size() == 1 && axis.size == vocabulary_.rows &&
                                 vocabulary_.rules.is_vocabulary(source);
      const std::string name = is_vocabulary ? "vocabulary_rows" : named(axis.size);
      group += (group.empty() ? "" : " ") + name;
      if (is_vocabulary && axis.first == 0 && axis.count == vocabulary_.tokens) {
        row.slice[name] = "0:vocabulary";
      } else if (axis.count < axis.size) {
        row.slice[name] =
            std::to_string(axis.first) + ":" + std::to_string(axis.first + axis.count);
      }
      if (axis.target == RadixAxis::kNone) {
        fixed_.push_back(name);
      } else {
        axis_names_[axis.target] = name;
      }
    }
    return radix.axes.size() > 1 ? "(" + group + ")" : group;
  }
  // The source's dimensions; those of one index between have names, too.
  std::string view_of(const Extents& shape, const std::string& index, const std::string& vector) {
    if (vector.empty()) return index;
    if (shape.size() < 2) return vector;
    if (rule_.of_columns) return shape.size() == 2 ? vector + " " + index : "";
    std::string middle;
    for (size_t dim = 1; dim + 1 < shape.size(); ++dim) {
      if (shape[dim] != 1) return "";
      fixed_.push_back(named(1));
      middle += " " + fixed_.back();
    }
    std::string first = index;
    if (first.empty()) fixed_.push_back(first = named(1));
    return first + middle + " " + vector;
  }
  std::string target_of(const IndexPart& part, const std::string& vector) {
    const size_t vector_dim =
        vector.empty() ? SIZE_MAX : rule_.target.size() - (rule_.to_columns ? 2 : 1);
    size_t axis = 0;
    std::string whole;
    for (size_t dim = 0; dim < rule_.target.size(); ++dim) {
      std::vector<std::string> group;
      if (dim == vector_dim) {
        group.push_back(vector);
      } else {
        uint64_t left = rule_.target[dim];
        if (dim == 0 && rule_.expert_count > 0) {
          group.emplace_back("experts");
          left /= rule_.expert_count;
        }
        group.insert(group.end(), fixed_.begin(), fixed_.end());
        fixed_.clear();
        while (left > 1 && axis < part.axes.size()) left /= add_axis(part, axis++, group);
        if (group.empty()) group.emplace_back("+");
      }
      const std::string text = ckpt::joined(group, " ");
      whole += (whole.empty() ? "" : " ") + (group.size() > 1 ? "(" + text + ")" : text);
    }
    return fixed_.empty() ? whole : "";
  }
  // How much of the target's dimension it makes up.
  uint64_t add_axis(const IndexPart& part, size_t axis, std::vector<std::string>& group) const {
    if (rule_.rule.joined != axis) {
      if (part.axes[axis].size > 1) group.push_back(axis_names_[axis]);
      return part.axes[axis].size;
    }
    group.push_back(axis_names_[axis] + "+");
    uint64_t size = 0;
    for (const IndexPart& one : rule_.rule.parts) size += one.axes[axis].size;
    return size;
  }

  const VectorRule& rule_;
  const LearnedVocabulary& vocabulary_;
  LearnedRow& made_;
  unsigned letter_ = 0;
  std::vector<std::string> axis_names_, fixed_;  // of the part's axes; of those of one index
};

std::optional<LearnedRow> write_row(const VectorRule& rule, const LearnedVocabulary& vocabulary,
                                    bool has_vector) {
  LearnedRow made;
  for (const IndexPart& part : rule.rule.parts) {
    if (!PartWriter(rule, vocabulary, made).write(part, has_vector)) return std::nullopt;
  }
  return made;
}

}  // namespace

std::optional<VectorRule> find_vector_rule(const LearnedTensor& tensor, const ContentMatch& match,
                                           const LearnedSides& sides) {
  VectorRule made{{}, {}, {}, match.of_columns, match.to_columns, 0, tensor.entry->shape};
  if (!sort_sources(match, sides, made)) return std::nullopt;
  auto places = places_of(tensor, match, sides, made);
  if (!places) return std::nullopt;
  auto rule = find_index_rule(std::move(*places));
  if (!rule) return std::nullopt;
  std::vector<uint64_t> sizes, dims = index_dims(made.target, made.to_columns);
  for (const Extents& shape : made.shapes) sizes.push_back(index_size(shape, made.of_columns));
  if (made.expert_count > 0) {
    if (dims.empty() || dims[0] % made.expert_count != 0) return std::nullopt;
    dims[0] /= made.expert_count;
  }
  rule = cut_at_dims(std::move(*rule), dims);
  if (rule) rule = with_radix(std::move(*rule), sizes);
  if (!rule) return std::nullopt;
  made.rule = std::move(*rule);
  return made;
}

VectorRule whole_rule(const LearnedTensor& source) {
  const Extents& shape = source.entry->shape;
  return {
      {source.numbered.pattern}, {shape}, {{{0, 0, {{shape[0], 1}}}}, {}}, false, false, 0, shape};
}

std::optional<LearnedRow> row_of(const VectorRule& rule, const LearnedVocabulary& vocabulary) {
  return write_row(rule, vocabulary, true);
}

std::optional<LearnedRow> row_of_bias(VectorRule rule, const LearnedVocabulary& vocabulary) {
  if (rule.of_columns) return std::nullopt;
  for (std::string& source : rule.sources) {
    const size_t at = source.rfind(".weight");
    if (at == source.npos) return std::nullopt;
    source.replace(at, 7, ".bias");
  }
  Extents target;
  for (const uint64_t dim : index_dims(rule.target, rule.to_columns)) target.push_back(dim);
  rule.target = std::move(target);
  return write_row(rule, vocabulary, false);
}

LearnedRow row_of_whole(const std::string& source, const Extents& shape,
                        const LearnedVocabulary& vocabulary) {
  LearnedRow made;
  RowPart part{{source}, {}, {}};
  unsigned letter = 0;
  for (size_t dim = 0; dim < shape.size(); ++dim) {
    const bool is_vocabulary = dim == 0 && shape[0] == vocabulary.rows &&
                               vocabulary.tokens == vocabulary.rows &&
                               vocabulary.rules.is_vocabulary(source);
    std::string name = "vocabulary_rows";
    if (is_vocabulary) part.slice[name] = "0:vocabulary";
    if (!is_vocabulary) {
      name = std::string(1, static_cast<char>('a' + letter++)) + std::to_string(shape[dim]);
      made.let[name] = std::to_string(shape[dim]);
    }
    part.view += (part.view.empty() ? "" : " ") + name;
  }
  made.row.parts.push_back(std::move(part));
  return made;
}

}  // namespace optim
