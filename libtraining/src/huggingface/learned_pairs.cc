#include "huggingface/learned_groups.h"

#include <algorithm>
#include <mutex>
#include <utility>

#include <ckpt/cast.h>
#include <ckpt/run_jobs.h>
#include <ckpt/text.h>

#include "model/tensor_names.h"

namespace optim {
namespace {

constexpr unsigned kIsLayer = 1, kIsExpert = 2;
constexpr std::string_view kLayerMark = "{layer}", kFurtherMark = "{mtp}", kExpertMark = "{expert}";

// Calls visit(front, begin, end, number) for each step of a key that is a number; `front`: what
// stands before it, with other numbers as #.
template <class Visit>
void for_each_number(std::string_view key, const Visit& visit) {
  std::string front;
  for (size_t begin = 0; begin <= key.size();) {
    const size_t end = std::min(key.find('.', begin), key.size());
    const std::string_view step = key.substr(begin, end - begin);
    const auto number = ckpt::number_in<uint32_t>(step);
    if (number) visit(front, begin, end, *number);
    front += number ? "#" : std::string(step);
    front += '.';
    begin = end + 1;
  }
}

constexpr uint64_t kVectorsMax = 4 << 20;  // 16 bytes each

uint64_t spread(uint64_t hash) { return hash * 0xBF58476D1CE4E5B9; }

}  // namespace

ContentIndex::ContentIndex(std::vector<LearnedTensor>& model, const ckpt::PayloadSource& payloads)
    : model_(model) {
  uint64_t count = 0;
  for (const LearnedTensor& tensor : model_) count += ckpt::count_vectors(tensor.entry->shape);
  if (count > kVectorsMax) hash_max_ = UINT64_MAX / count * kVectorsMax;
  std::mutex mutex;
  ckpt::run_jobs(model_.size(), ckpt::thread_count(0), [&](size_t i, unsigned) {
    LearnedTensor& tensor = model_[i];
    tensor.has_numbers = ckpt::can_round(tensor.entry->dtype);
    if (!tensor.has_numbers) return;
    ckpt::VectorPrint print = ckpt::print_of(*tensor.entry, payloads);
    std::vector<Vector> kept;
    add_vectors(static_cast<uint32_t>(i), print, kept);
    print.rows = {};
    print.columns = {};
    tensor.print = std::move(print);
    const std::lock_guard lock(mutex);
    vectors_.insert(vectors_.end(), kept.begin(), kept.end());
  });
  std::vector<bool> is_repeated(model_.size());
  for (uint32_t i = 0; i < model_.size(); ++i) {
    const LearnedTensor& tensor = model_[i];
    if (!tensor.has_numbers || tensor.print.is_constant) continue;
    auto& equal = by_whole_[tensor.print.whole];
    is_repeated[i] = !equal.empty();
    equal.push_back(i);
    if (tensor.entry->shape.size() != 1) continue;
    by_plus_[tensor.print.plus_one].push_back(i);
    by_minus_[tensor.print.minus_one].push_back(i);
  }
  std::erase_if(vectors_, [&](const Vector& vector) { return is_repeated[vector.tensor]; });
  std::ranges::sort(vectors_, {}, [](const Vector& vector) { return vector.hash; });
  // What is there twice tells nothing.
  size_t kept = 0;
  for (size_t at = 0, end = 0; at < vectors_.size(); at = end) {
    while (end < vectors_.size() && vectors_[end].hash == vectors_[at].hash) ++end;
    if (end == at + 1) vectors_[kept++] = vectors_[at];
  }
  vectors_.resize(kept);
}

void ContentIndex::add_vectors(uint32_t tensor, const ckpt::VectorPrint& print,
                               std::vector<Vector>& vectors) const {
  for (const bool is_column : {false, true}) {
    for (const uint64_t hash : is_column ? print.columns : print.rows) {
      if (hash == ckpt::VectorPrint::kNothing || spread(hash) > hash_max_) continue;
      vectors.push_back({hash, tensor, is_column});
    }
  }
}

const ContentIndex::Vector* ContentIndex::find(uint64_t hash) const {
  const auto found = std::ranges::lower_bound(vectors_, hash, {},
                                              [](const Vector& vector) { return vector.hash; });
  return found != vectors_.end() && found->hash == hash ? &*found : nullptr;
}

ContentMatch ContentIndex::match(LearnedTensor& tensor, const ckpt::PayloadSource& payloads) const {
  tensor.has_numbers = ckpt::can_round(tensor.entry->dtype);
  if (!tensor.has_numbers) return {};
  ckpt::VectorPrint print = ckpt::print_of(*tensor.entry, payloads);
  ContentMatch made;
  const auto take = [&](const auto& by_hash, int added) {
    const auto found = by_hash.find(print.whole);
    if (made.form != ContentMatch::Form::None || found == by_hash.end()) return;
    for (const uint32_t source : found->second) {
      if (model_[source].entry->shape == tensor.entry->shape) made.sources.push_back(source);
    }
    if (!made.sources.empty()) made.form = ContentMatch::Form::Whole;
    made.equals = made.sources;
    made.added = added;
  };
  if (!print.is_constant) {
    take(by_whole_, 0);
    if (tensor.entry->shape.size() == 1) {
      take(by_plus_, 1);
      take(by_minus_, -1);
    }
    if (made.form == ContentMatch::Form::None) made = match_vectors(print);
  }
  print.rows = {};
  print.columns = {};
  tensor.print = std::move(print);
  return made;
}

ContentMatch ContentIndex::match_vectors(const ckpt::VectorPrint& print) const {
  // Of the model's and of the folder's vectors, whether they are columns.
  std::map<std::pair<bool, bool>, std::map<uint32_t, uint64_t>> votes;
  for (const bool to_columns : {false, true}) {
    for (const uint64_t hash : to_columns ? print.columns : print.rows) {
      if (hash == ckpt::VectorPrint::kNothing || spread(hash) > hash_max_) continue;
      if (const Vector* const found = find(hash)) {
        ++votes[{found->is_column, to_columns}][found->tensor];
      }
    }
  }
  ContentMatch best;
  for (const auto& [form, by_tensor] : votes) {
    uint64_t count = 0;
    for (const auto& [tensor, number] : by_tensor) count += number;
    if (count <= best.vote_count) continue;
    best = {ContentMatch::Form::Vectors, {}, {}, 0, form.first, form.second, count};
    for (const auto& [tensor, number] : by_tensor) best.sources.push_back(tensor);
  }
  if (best.sources.size() == 1) {
    best.equals = by_whole_.at(model_[best.sources[0]].print.whole);
  }
  return best;
}

NumberedName numbered_model_name(std::string_view name) {
  NumberedName made{std::string(name), {}};
  if (const auto expert = expert_in(name)) {
    made.numbers.expert = expert->number;
    made.pattern.replace(expert->begin, expert->end - expert->begin, kExpertMark);
  }
  if (const auto layer = decoder_layer_in(name)) {
    made.numbers.layer = layer->number;
    made.pattern.replace(layer->begin, layer->end - layer->begin, kLayerMark);
  } else if (const auto further = split_mtp_layer(name)) {
    made.numbers.further = further->layer;
    const size_t begin = kMtpLayersPrefix.size();
    made.pattern.replace(begin, made.pattern.find('.', begin) - begin, kFurtherMark);
  }
  return made;
}

std::vector<std::string> names_of_both(const std::string& pattern, const ModelRules& rules) {
  std::vector<std::string> names = {pattern};
  const std::string front = std::string(kLayersPrefix) + std::string(kLayerMark) + ".";
  if (!pattern.starts_with(front)) return names;
  const std::string rest = pattern.substr(front.size());
  const auto own = std::ranges::find(rules.rows(), rest, &ModelRule::name);
  for (const ModelRule& rule : rules.rows()) {
    const bool is_norm = !rule.local_key.empty() && (rule.name == rest || rule.local_key == rest);
    const bool is_expert = own != rules.rows().end() && is_of_experts(*own) && !own->key.empty() &&
                           rule.key == own->key;
    if (!is_norm && !is_expert) continue;
    for (const std::string& other : {rule.name, is_norm ? rule.local_key : rule.name}) {
      const std::string whole = front + other;
      if (std::ranges::find(names, whole) == names.end()) names.push_back(whole);
    }
  }
  return names;
}

void FolderNumbers::learn(std::string_view key, const std::vector<NameNumbers>& either) {
  for_each_number(key, [&](const std::string& front, size_t, size_t, uint32_t number) {
    unsigned stated = 0, equal = 0, unequal = 0;
    for (const NameNumbers& numbers : either) {
      std::optional<uint32_t> layer = numbers.layer;
      if (numbers.further) layer = layer_count_ + *numbers.further;
      for (const auto& [known, role] :
           {std::pair(layer, kIsLayer), std::pair(numbers.expert, kIsExpert)}) {
        if (known) (known == number ? equal : unequal) |= role;
        if (known) stated |= role;
      }
    }
    auto& [proven, seen, excluded] = roles_[front];
    proven |= equal & ~unequal;
    seen |= equal;
    excluded |= stated & ~equal;
  });
}

NumberedName FolderNumbers::numbered(std::string_view key) const {
  NumberedName made;
  size_t copied = 0;
  for_each_number(key, [&](const std::string& front, size_t begin, size_t end, uint32_t number) {
    const auto known = roles_.find(front);
    if (known == roles_.end()) return;
    const auto& [proven, seen, excluded] = known->second;
    const unsigned certain = proven & ~excluded;
    const unsigned roles = certain != 0 ? certain : seen & ~excluded;
    if (roles != kIsLayer && roles != kIsExpert) return;
    auto& place = roles == kIsLayer ? made.numbers.layer : made.numbers.expert;
    if (place) return;
    place = number;
    made.pattern += key.substr(copied, begin - copied);
    made.pattern += roles == kIsLayer ? kLayerMark : kExpertMark;
    copied = end;
  });
  made.pattern += key.substr(copied);
  return made;
}

}  // namespace optim
