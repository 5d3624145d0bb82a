#include <training/subjects.h>

#include <deque>
#include <utility>

#include <ckpt/error.h>
#include <ckpt/inventory.h>
#include <ckpt/value_tree.h>
#include <training/listing.h>
#include <training/run_facts.h>

#include "report/logical_names.h"

namespace optim {
namespace {

// Values inside torch.save files, deeper than the objects that the catalog lists.
std::vector<Subject> find_values(const OpenedTraining& checkpoint, const std::string& typed,
                                 ckpt::KeyMatch match) {
  std::vector<Subject> found;
  for (const auto& [path, file, document] : documents_of(checkpoint)) {
    const bool is_qualified = typed.starts_with(path + ":");
    std::string key = is_qualified ? typed.substr(path.size() + 1) : typed;
    if (key == ckpt::printed_key("")) key.clear();
    for (const NamedValue& value : values_named(document->tree.root(), key, match)) {
      found.push_back({file, value.pointer, nullptr, nullptr, value.value});
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

// What a safetensors file says of itself, as a dict.
Subject header_metadata(const OpenedTraining& checkpoint) {
  auto tree = std::make_shared<ckpt::ValueTree>();
  const ckpt::NodeId root = tree->dict();
  for (const auto& [name, text] : checkpoint.header_metadata()) {
    tree->put(root, name, tree->str(text));
  }
  tree->set_root(root);
  Subject subject{.file = {}, .key = kHeaderMetadata, .value = tree->root()};
  subject.owner = std::move(tree);
  return subject;
}

// Also values inside torch.save files may have been meant.
[[noreturn]] void refuse_unknown_value(const OpenedTraining& checkpoint,
                                       std::vector<ckpt::KeyName> names, const std::string& typed) {
  const std::optional<ckpt::Value> args = run_facts(checkpoint).args;
  if (args && args->find(typed)) {
    throw ckpt::Error(ckpt::ErrorCode::NotFound, {.file = {}, .key = typed},
                      "no tensor or object has this key",
                      "it is an argument of the run: args." + ckpt::escaped(typed));
  }
  std::deque<std::vector<std::string>> pointers;  // what names point into
  const auto documents = documents_of(checkpoint);
  for (const auto& [path, file, document] : documents) {
    for (const std::string& pointer : pointers.emplace_back(pointers_near(document->tree.root()))) {
      names.push_back({file, pointer});
    }
  }
  ckpt::refuse_unknown_key(typed, names);
}

class SubjectFinder {
 public:
  SubjectFinder(const OpenedTraining& checkpoint, SubjectNames names)
      : checkpoint_(checkpoint), names_(names), rows_(list_rows(checkpoint.catalog())) {}

  std::vector<Subject> all() {
    std::vector<Subject> subjects;
    if (names_ == SubjectNames::Logical) return logical_matches(ckpt::KeyPattern("*"), kAny);
    for (const CatalogRow& row : rows_) {
      const bool is_shown = row.tensor != nullptr || row.object->region;
      if (is_shown) subjects.push_back({row.file(), row.key(), row.tensor, row.object});
    }
    return subjects;
  }

  // Keys before slices of keys, these before globs and slices of globs.
  std::vector<Subject> named(const std::string& typed) {
    const auto sliced = ckpt::split_slice(typed);
    for (const bool glob : {false, true}) {
      std::vector<Subject> found = matches(typed, glob);
      if (found.empty() && sliced && (glob || sliced->is_sure)) {
        found = matches(sliced->key, glob);
        for (Subject& subject : found) add_slice(subject, *sliced, typed);
      }
      if (!found.empty()) return found;
    }
    refuse(typed, sliced);
  }

 private:
  static constexpr ckpt::KeyMatch kAny = ckpt::KeyMatch::Glob;

  // What a key names that is spelled, or what a glob does.
  std::vector<Subject> matches(const std::string& typed, bool glob) {
    const ckpt::KeyPattern pattern(typed);
    if (names_ == SubjectNames::Any) {
      std::vector<Subject> found = glob ? glob_matches(pattern) : stored_matches(typed, pattern);
      if (!found.empty()) return found;
    }
    return logical_matches(pattern, glob ? kAny : ckpt::KeyMatch::Spelling);
  }

  std::vector<Subject> stored_matches(const std::string& typed, const ckpt::KeyPattern& pattern) {
    ckpt::KeyMatch best = ckpt::KeyMatch::None;
    std::vector<Subject> found = find_rows(rows_, pattern, best);
    for (const ckpt::KeyMatch match : {ckpt::KeyMatch::Exact, ckpt::KeyMatch::Spelling}) {
      if (best >= match) return found;
      std::vector<Subject> values = find_values(checkpoint_, typed, match);
      if (!values.empty()) return values;
    }
    const bool is_metadata = typed == kHeaderMetadata && !checkpoint_.header_metadata().empty();
    if (is_metadata) return {header_metadata(checkpoint_)};
    return {};
  }

  std::vector<Subject> glob_matches(const ckpt::KeyPattern& pattern) const {
    ckpt::KeyMatch best = ckpt::KeyMatch::None;
    return pattern.is_glob() ? find_rows(rows_, pattern, best) : std::vector<Subject>();
  }

  // The tensors of the training state that match best, and not worse than `least`.
  std::vector<Subject> logical_matches(const ckpt::KeyPattern& pattern, ckpt::KeyMatch least) {
    const LogicalNames& names = logical();
    std::vector<size_t> found;
    for (size_t i = 0; i < names.keys().size(); ++i) {
      const ckpt::KeyMatch match = pattern.match({{}, names.keys()[i]});
      if (match < least) continue;
      if (match > least) found.clear();
      least = match;
      found.push_back(i);
    }
    std::vector<Subject> subjects;
    for (const size_t i : found) subjects.push_back(logical_subject(i));
    return subjects;
  }

  Subject logical_subject(size_t index) {
    const LogicalTensor& tensor = logical().tensors()[index];
    const TensorRef entry = entry_of(tensor);
    if (entry == nullptr) {
      throw ckpt::Error(ckpt::ErrorCode::Unsupported, {.file = {}, .key = key_of(tensor)},
                        "is not put together from the parts that ranks hold" + reason(),
                        "ckpt-inspect ls lists the parts, show takes their keys");
    }
    Subject subject{.file = {}, .key = entry->key, .tensor = entry.get()};
    subject.owner = entry;
    subject.is_logical = true;
    return subject;
  }

  std::string reason() {
    const auto& problem = logical().problem();
    return problem ? std::string(": ") + problem->what() : "";
  }

  const LogicalNames& logical() {
    if (!logical_) {
      logical_.emplace(checkpoint_);
      const bool is_asked = names_ == SubjectNames::Logical;
      if (is_asked && logical_->problem()) throw ckpt::Error(*logical_->problem());
    }
    return *logical_;
  }

  static void add_slice(Subject& subject, const ckpt::SlicedKey& sliced, const std::string& typed) {
    if (subject.tensor == nullptr) {
      throw ckpt::Error(ckpt::ErrorCode::InvalidArgument, {.file = subject.file, .key = typed},
                        "is not a tensor: only these have slices");
    }
    try {
      subject.slice = ckpt::parse_slice(sliced.slice, subject.tensor->shape);
      subject.slice_text = "[" + sliced.slice + "]";
    } catch (ckpt::Error& error) {
      throw error.within({.file = subject.file, .key = subject.key});
    }
  }

  [[noreturn]] void refuse(const std::string& typed, const std::optional<ckpt::SlicedKey>& sliced) {
    if (sliced) {  // 'weight[None]'
      for (Subject& subject : matches(sliced->key, false)) add_slice(subject, *sliced, typed);
    }
    std::vector<ckpt::KeyName> names;
    if (names_ == SubjectNames::Any) names = names_of(rows_);
    for (const std::string& key : logical().keys()) names.push_back({{}, key});
    const std::string& key = sliced && sliced->is_sure ? sliced->key : typed;
    if (names_ == SubjectNames::Logical) ckpt::refuse_unknown_key(key, names);
    refuse_unknown_value(checkpoint_, std::move(names), key);
  }

  const OpenedTraining& checkpoint_;
  SubjectNames names_;
  std::vector<CatalogRow> rows_;
  std::optional<LogicalNames> logical_;
};

}  // namespace

std::vector<Subject> find_subjects(const OpenedTraining& checkpoint,
                                   std::span<const std::string> typed, SubjectNames names) {
  SubjectFinder finder(checkpoint, names);
  if (typed.empty()) return finder.all();
  std::vector<Subject> subjects;
  for (const std::string& key : typed) {
    std::vector<Subject> found = finder.named(key);
    subjects.insert(subjects.end(), found.begin(), found.end());
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
