#include "huggingface/learned_groups.h"

#include <algorithm>
#include <span>
#include <utility>

#include <ckpt/cast.h>
#include <ckpt/error.h>
#include <ckpt/printed.h>
#include <ckpt/tensor_stream.h>

#include "huggingface/viewed_tensor.h"

namespace optim {
namespace {

using Evidence = LearnedGroup::Evidence;
using Form = ContentMatch::Form;

constexpr size_t kTriesMax = 3, kShownMax = 4;

std::string listed(const std::vector<std::string>& names) {
  const auto shown = std::span(names).first(std::min(names.size(), kShownMax));
  return ckpt::joined(shown) + (names.size() > kShownMax ? ", ..." : "");
}

std::vector<std::string> words_of(std::string_view pattern) {
  std::vector<std::string> words(1);
  for (const char c : pattern) {
    if (c == '.' || c == '_') {
      words.emplace_back();
    } else {
      words.back() += c;
    }
  }
  return words;
}

// Words that not all of these have.
std::vector<std::set<std::string>> own_words(const std::vector<std::string>& names) {
  std::map<std::string, size_t> counts;
  std::vector<std::set<std::string>> all;
  for (const std::string& name : names) {
    const auto words = words_of(name);
    all.emplace_back(words.begin(), words.end());
    for (const std::string& word : all.back()) ++counts[word];
  }
  for (auto& words : all) {
    std::erase_if(words, [&](const std::string& word) { return counts[word] == names.size(); });
  }
  return all;
}

std::string last_steps(const std::string& pattern) {
  const size_t mark = pattern.rfind('}');
  return mark == pattern.npos ? pattern : pattern.substr(mark + 1);
}

}  // namespace

LearnedGroups::LearnedGroups(std::vector<LearnedTensor>& folder, const LearnedSides& sides,
                             const LearnedVocabulary& vocabulary, uint32_t layer_count)
    : folder_(folder),
      sides_(sides),
      vocabulary_(vocabulary),
      layer_count_(layer_count),
      numbers_(layer_count) {
  for (uint32_t i = 0; i < sides_.model.size(); ++i) {
    model_[sides_.model[i].numbered.pattern].push_back(i);
  }
}

void LearnedGroups::explain(const std::vector<ContentMatch>& matches) {
  learn_numbers(matches);
  make_groups();
  for (LearnedGroup& group : groups_) by_content(group, matches);
  explain_biases();
  explain_constants();
}

void LearnedGroups::learn_numbers(const std::vector<ContentMatch>& matches) {
  for (size_t i = 0; i < folder_.size(); ++i) {
    const ContentMatch& match = matches[i];
    if (match.form == Form::None) continue;
    std::vector<NameNumbers> either;
    for (const uint32_t source : match.equals) {
      either.push_back(sides_.model[source].numbered.numbers);
    }
    if (either.empty()) {  // it is made of several
      NameNumbers numbers = sides_.model[match.sources[0]].numbered.numbers;
      numbers.expert.reset();
      either.push_back(numbers);
    }
    numbers_.learn(folder_[i].name, either);
  }
}

void LearnedGroups::make_groups() {
  std::map<std::string, size_t> places;
  for (uint32_t i = 0; i < folder_.size(); ++i) {
    folder_[i].numbered = numbers_.numbered(folder_[i].name);
    const auto [place, is_new] = places.emplace(folder_[i].numbered.pattern, groups_.size());
    if (is_new) groups_.push_back({folder_[i].numbered.pattern});
    groups_[place->second].members.push_back(i);
  }
}

// The pattern of all that a tensor may come from; nullptr: they have several.
const std::string* LearnedGroups::pattern_of(const ContentMatch& match, LearnedGroup& group) const {
  std::set<std::string> patterns;
  for (const uint32_t source : match.equals) {
    patterns.insert(sides_.model[source].numbered.pattern);
  }
  if (patterns.size() < 2) return &sides_.model[match.sources[0]].numbered.pattern;
  const std::vector<std::string> names(patterns.begin(), patterns.end());
  group.problem = "has the values of several tensors, which are equal: " + listed(names);
  return nullptr;
}

void LearnedGroups::add_whole(LearnedGroup& group, uint32_t member, const ContentMatch& match) {
  const std::string* const pattern = pattern_of(match, group);
  if (pattern == nullptr) return;
  if (group.evidence == Evidence::None) {
    const LearnedTensor& source = sides_.model[match.sources[0]];
    group.added = match.added;
    group.row = row_of_whole(*pattern, folder_[member].entry->shape, vocabulary_);
    if (source.entry->shape.size() == 2) group.rule = whole_rule(source);
  }
  if (group.added != match.added) return;
  if (group.evidence != Evidence::Content) {
    group.evidence = match.equals.size() > 1 ? Evidence::Numbers : Evidence::Content;
  }
  if (std::ranges::find(group.sources, *pattern) == group.sources.end()) {
    group.sources.push_back(*pattern);
  }
}

void LearnedGroups::add_vectors(LearnedGroup& group, const std::vector<ContentMatch>& matches) {
  std::vector<uint32_t> best;
  for (const uint32_t member : group.members) {
    if (matches[member].form == Form::Vectors) best.push_back(member);
  }
  std::ranges::stable_sort(best, std::greater(),
                           [&](uint32_t member) { return matches[member].vote_count; });
  for (size_t i = 0; i < std::min(best.size(), kTriesMax); ++i) {
    const ContentMatch& match = matches[best[i]];
    if (pattern_of(match, group) == nullptr) continue;
    auto rule = find_vector_rule(folder_[best[i]], match, sides_);
    auto row = rule ? row_of(*rule, vocabulary_) : std::nullopt;
    if (!row) {
      group.problem = "shares " + std::to_string(match.vote_count) + " rows or columns with " +
                      sides_.model[match.sources[0]].name + ", in an order that no row describes";
      continue;
    }
    group.evidence = match.equals.size() > 1 ? Evidence::Numbers : Evidence::Content;
    group.sources = rule->sources;
    group.rule = std::move(rule);
    group.row = std::move(*row);
    break;
  }
  if (group.evidence == Evidence::None || group.sources.size() > 1) return;
  for (const uint32_t member : best) {
    for (const uint32_t source : matches[member].sources) {
      const std::string& pattern = sides_.model[source].numbered.pattern;
      const bool is_new = std::ranges::find(group.sources, pattern) == group.sources.end();
      const bool is_same_form = sides_.model[source].entry->shape == group.rule->shapes[0];
      if (is_new && is_same_form) group.sources.push_back(pattern);
    }
  }
}

void LearnedGroups::by_content(LearnedGroup& group, const std::vector<ContentMatch>& matches) {
  const LearnedTensor& first = folder_[group.members[0]];
  group.problem = "has values that no tensor of the checkpoint has";
  if (!first.has_numbers) {
    group.problem =
        "is of type " + std::string(ckpt::name(first.entry->dtype)) + ", which is not compared";
  }
  for (const uint32_t member : group.members) {
    if (matches[member].form == Form::Whole) add_whole(group, member, matches[member]);
  }
  if (group.evidence == Evidence::None) add_vectors(group, matches);
  used_.insert(group.sources.begin(), group.sources.end());
}

// --- biases ---

// Whether the row makes a tensor of the folder, which is not of one value alone.
bool LearnedGroups::is_bias(const LearnedGroup& weight, const LearnedRow& row,
                            const LearnedGroup& group) const {
  const LearnedTensor& member = folder_[group.members[0]];
  nlohmann::json sizes = {{"vocabulary", vocabulary_.tokens},
                          {"vocabulary_rows", vocabulary_.rows}};
  const NameTable table{"", "", "", row.let, {}, {}, {}};
  const NameScope scope(table, sizes, sizes);
  std::vector<ViewedPart> parts;
  const uint32_t experts = std::max(1U, weight.rule->expert_count);
  for (uint32_t expert = 0; expert < experts; ++expert) {
    for (size_t part = 0; part < row.row.parts.size(); ++part) {
      const auto found = model_.find(row.row.parts[part].from[0]);
      if (found == model_.end()) return false;
      const auto source = std::ranges::find_if(found->second, [&](uint32_t i) {
        NameNumbers numbers = member.numbered.numbers;
        const NameNumbers& known = sides_.model[i].numbered.numbers;
        if (weight.rule->expert_count > 0) numbers.expert = expert;
        return known.layer == numbers.layer && known.expert == numbers.expert;
      });
      if (source == found->second.end()) return false;
      const auto entry = std::make_shared<ckpt::TensorEntry>(*sides_.model[*source].entry);
      parts.push_back({entry, expert, part});
    }
  }
  try {
    TensorRow whole = row.row;
    for (RowPart& part : whole.parts) part.as = part.as.empty() ? part.view : part.as;
    const ViewedTensor made = view_tensor(whole, scope, parts);
    if (made.shape != member.entry->shape) return false;
    const ckpt::DType type = member.entry->dtype;
    const ckpt::TensorEntry entry =
        made.entry->dtype == type ? *made.entry : ckpt::with_cast(*made.entry, type, {});
    return ckpt::same_bytes(entry, sides_.model_payloads, *member.entry, sides_.folder_payloads);
  } catch (const ckpt::Error&) {
    return false;  // of another shape: not this one
  }
}

void LearnedGroups::explain_biases() {
  std::set<std::string> taken;
  for (const LearnedGroup& weight : groups_) {
    if (!weight.rule || weight.evidence == Evidence::None) continue;
    const auto row = row_of_bias(*weight.rule, vocabulary_);
    if (!row) continue;
    const bool is_free = std::ranges::all_of(row->row.parts, [&](const RowPart& part) {
      return model_.contains(part.from[0]) && !used_.contains(part.from[0]);
    });
    if (!is_free) continue;
    const std::string front = weight.pattern.substr(0, weight.pattern.rfind("weight"));
    for (LearnedGroup& group : groups_) {
      if (group.evidence != Evidence::None || !is_bias(weight, *row, group)) continue;
      const bool has_its_name =
          group.pattern == front + "bias" || group.pattern == weight.pattern + "_bias";
      const bool is_constant = folder_[group.members[0]].print.is_constant;
      if (is_constant && !has_its_name) continue;
      group.evidence = is_constant ? Evidence::WeightRows : Evidence::Content;
      group.row = *row;
      for (const RowPart& part : row->row.parts) group.sources.push_back(part.from[0]);
      taken.insert(group.sources.begin(), group.sources.end());
    }
  }
  used_.merge(taken);
}

// --- constants ---

std::set<LearnedGroups::Member> LearnedGroups::members_of(
    const std::vector<LearnedTensor>& side, const std::vector<uint32_t>& members) const {
  std::set<Member> made;
  for (const uint32_t i : members) {
    const NameNumbers& numbers = side[i].numbered.numbers;
    const uint32_t further = numbers.further ? layer_count_ + *numbers.further : UINT32_MAX;
    made.emplace(numbers.layer.value_or(further), numbers.expert.value_or(UINT32_MAX));
  }
  return made;
}

// What is added to each of the model's tensors; nullopt: they are none of the group's.
std::optional<int> LearnedGroups::shift_of(const LearnedGroup& group,
                                           const std::string& source) const {
  const std::vector<uint32_t>& members = model_.at(source);
  if (used_.contains(source) || members.size() != group.members.size()) return std::nullopt;
  if (members_of(folder_, group.members) != members_of(sides_.model, members)) return std::nullopt;
  const LearnedTensor& one = folder_[group.members[0]];
  const float shift = one.print.first - sides_.model[members[0]].print.first;
  if (shift != 0 && shift != 1 && shift != -1) return std::nullopt;
  const auto fits = [&](const LearnedTensor& tensor, float value) {
    return tensor.has_numbers && tensor.print.is_constant && tensor.print.first == value &&
           tensor.entry->shape == one.entry->shape && !tensor.entry->shape.empty();
  };
  for (const uint32_t i : group.members) {
    if (!fits(folder_[i], one.print.first)) return std::nullopt;
  }
  for (const uint32_t i : members) {
    if (!fits(sides_.model[i], one.print.first - shift)) return std::nullopt;
  }
  return static_cast<int>(shift);
}

std::vector<std::string> LearnedGroups::candidates(const LearnedGroup& group) const {
  std::vector<std::string> names;
  for (const auto& [source, members] : model_) {
    if (shift_of(group, source)) names.push_back(source);
  }
  return names;
}

void LearnedGroups::take(LearnedGroup& group, const std::string& source, Evidence evidence) {
  group.added = *shift_of(group, source);
  group.evidence = evidence;
  group.sources = {source};
  group.row = row_of_whole(source, folder_[group.members[0]].entry->shape, vocabulary_);
  used_.insert(source);
}

// Pairs that have no other partner.
bool LearnedGroups::take_only_pairs(Evidence evidence) {
  std::map<std::string, std::vector<LearnedGroup*>> wanted;
  for (LearnedGroup& group : groups_) {
    if (group.evidence != Evidence::None) continue;
    for (const std::string& source : candidates(group)) wanted[source].push_back(&group);
  }
  for (const auto& [source, groups] : wanted) {
    if (groups.size() != 1 || candidates(*groups[0]).size() != 1) continue;
    take(*groups[0], source, evidence);
    return true;
  }
  return false;
}

// One that has the same name behind its numbers; or as many as could be each other's, of which each
// shares a word of its own with one of the others alone.
bool LearnedGroups::take_by_words() {
  for (LearnedGroup& group : groups_) {
    if (group.evidence != Evidence::None) continue;
    const std::vector<std::string> sources = candidates(group);
    std::vector<LearnedGroup*> rivals;
    std::vector<std::string> names;
    for (LearnedGroup& other : groups_) {
      if (other.evidence != Evidence::None || candidates(other) != sources) continue;
      rivals.push_back(&other);
      names.push_back(last_steps(other.pattern));
    }
    for (const std::string& source : sources) {
      for (const std::string& name : names_of_both(source, vocabulary_.rules)) {
        if (last_steps(name) != last_steps(group.pattern)) continue;
        take(group, source, Evidence::Words);
        return true;
      }
    }
    if (sources.empty() || rivals.size() != sources.size()) continue;
    std::vector<std::string> ends;
    for (const std::string& source : sources) ends.push_back(last_steps(source));
    const auto ours = own_words(names), theirs = own_words(ends);
    std::vector<size_t> partners;
    for (const auto& words : ours) {
      size_t count = 0, partner = 0;
      for (size_t i = 0; i < theirs.size(); ++i) {
        if (std::ranges::find_first_of(words, theirs[i]) == words.end()) continue;
        partner = i;
        ++count;
      }
      if (count == 1) partners.push_back(partner);
    }
    if (std::set(partners.begin(), partners.end()).size() != rivals.size()) continue;
    for (size_t i = 0; i < rivals.size(); ++i) {
      take(*rivals[i], sources[partners[i]], Evidence::Words);
    }
    return true;
  }
  return false;
}

void LearnedGroups::explain_constants() {
  while (take_only_pairs(Evidence::LeftOver)) {
  }
  while (take_by_words()) {
    while (take_only_pairs(Evidence::Words)) {
    }
  }
  for (LearnedGroup& group : groups_) {
    const LearnedTensor& first = folder_[group.members[0]];
    if (group.evidence != Evidence::None || !first.has_numbers || !first.print.is_constant)
      continue;
    const std::vector<std::string> names = candidates(group);
    group.problem = "holds one value alone, by which content cannot tell where it comes from";
    if (!names.empty()) group.problem += ": " + listed(names);
  }
}

std::map<std::set<std::string>, uint64_t> LearnedGroups::ties() const {
  std::map<std::set<std::string>, uint64_t> made;
  for (const auto* const side : {&std::as_const(folder_), &sides_.model}) {
    std::map<uint64_t, std::vector<const LearnedTensor*>> by_whole;
    for (const LearnedTensor& tensor : *side) {
      if (tensor.has_numbers && !tensor.print.is_constant) {
        by_whole[tensor.print.whole].push_back(&tensor);
      }
    }
    for (const auto& [whole, tensors] : by_whole) {
      if (tensors.size() < 2) continue;
      std::set<std::string> patterns;
      for (const LearnedTensor* const tensor : tensors) patterns.insert(tensor->numbered.pattern);
      made[patterns] += tensors.size();
    }
  }
  return made;
}

}  // namespace optim
