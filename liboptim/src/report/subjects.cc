#include <optim/subjects.h>

#include <algorithm>
#include <deque>
#include <utility>

#include <ckpt/error.h>
#include <optim/listing.h>

#include "report/named_values.h"

namespace optim {
namespace {

// Values inside torch.save files, deeper than the objects that the catalog lists.
std::vector<Subject> find_values(const ckpt::Checkpoint& checkpoint, const std::string& typed,
                                 ckpt::KeyMatch match) {
  std::vector<Subject> found;
  const bool is_single = is_single_file(checkpoint.catalog());
  for (const ckpt::FileEntry& file : checkpoint.catalog().files) {
    const ckpt::Document* document = checkpoint.document(file.path);
    if (document == nullptr) continue;
    const bool is_qualified = typed.starts_with(file.path + ":");
    const std::string key = is_qualified ? typed.substr(file.path.size() + 1) : typed;
    for (const NamedValue& value : values_named(document->tree.root(), key, match)) {
      found.push_back({is_single ? "" : file.path, value.pointer, nullptr, nullptr, value.value});
    }
  }
  return found;
}

// The rows that a key names best, and how well. An object without a region is a part of its file's
// value tree.
std::vector<Subject> find_rows(const std::vector<CatalogRow>& rows, const ckpt::KeyPattern& pattern,
                               ckpt::KeyMatch& best) {
  std::vector<Subject> found;
  for (const CatalogRow& row : rows) {
    if (row.object != nullptr && !row.object->region) continue;
    const ckpt::KeyMatch match = pattern.match({row.file(), row.key()});
    if (match == ckpt::KeyMatch::None || match < best) continue;
    if (match > best) found.clear();
    best = match;
    found.push_back({row.file(), row.key(), row.tensor, row.object});
  }
  return found;
}

// "weight[0:4, :8]" without its brackets.
std::string without_slice(const std::string& typed) {
  const size_t open = typed.rfind('[');
  const bool is_slice = open != typed.npos && typed.ends_with(']') &&
                        typed.find_first_not_of("0123456789:, -", open + 1) == typed.size() - 1;
  return is_slice ? typed.substr(0, open) : typed;
}

// Also values inside torch.save files may have been meant.
[[noreturn]] void refuse_unknown_value(const ckpt::Checkpoint& checkpoint,
                                       std::vector<ckpt::KeyName> names, const std::string& typed) {
  const bool is_single = is_single_file(checkpoint.catalog());
  std::deque<std::vector<std::string>> pointers;  // what names point into
  for (const ckpt::FileEntry& file : checkpoint.catalog().files) {
    const ckpt::Document* document = checkpoint.document(file.path);
    if (document == nullptr) continue;
    for (const std::string& pointer : pointers.emplace_back(pointers_near(document->tree.root()))) {
      names.push_back({is_single ? std::string_view() : file.path, pointer});
    }
  }
  ckpt::refuse_unknown_key(typed, names);
}

[[noreturn]] void throw_not_found(const ckpt::Checkpoint& checkpoint,
                                  const std::vector<CatalogRow>& rows, const std::string& typed) {
  const std::string key = without_slice(typed);
  std::vector<ckpt::KeyName> names = names_of(rows);
  const ckpt::KeyPattern pattern(key);
  const bool is_slice = key != typed && std::ranges::any_of(names, [&](const ckpt::KeyName& name) {
                          return pattern.match(name) != ckpt::KeyMatch::None;
                        });
  if (!is_slice) refuse_unknown_value(checkpoint, std::move(names), typed);
  throw ckpt::Error(ckpt::ErrorCode::Unsupported, {.file = {}, .key = typed},
                    "slices are not built into this version",
                    "show '" + ckpt::escaped(key) + "' gives statistics and the first values");
}

// Keys as they are spelled before other spellings, globs last; rows before what lies in them.
std::vector<Subject> subjects_of(const ckpt::Checkpoint& checkpoint,
                                 const std::vector<CatalogRow>& rows, const std::string& typed) {
  ckpt::KeyMatch best = ckpt::KeyMatch::None;
  std::vector<Subject> found = find_rows(rows, ckpt::KeyPattern(typed), best);
  for (const ckpt::KeyMatch match : {ckpt::KeyMatch::Exact, ckpt::KeyMatch::Spelling}) {
    if (best >= match) return found;
    std::vector<Subject> values = find_values(checkpoint, typed, match);
    if (!values.empty()) return values;
  }
  if (found.empty()) throw_not_found(checkpoint, rows, typed);
  return found;
}

}  // namespace

std::vector<Subject> find_subjects(const ckpt::Checkpoint& checkpoint,
                                   std::span<const std::string> typed) {
  const std::vector<CatalogRow> rows = list_rows(checkpoint.catalog());
  std::vector<Subject> subjects;
  for (const std::string& key : typed) {
    std::vector<Subject> found = subjects_of(checkpoint, rows, key);
    subjects.insert(subjects.end(), found.begin(), found.end());
  }
  for (const CatalogRow& row : rows) {
    const bool is_shown = row.tensor != nullptr || row.object->region;
    if (typed.empty() && is_shown) {
      subjects.push_back({row.file(), row.key(), row.tensor, row.object});
    }
  }
  return subjects;
}

void keep_selected(std::vector<Subject>& subjects, ckpt::KeySelection selection) {
  std::vector<ckpt::KeyName> names;
  for (const Subject& subject : subjects) names.push_back({subject.file, subject.key});
  selection.resolve(names);
  selection.refuse_missing(names);
  std::vector<Subject> kept;  // names point into the others
  for (const Subject& subject : subjects) {
    if (selection.accepts(subject.file, subject.key)) kept.push_back(subject);
  }
  subjects = std::move(kept);
}

}  // namespace optim
