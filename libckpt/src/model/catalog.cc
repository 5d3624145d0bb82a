#include <ckpt/catalog.h>

#include <algorithm>
#include <numeric>
#include <utility>

namespace ckpt {
namespace {

using Name = std::pair<std::string_view, std::string_view>;

template <class Entry>
Name name_of(const Entry& entry) {
  return {entry.file, entry.key};
}

template <class Entry>
std::vector<uint32_t> sorted_by_name(const std::vector<Entry>& entries) {
  std::vector<uint32_t> numbers(entries.size());
  std::iota(numbers.begin(), numbers.end(), 0u);
  std::ranges::stable_sort(numbers, {}, [&](uint32_t i) { return name_of(entries[i]); });
  return numbers;
}

// The first of that name.
template <class Entry>
const Entry* find_entry(const std::vector<Entry>& entries, const std::vector<uint32_t>& by_name,
                        const Name& name) {
  const auto found = std::ranges::lower_bound(by_name, name, {},
                                              [&](uint32_t i) { return name_of(entries[i]); });
  return found != by_name.end() && name_of(entries[*found]) == name ? &entries[*found] : nullptr;
}

}  // namespace

const TensorEntry* Catalog::find_tensor(std::string_view key, std::string_view file) const {
  return find_entry(tensors, tensors_by_name_, {file, key});
}

const ObjectEntry* Catalog::find_object(std::string_view key, std::string_view file) const {
  return find_entry(objects, objects_by_name_, {file, key});
}

void Catalog::index() {
  tensors_by_name_ = sorted_by_name(tensors);
  objects_by_name_ = sorted_by_name(objects);
}

}  // namespace ckpt
