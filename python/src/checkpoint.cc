// An opened checkpoint: what is in it by name, what it says of its run.
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ckpt/error.h>
#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <training/run_facts.h>
#include <training/subjects.h>
#include <training/value_at.h>

#include "module.h"

namespace python {
namespace {

Checkpoint open(const std::filesystem::path& path, std::optional<int64_t> iteration,
                bool follow_links) {
  ckpt::OpenOptions options{.iteration = iteration, .limits = {}};
  options.limits.follow_links = follow_links;
  const nb::gil_scoped_release released;
  return {std::make_shared<const optim::OpenedTraining>(optim::open_checkpoint(path, options))};
}

// As it is typed: FILE:KEY where keys are unique only within their file.
nb::str name_of(const std::string& file, const std::string& key) {
  return text(file.empty() ? key : file + ":" + key);
}

template <class Entries>
nb::list names_of(const Entries& entries) {
  nb::list names;
  for (const auto& entry : entries) names.append(name_of(entry.file, entry.key));
  return names;
}

Tensor tensor_at(const Checkpoint& checkpoint, size_t index) {
  const auto& tensors = checkpoint.opened->catalog().tensors;
  return {checkpoint.opened, Entry(checkpoint.opened, &tensors.at(index))};
}

// A value of one of the checkpoint's documents; `tensor` is called with each Tensor in it.
struct DocumentOf {
  const Opened& opened;
  const ckpt::Document& document;
  std::string file;
};
nb::object convert(const ckpt::Value& root, const DocumentOf& of, const nb::object& tensor) {
  const auto make = [&](const ckpt::Value& value, const ckpt::TensorView& view) {
    auto entry = std::make_shared<ckpt::TensorEntry>(
        make_tensor_entry(of.document, {"", value.id(), view}, of.file));
    return tensor(Tensor{of.opened, std::move(entry)});
  };
  return ckpt::within(of.file, {}, [&] { return to_python(root, make); });
}

// Of a tensor that is stored under exactly this name, without a file's; -1: there is none.
int64_t place_of(const Checkpoint& checkpoint, const std::string& key) {
  const ckpt::Catalog& catalog = checkpoint.opened->catalog();
  const ckpt::TensorEntry* const found = catalog.find_tensor(key);
  return found == nullptr ? -1 : found - catalog.tensors.data();
}

nb::object object_of(const Opened& opened, const ckpt::ObjectEntry& object,
                     const nb::object& tensor) {
  const ckpt::Document document = opened->read_object(object);
  const ckpt::Value root = document.tree.root();
  const bool is_wrapped = root.is(ckpt::Kind::List) && root.size() == 1;  // as Megatron stores it
  return convert(is_wrapped ? root[0] : root, {opened, document, object.key}, tensor);
}

nb::object value_of(const Opened& opened, const optim::Subject& subject, const nb::object& tensor) {
  if (subject.tensor != nullptr) {
    const auto owner =
        std::make_shared<std::pair<Opened, std::shared_ptr<const void>>>(opened, subject.owner);
    return tensor(Tensor{opened, Entry(owner, subject.tensor)});
  }
  if (subject.object != nullptr) return object_of(opened, *subject.object, tensor);
  const auto& files = opened->catalog().files;
  const std::string file = subject.file.empty() && !files.empty() ? files[0].path : subject.file;
  const ckpt::Document* const whole = subject.file.empty() ? opened->state() : nullptr;
  const ckpt::Document* const document = whole != nullptr ? whole : opened->document(file);
  if (document == nullptr) return to_python(*subject.value);
  return convert(*subject.value, {opened, *document, file}, tensor);
}

// The object that is stored under exactly this name, without a search.
std::vector<optim::Subject> find_exact(const Opened& opened, const std::string& key) {
  const ckpt::ObjectEntry* const object = opened->catalog().find_object(key);
  if (object == nullptr) return {};
  if (object->region) return {{.file = {}, .key = key, .object = object}};
  const ckpt::Document* const document = opened->state();
  const auto value =
      document != nullptr ? optim::value_at(document->tree.root(), key) : std::nullopt;
  if (!value) return {};
  return {{.file = {}, .key = key, .value = value}};
}

// (name, value) of what a key names, as ckpt-inspect show takes it.
nb::list find(const Checkpoint& checkpoint, const std::string& key, const nb::object& tensor) {
  std::vector<optim::Subject> subjects;
  {
    const nb::gil_scoped_release released;
    subjects = find_exact(checkpoint.opened, key);
    if (subjects.empty()) {
      subjects = optim::find_subjects(*checkpoint.opened, std::vector{key});
    }
  }
  nb::list found;
  for (const optim::Subject& subject : subjects) {
    if (subject.slice) {
      throw ckpt::Error(ckpt::ErrorCode::NotFound, {.file = subject.file, .key = key},
                        "is a slice of a key", "take the tensor by its key, then its slice");
    }
    found.append(nb::make_tuple(name_of(subject.file, subject.key),
                                value_of(checkpoint.opened, subject, tensor)));
  }
  return found;
}

// The whole of a torch.save file.
nb::object document(const Checkpoint& checkpoint, const nb::object& tensor) {
  const ckpt::Catalog& catalog = checkpoint.opened->catalog();
  const bool is_file = checkpoint.opened->was_file() && catalog.files.size() == 1;
  const std::string file = is_file ? catalog.files[0].path : "";
  const ckpt::Document* const document = is_file ? checkpoint.opened->document(file) : nullptr;
  if (document == nullptr) {
    throw ckpt::Error(ckpt::ErrorCode::InvalidArgument, {checkpoint.opened->shown_path()},
                      "is not a single torch.save file", "shardwise.open() takes any checkpoint");
  }
  return convert(document->tree.root(), {checkpoint.opened, *document, file}, tensor);
}

// A dict of the run's arguments; None where there are none.
nb::object args_of(const Checkpoint& checkpoint) {
  const optim::RunFacts facts = optim::run_facts(*checkpoint.opened);
  return facts.args ? to_python(*facts.args) : nb::none();
}

nb::object metadata_of(const Checkpoint& checkpoint) {
  if (const ckpt::ValueTree* tree = checkpoint.opened->dist_metadata()) {
    return to_python(tree->root());
  }
  nb::dict metadata;
  for (const auto& [name, value] : checkpoint.opened->header_metadata()) {
    metadata[text(name)] = text(value);
  }
  return metadata;
}

}  // namespace

nb::class_<Checkpoint> add_checkpoint(nb::module_& module) {
  const auto catalog = [](const Checkpoint& checkpoint) -> const ckpt::Catalog& {
    return checkpoint.opened->catalog();
  };
  module.def("open", open);
  return nb::class_<Checkpoint>(module, "Checkpoint")
      .def_prop_ro("format", [=](const Checkpoint& c) { return text(name(catalog(c).format)); })
      .def_prop_ro("iteration", [=](const Checkpoint& c) { return catalog(c).iteration; })
      .def_prop_ro("path", [](const Checkpoint& c) { return text(c.opened->shown_path()); })
      .def_prop_ro("tensor_names",
                   [=](const Checkpoint& c) { return names_of(catalog(c).tensors); })
      .def_prop_ro("object_names",
                   [=](const Checkpoint& c) { return names_of(catalog(c).objects); })
      .def_prop_ro("args", args_of)
      .def_prop_ro("metadata", metadata_of)
      .def("place", place_of)
      .def("tensor", tensor_at)
      .def("find", find)
      .def("document", document);
}

}  // namespace python
