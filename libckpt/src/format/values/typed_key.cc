#include "format/values/typed_key.h"

#include <charconv>
#include <span>
#include <utility>
#include <vector>

#include <ckpt/dtype.h>
#include <ckpt/error.h>

#include "base/byte_reader.h"
#include "codec/pickle.h"
#include "codec/value_nodes.h"

namespace ckpt {
namespace {

bool is_integer_text(std::string_view text) {
  if (text.starts_with('-')) text.remove_prefix(1);
  if (text.empty() || text.find_first_not_of("0123456789") != text.npos) return false;
  return text.size() == 1 || text[0] != '0';
}

bool is_float_text(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return false;
  ValueTree tree;
  return key_text(tree.value(tree.real(value))) == text;
}

bool is_enclosed(std::string_view text, std::string_view first, std::string_view last) {
  return text.size() >= first.size() + last.size() && text.starts_with(first) &&
         text.ends_with(last);
}

bool is_dtype_text(std::string_view text) {
  constexpr std::string_view kModule = "torch.";
  return text.starts_with(kModule) && dtype_named(text.substr(kModule.size())).has_value();
}

bool is_object_text(std::string_view text) {
  return text == "<key>" || (is_enclosed(text, "<", ">") && text.find('(') != text.npos);
}

bool reads_as_other_type(std::string_view text) {
  if (text.empty()) return false;
  switch (text[0]) {
    case '\'':
    case '"': return true;  // in quotes already
    case '(': return is_enclosed(text, "(", ")");
    case '<': return is_enclosed(text, "<class '", "'>") || is_object_text(text);
    case 'b': return is_enclosed(text, "b'", "'") || is_enclosed(text, "b\"", "\"");
    case 'f': return is_enclosed(text, "frozenset(", ")");
    case 't': return is_dtype_text(text);
    default: break;
  }
  return text == "None" || text == "True" || text == "False" || is_integer_text(text) ||
         is_float_text(text);
}

std::string quoted(std::string_view text) {
  std::string out = "'";
  for (const char c : text) {
    if (c == '\'' || c == '\\') out += '\\';
    out += c;
  }
  return out + "'";
}

[[noreturn]] void corrupt(std::string_view key, const std::string& problem) {
  throw Error(ErrorCode::Corrupt, {.file = ".metadata", .key = std::string(key)},
              std::string(TypedPaths::kAttribute) + " " + problem);
}

bool is_same_step(const Value& typed, const Value& step) {
  if (step.is(Kind::Int)) return typed.is(Kind::Int) && typed.as_int() == step.as_int();
  return key_text(typed) == key_text(step);
}

}  // namespace

std::string typed_text(std::string_view text) {
  return reads_as_other_type(text) ? quoted(text) : std::string(text);
}

std::string typed_key_text(const Value& key) {
  if (key.is(Kind::Str)) return typed_text(key.text());
  return key_text(key);
}

TypedPaths::TypedPaths(const ValueTree& dist_metadata) {
  const auto fields = dist_metadata.root().state();
  const auto pickled = fields && fields->is(Kind::Dict) ? fields->find(kAttribute) : std::nullopt;
  if (!pickled) return;
  if (!pickled->is(Kind::Bytes)) corrupt({}, "is not bytes");
  ByteReader reader(std::as_bytes(std::span(pickled->text())), ".metadata");
  auto document = std::make_shared<Document>(Document{pickle::read(reader), {}});
  const Value root = document->tree.root();
  if (!reader.at_end() || !root.is(Kind::Dict)) corrupt({}, "is not the pickle of a dict");
  for (const auto& [key, path] : items_of(root)) {
    if (!key.is(Kind::Str) || !path.is(Kind::Tuple)) corrupt({}, "has an item that is not a path");
    paths_.insert_or_assign(std::string(key.text()), path);
  }
  document_ = std::move(document);
}

std::optional<Value> TypedPaths::find(std::string_view fqn, const Value& path) const {
  const auto found = paths_.find(fqn);
  if (found == paths_.end()) return std::nullopt;
  const Value& typed = found->second;
  if (typed.size() != path.size())
    corrupt(fqn, "has a path that differs in length from planner_data's");
  for (size_t i = 0; i < path.size(); ++i) {
    if (!can_hold(typed[i]) || !is_same_step(typed[i], path[i])) {
      corrupt(fqn, "has a step that differs from planner_data's: " + escaped(key_text(typed[i])));
    }
  }
  return typed;
}

bool TypedPaths::can_hold(const Value& key) {
  constexpr size_t kValuesMax = 256;
  std::vector<NodeId> open = {key.id()};
  for (size_t seen = 0; !open.empty(); ++seen) {
    const Value value = key.tree().value(open.back());
    open.pop_back();
    if (seen == kValuesMax || value.is(Kind::PersistentId)) return false;
    for_each_child(value, [&](const Value& child) { open.push_back(child.id()); });
  }
  return true;
}

}  // namespace ckpt
