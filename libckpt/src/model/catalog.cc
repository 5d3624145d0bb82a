#include <ckpt/catalog.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include <ckpt/error.h>

#include "model/check_catalog.h"

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
  const auto found =
      std::ranges::lower_bound(by_name, name, {}, [&](uint32_t i) { return name_of(entries[i]); });
  return found != by_name.end() && name_of(entries[*found]) == name ? &entries[*found] : nullptr;
}

constexpr size_t kNamedMax = 40;  // in one error; ckpt-inspect verify names all

std::string others_text(const std::vector<const FileEntry*>& lacking, size_t file_count) {
  if (lacking.size() == 1) return {};
  const size_t others = lacking.size() - 1;
  std::string text = "; " + std::to_string(others) + " more of " + std::to_string(file_count) +
                     " files " + (others == 1 ? "is" : "are") + " missing or truncated: ";
  const size_t end = std::min(lacking.size(), kNamedMax);
  for (size_t i = 1; i < end; ++i) {
    text += (i == 1 ? "" : ", ") + escaped(lacking[i]->path) + " " + lacking[i]->lack;
  }
  if (end < lacking.size()) text += ", and " + std::to_string(lacking.size() - end) + " others";
  return text;
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

std::vector<const FileEntry*> lacking_files(const Catalog& catalog) {
  std::vector<const FileEntry*> lacking;
  for (const FileEntry& file : catalog.files) {
    if (!file.lack.empty()) lacking.push_back(&file);
  }
  std::ranges::sort(lacking, {}, &FileEntry::path);
  return lacking;
}

void refuse_incomplete(const Catalog& catalog, Where where) {
  const std::vector<const FileEntry*> lacking = lacking_files(catalog);
  if (lacking.empty()) return;
  if (where.file.empty()) where.file = lacking[0]->path;
  throw Error(ErrorCode::Corrupt, std::move(where),
              lacking[0]->lack + others_text(lacking, catalog.files.size()),
              "the checkpoint is incomplete: copy what is missing again")
      .mark_incomplete();
}

}  // namespace ckpt
