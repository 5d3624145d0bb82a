#include <ckpt/document.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <unordered_set>

#include <ckpt/error.h>

#include "base/text.h"
#include "format/values/nesting.h"
#include "format/values/torch_values.h"

namespace ckpt {
namespace {

constexpr int kKeyDepthMax = 8;
constexpr size_t kTupleTextBytesMax = 4096;  // a tuple may hold one tuple a thousand times

// Python's repr() of a float: the shortest digits that read back, with a point or an exponent.
std::string float_text(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  char buffer[32];
  const double magnitude = std::fabs(value);
  const bool scientific = magnitude != 0 && (magnitude < 1e-4 || magnitude >= 1e16);
  const auto form = scientific ? std::chars_format::scientific : std::chars_format::fixed;
  const auto [end, error] = std::to_chars(buffer, std::end(buffer), value, form);
  std::string text(buffer, end);
  if (!scientific && text.find('.') == text.npos) text += ".0";
  return text;
}

std::string global_text(const Value& value) {
  const std::string_view module = value.module();
  const bool is_built_in = module == "builtins" || module == "__builtin__";
  const std::string full =
      (is_built_in ? "" : std::string(module) + ".") + std::string(value.name());
  return as_dtype(value) ? full : "<class '" + full + "'>";
}

// Python's repr() of bytes.
std::string bytes_text(std::string_view bytes) {
  const bool has_single = bytes.find('\'') != bytes.npos;
  const char quote = has_single && bytes.find('"') == bytes.npos ? '"' : '\'';
  std::string text = {'b', quote};
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == quote || c == '\\') {
      text += {'\\', c};
    } else if (c == '\n' || c == '\r' || c == '\t') {
      text += {'\\', c == '\n' ? 'n' : c == '\r' ? 'r' : 't'};
    } else if (byte < 0x20 || byte > 0x7E) {
      text += "\\x";
      append_hex(text, byte, 2);
    } else {
      text += c;
    }
  }
  return text + quote;
}

// Bytes as protocol 2 has them: _codecs.encode(text, 'latin1') or bytes(); nullopt for other calls.
std::optional<std::string> latin1_bytes(const Value& value) {
  if (pickle::is_builtin(value.callable(), "bytes") && value.args().size() == 0) return "";
  if (!value.callable().is_global("_codecs", "encode") || value.args().size() != 2) {
    return std::nullopt;
  }
  const Value text = value.args()[0], encoding = value.args()[1];
  if (!text.is(Kind::Str) || !encoding.is(Kind::Str) || encoding.text() != "latin1") {
    return std::nullopt;
  }
  std::string bytes;
  for (std::string_view utf8 = text.text(); !utf8.empty();) {
    const Utf8Char next = first_utf8_char(utf8);
    if (next.count_bytes == 0 || next.code_point > 0xFF) return std::nullopt;
    bytes += static_cast<char>(next.code_point);
    utf8.remove_prefix(next.count_bytes);
  }
  return bytes;
}

std::string text_of(const Value& value, int depth);

// In the order of the pickle.
std::string elements_text(const Value& value, int depth) {
  std::string text;
  for (size_t i = 0; i < value.size(); ++i) {
    if (text.size() > kTupleTextBytesMax) return text + ", ...";
    text += (i ? ", " : "") + text_of(value[i], depth + 1);
  }
  return text;
}

// frozenset([...]) of protocols below 4.
std::optional<Value> frozenset_elements(const Value& value) {
  const Value args = value.args();
  const bool is_call = pickle::is_builtin(value.callable(), "frozenset") && args.size() == 1;
  return is_call && args[0].is(Kind::List) ? std::optional(args[0]) : std::nullopt;
}

std::string frozenset_text(const Value& elements, int depth) {
  if (elements.size() == 0) return "frozenset()";
  if (depth == kKeyDepthMax) return "frozenset({...})";
  return "frozenset({" + elements_text(elements, depth) + "})";
}

// In the order of the pickle.
std::string dict_text(const Value& value, int depth) {
  std::string text;
  for (size_t i = 0; i < value.item_count(); ++i) {
    if (text.size() > kTupleTextBytesMax) return "{" + text + ", ...}";
    const auto [key, item] = value.item(i);
    text += (i ? ", " : "") + text_of(key, depth + 1) + ": " + text_of(item, depth + 1);
  }
  return "{" + text + "}";
}

// Its arguments and its state tell it from others of the class.
std::string object_text(const Value& value, int depth) {
  std::string text =
      "<" + std::string(value.callable().module()) + "." + std::string(value.callable().name());
  if (depth < kKeyDepthMax) {
    text += text_of(value.args(), depth + 1);
    if (const auto state = value.state()) text += " " + text_of(*state, depth + 1);
  }
  return text + ">";
}

std::string text_of(const Value& value, int depth) {
  switch (value.kind()) {
    case Kind::None: return "None";
    case Kind::Bool: return value.as_bool() ? "True" : "False";
    case Kind::Int: return std::to_string(value.as_int());
    case Kind::BigInt: return std::string(value.text());
    case Kind::Float: return float_text(value.as_float());
    case Kind::Str:
      return depth == 0 ? std::string(value.text()) : "'" + std::string(value.text()) + "'";
    case Kind::Global: return global_text(value);
    case Kind::Tuple: {
      if (depth == kKeyDepthMax) return "(...)";
      return "(" + elements_text(value, depth) + (value.size() == 1 ? ",)" : ")");
    }
    case Kind::Bytes: return bytes_text(value.text());
    case Kind::FrozenSet: return frozenset_text(value, depth);
    case Kind::Object:
      if (const auto bytes = latin1_bytes(value)) return bytes_text(*bytes);
      if (const auto elements = frozenset_elements(value)) return frozenset_text(*elements, depth);
      if (value.callable().is(Kind::Global)) {
        return object_text(value, depth);
      }
      return "<key>";
    case Kind::Dict: return depth == 0 || depth == kKeyDepthMax ? "<key>" : dict_text(value, depth);
    default: return "<key>";
  }
}

// Depth-first search for tensors with a stack of its own; a value that contains itself is not
// entered again, and sharing that multiplies the work without bound is refused.
class TensorSearch {
 public:
  explicit TensorSearch(const Value& root)
      : root_(root), visits_left_(16 * root.tree().node_count() + (1U << 20)) {}

  FoundTensors run() {
    open_.push_back({root_.id(), {}, false});
    while (!open_.empty()) {
      const Step step = std::move(open_.back());
      open_.pop_back();
      if (step.leave) {
        ancestors_.erase(step.id);
      } else {
        enter(step);
      }
    }
    return std::move(found_);
  }

 private:
  struct Step {
    NodeId id;
    PointerPath::Step place;
    bool leave;  // all below it was visited
    Kind key_kind = Kind::Str;
  };

  void enter(const Step& step) {
    const Value value = root_.tree().value(step.id);
    if (!holds_values(value.kind())) return;
    pointer_.enter(step.place);
    if (visits_left_-- == 0) {
      throw Error(ErrorCode::Unsupported, {.file = {}, .key = pointer_.shortened()},
                  "values are shared so often that listing them does not end");
    }
    if (auto view = tensor_at(value)) {
      found_.tensors.push_back({pointer_.whole(), step.id, std::move(*view), step.key_kind});
      return;
    }
    if (as_wrapped(value)) {
      found_.wrapped.push_back({pointer_.whole(), step.id, found_.tensors.size()});
    }
    if (!ancestors_.insert(step.id).second) return;
    open_.push_back({step.id, {}, true});
    open_children(value);
  }

  static bool holds_values(Kind kind) {
    return kind == Kind::List || kind == Kind::Tuple || kind == Kind::Dict || kind == Kind::Object;
  }

  std::optional<TensorView> tensor_at(const Value& value) const {
    try {
      return as_tensor(value);
    } catch (Error& error) {
      throw error.within({.file = {}, .key = pointer_.shortened()});
    }
  }

  void open_children(const Value& value) {
    const size_t first = open_.size();
    if (!value.is(Kind::Dict)) {
      for (size_t i = 0; i < value.size(); ++i) {
        if (!holds_values(value[i].kind())) continue;
        open_.push_back({value[i].id(), pointer_.child(i), false});
      }
    }
    if (value.is(Kind::Dict) || value.is(Kind::Object)) {
      open_items(as_mapping(value).value_or(value), "");
    }
    if (value.is(Kind::Object)) open_attributes(value);
    std::reverse(open_.begin() + static_cast<ptrdiff_t>(first), open_.end());
  }

  // The state is a dictionary, or a pair of them: that of the instance and that of its slots; a
  // class with __setstate__ may be given anything.
  void open_attributes(const Value& value) {
    const auto state = state_of(value);
    if (!state) return;
    if (state->is(Kind::Dict)) return open_items(*state, "@");
    if (is_pair_of_dicts(*state)) {
      for (size_t i = 0; i < state->size(); ++i) {
        if ((*state)[i].is(Kind::Dict)) open_items((*state)[i], "@");
      }
    } else if (holds_values(state->kind())) {
      open_.push_back({state->id(), pointer_.child("@__setstate__"), false});
    }
  }

  // What BUILD gave an object, or _rebuild_from_type_v2(function, type, args, state).
  static std::optional<Value> state_of(const Value& value) {
    if (value.state()) return value.state();
    if (!value.callable().is_global("torch._tensor", "_rebuild_from_type_v2")) return std::nullopt;
    const Value args = value.args();
    return args.is(Kind::Tuple) && args.size() == 4 ? std::optional(args[3]) : std::nullopt;
  }

  void open_items(const Value& value, const char* mark) {
    for (const auto& [key, child] : items_of(value)) {
      if (!holds_values(child.kind())) continue;
      open_.push_back({child.id(), pointer_.child(mark + key_text(key)), false, key.kind()});
    }
  }

  Value root_;
  uint64_t visits_left_;
  std::vector<Step> open_;
  PointerPath pointer_;
  std::unordered_set<NodeId> ancestors_;
  FoundTensors found_;
};

}  // namespace

const StorageRecord* Document::find_storage(std::string_view key) const {
  const auto found = std::ranges::lower_bound(storages, key, {}, &StorageRecord::key);
  return found != storages.end() && found->key == key ? &*found : nullptr;
}

std::string key_text(const Value& key) { return text_of(key, 0); }

std::vector<TensorAt> tensors_in(const Document& document) {
  return tensors_in(document.tree.root());
}

std::vector<TensorAt> tensors_in(const Value& root) { return find_tensors(root).tensors; }

FoundTensors find_tensors(const Value& root) { return TensorSearch(root).run(); }

}  // namespace ckpt
