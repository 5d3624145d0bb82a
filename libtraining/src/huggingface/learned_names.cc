#include "huggingface/learned_names.h"

#include <algorithm>
#include <charconv>

#include "model/stage_names.h"

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
    uint32_t number = 0;
    const auto [behind, error] = std::from_chars(step.data(), step.data() + step.size(), number);
    const bool is_number = error == std::errc() && behind == step.data() + step.size();
    if (is_number) visit(front, begin, end, number);
    front += is_number ? "#" : std::string(step);
    front += '.';
    begin = end + 1;
  }
}

}  // namespace

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
