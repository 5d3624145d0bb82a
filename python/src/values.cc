// Values of pickles as Python's, without recursion: a file says how deep they are.
#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include <ckpt/error.h>
#include <ckpt/value_tree.h>

#include "module.h"

namespace python {
namespace {

using ckpt::Kind;
using ckpt::NodeId;
using ckpt::Value;

// Python hashes nested tuples by recursion, and what several hold several times.
constexpr unsigned kDepthMax = 1000;
constexpr uint64_t kHashedMax = 1'000'000;
struct Nesting {
  unsigned depth = 1;
  uint64_t count = 0;  // of values, however often they are shared
};

nb::object steal(PyObject* made) {
  if (made == nullptr) throw nb::python_error();
  return nb::steal(made);
}

nb::object bytes_of(const Value& value) {
  const std::string_view content = value.text();
  const auto size = static_cast<Py_ssize_t>(content.size());
  return steal(value.is(Kind::Bytes) ? PyBytes_FromStringAndSize(content.data(), size)
                                     : PyByteArray_FromStringAndSize(content.data(), size));
}

// The class `module.name` of a value's callable; empty: it is no plain class.
std::string class_of(const Value& object) {
  const Value callable = object.callable();
  if (!callable.is(Kind::Global)) return {};
  return std::string(callable.module()) + "." + std::string(callable.name());
}

// Latin-1 as UTF-8: how protocol 2 writes bytes.
nb::object bytes_of_latin_1(const Value& str) {
  PyObject* const encoded = PyUnicode_AsLatin1String(text(str.text()).ptr());
  if (encoded != nullptr) return nb::steal(encoded);
  PyErr_Clear();
  return nb::none();
}

// What holds nothing but itself: torch.Size((2, 3)), complex(1.0, 2.0), bytes of protocol 2.
std::optional<nb::object> plain_of(const Value& object) {
  const Value args = object.args();
  const std::string name = class_of(object);
  if (!args.is(Kind::Tuple)) return std::nullopt;
  if (name == "torch.Size" && args.size() == 1 && args[0].is(Kind::Tuple)) {
    nb::list sizes;
    for (size_t i = 0; i < args[0].size(); ++i) sizes.append(args[0][i].as_int());
    return nb::tuple(sizes);
  }
  if (args.size() != 2) return std::nullopt;
  if (name == "builtins.complex" || name == "__builtin__.complex") {
    return steal(PyComplex_FromDoubles(args[0].as_float(), args[1].as_float()));
  }
  if (name == "_codecs.encode" && args[0].is(Kind::Str)) {
    nb::object bytes = bytes_of_latin_1(args[0]);
    if (!bytes.is_none()) return bytes;
  }
  return std::nullopt;
}

// set([...]), how protocol 2 writes one.
bool is_set(const Value& object) {
  const std::string name = class_of(object);
  return (name == "builtins.set" || name == "__builtin__.set") && object.args().is(Kind::Tuple) &&
         object.args().size() == 1 && object.args()[0].is(Kind::List);
}

bool is_ordered_dict(const Value& object) {
  return class_of(object) == "collections.OrderedDict" && object.args().is(Kind::Tuple) &&
         object.args().size() == 0;
}

// Containers that may hold themselves are made empty and filled when all that they hold was made;
// the others are made when their parts are there.
class Converter {
 public:
  explicit Converter(const MakeTensor& tensor)
      : tensor_(tensor), classes_(nb::module_::import_("shardwise._values")) {}

  nb::object convert(const Value& root) {
    nb::object made = make(root);
    while (!to_fill_.empty()) {
      const Value next = to_fill_.back();
      to_fill_.pop_back();
      fill(next);
    }
    return made;
  }

 private:
  [[noreturn]] static void refuse(const std::string& problem) {
    throw ckpt::Error(ckpt::ErrorCode::Corrupt, {}, problem);
  }

  // What has its own place in memory before its parts have: nullopt for the others.
  std::optional<nb::object> make_alone(const Value& value) {
    switch (value.kind()) {
      case Kind::None: return nb::none();
      case Kind::Bool: return nb::bool_(value.as_bool());
      case Kind::Int: return nb::int_(value.as_int());
      case Kind::BigInt:
        return steal(PyLong_FromString(std::string(value.text()).c_str(), nullptr, 10));
      case Kind::Float: return nb::float_(value.as_float());
      case Kind::Str: return text(value.text());
      case Kind::Bytes:
      case Kind::ByteArray: return bytes_of(value);
      case Kind::Global: return classes_.attr("Global")(text(value.module()), text(value.name()));
      case Kind::List: return to_be_filled(value, nb::list());
      case Kind::Dict: return to_be_filled(value, nb::dict());
      case Kind::Set: return to_be_filled(value, steal(PySet_New(nullptr)));
      case Kind::Object: return make_object(value);
      case Kind::PersistentId: return to_be_filled(value, classes_.attr("Inert")());
      default: return std::nullopt;  // Tuple, FrozenSet
    }
  }

  nb::object to_be_filled(const Value& value, nb::object empty) {
    to_fill_.push_back(value);
    return empty;
  }

  nb::object make_object(const Value& value) {
    if (tensor_) {
      if (const auto view = ckpt::as_tensor(value)) return tensor_(value, *view);
    }
    if (auto plain = plain_of(value)) return std::move(*plain);
    if (is_set(value)) return to_be_filled(value, steal(PySet_New(nullptr)));
    if (is_ordered_dict(value)) {
      return to_be_filled(value, nb::module_::import_("collections").attr("OrderedDict")());
    }
    return to_be_filled(value, classes_.attr("Inert")());
  }

  nb::object known(const Value& value) const { return made_.at(value.id()); }

  // Makes a value, and before it the parts of those that need them, deepest first.
  nb::object make(const Value& root) {
    std::vector<Value> open{root};
    while (!open.empty()) {
      const Value value = open.back();
      if (made_.contains(value.id())) {
        open.pop_back();
      } else if (auto alone = make_alone(value)) {
        made_.emplace(value.id(), std::move(*alone));
        open.pop_back();
      } else if (!add_missing_parts(value, open)) {
        made_.emplace(value.id(), make_of_parts(value));
        open.pop_back();
      }
    }
    return known(root);
  }

  bool add_missing_parts(const Value& value, std::vector<Value>& open) {
    const bool is_new = begun_.insert(value.id()).second;
    bool is_missing = false;
    for (size_t i = 0; i < value.size(); ++i) {
      if (made_.contains(value[i].id())) continue;
      open.push_back(value[i]);
      is_missing = true;
    }
    if (is_missing && !is_new) refuse("a tuple holds itself");
    return is_missing;
  }

  nb::object make_of_parts(const Value& value) {
    nb::list parts;
    Nesting nesting;
    for (size_t i = 0; i < value.size(); ++i) {
      parts.append(known(value[i]));
      const auto nested = nestings_.find(value[i].id());
      if (nested == nestings_.end()) continue;
      nesting.depth = std::max(nesting.depth, nested->second.depth + 1);
      nesting.count = std::min(kHashedMax + 1, nesting.count + nested->second.count);
    }
    if (nesting.depth > kDepthMax) refuse("more than 1000 tuples are nested");
    nesting.count = std::min<uint64_t>(kHashedMax + 1, nesting.count + value.size());
    nestings_[value.id()] = nesting;
    if (value.is(Kind::Tuple)) return nb::tuple(parts);
    check_key(value);  // its members are hashed
    PyObject* const set = PyFrozenSet_New(parts.ptr());
    if (set == nullptr) refuse_unhashable();
    return nb::steal(set);
  }

  // Python hashes a tuple by all that is in it, as often as it is there.
  void check_key(const Value& key) const {
    const auto nested = nestings_.find(key.id());
    if (nested == nestings_.end() || nested->second.count <= kHashedMax) return;
    refuse("a key holds more than a million values");
  }

  [[noreturn]] static void refuse_unhashable() {
    if (!PyErr_ExceptionMatches(PyExc_TypeError)) throw nb::python_error();
    PyErr_Clear();
    refuse("a key of a mapping, or a member of a set, is mutable");
  }

  void fill(const Value& value) {
    const nb::object container = known(value);
    switch (value.kind()) {
      case Kind::List:
        for (size_t i = 0; i < value.size(); ++i) {
          if (PyList_Append(container.ptr(), make(value[i]).ptr()) != 0) throw nb::python_error();
        }
        break;
      case Kind::Set: fill_set(value, container); break;
      case Kind::Dict: fill_items(value, container); break;
      case Kind::PersistentId:
        container.attr("cls") = text("persistent id");
        container.attr("args") = make(value.persistent_id());
        break;
      default: fill_object(value, container);
    }
  }

  void fill_set(const Value& members, const nb::object& set) {
    for (size_t i = 0; i < members.size(); ++i) {
      const nb::object member = make(members[i]);
      check_key(members[i]);
      if (PySet_Add(set.ptr(), member.ptr()) != 0) refuse_unhashable();
    }
  }

  void fill_items(const Value& value, const nb::object& mapping) {
    for (const auto& [key, item] : ckpt::items_of(value)) {
      const nb::object made_key = make(key), made_item = make(item);
      check_key(key);
      if (PyObject_SetItem(mapping.ptr(), made_key.ptr(), made_item.ptr()) != 0) {
        refuse_unhashable();
      }
    }
  }

  // Of state dicts the attribute in which torch keeps versions of modules; no other one.
  void fill_ordered_dict(const Value& value, const nb::object& mapping) {
    fill_items(value, mapping);
    const auto state = value.state();
    if (!state || !state->is(Kind::Dict)) return;
    if (const auto metadata = state->find("_metadata")) mapping.attr("_metadata") = make(*metadata);
  }

  void fill_object(const Value& value, const nb::object& inert) {
    if (is_set(value)) return fill_set(value.args()[0], inert);
    if (is_ordered_dict(value)) return fill_ordered_dict(value, inert);
    inert.attr("cls") = make(value.callable());
    inert.attr("args") = make(value.args());
    if (const auto kwargs = value.kwargs()) inert.attr("kwargs") = make(*kwargs);
    if (const auto state = value.state()) inert.attr("state") = make(*state);
    nb::list elements;
    for (size_t i = 0; i < value.size(); ++i) elements.append(make(value[i]));
    inert.attr("elements") = elements;
    nb::dict items;
    fill_items(value, items);
    inert.attr("items") = items;
  }

  const MakeTensor& tensor_;
  nb::module_ classes_;
  std::unordered_map<NodeId, nb::object> made_;
  std::unordered_set<NodeId> begun_;              // tuples whose parts were asked for
  std::unordered_map<NodeId, Nesting> nestings_;  // of tuples in tuples
  std::vector<Value> to_fill_;
};

}  // namespace

nb::object to_python(const Value& root, const MakeTensor& tensor) {
  return Converter(tensor).convert(root);
}

nb::str text(std::string_view utf8) {
  const auto size = static_cast<Py_ssize_t>(utf8.size());
  PyObject* made = PyUnicode_DecodeUTF8(utf8.data(), size, "surrogatepass");
  if (made == nullptr && PyErr_ExceptionMatches(PyExc_UnicodeDecodeError) != 0) {
    PyErr_Clear();
    made = PyUnicode_DecodeUTF8(utf8.data(), size, "surrogateescape");
  }
  if (made == nullptr) throw nb::python_error();
  return nb::steal<nb::str>(made);
}

}  // namespace python
