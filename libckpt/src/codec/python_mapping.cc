// What Python's mappings make of the arguments that a pickle gives them, without calling anything.
// Their documentation: docs.python.org, collections and "Mapping Types".
#include "codec/python_mapping.h"

#include <ckpt/error.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace ckpt::pickle {
namespace {

constexpr int kKeyDepthMax = 64;  // of tuples inside tuples

// The mappings of Python's standard library that state dicts are made of.
enum class MappingClass : uint8_t { Dict, OrderedDict, DefaultDict, Counter };

std::optional<MappingClass> mapping_class(const Value& callable) {
  if (!callable.is(Kind::Global)) return std::nullopt;
  if (callable.is_global("collections", "OrderedDict")) return MappingClass::OrderedDict;
  if (callable.is_global("collections", "defaultdict")) return MappingClass::DefaultDict;
  if (callable.is_global("collections", "Counter")) return MappingClass::Counter;
  return is_builtin(callable, "dict") ? std::optional(MappingClass::Dict) : std::nullopt;
}

using Pairs = std::vector<std::pair<NodeId, NodeId>>;

std::string class_name(const Value& callable) {
  return std::string(callable.module()) + "." + std::string(callable.name());
}

[[noreturn]] void corrupt(const Value& callable, const std::string& problem) {
  throw Error(ErrorCode::Corrupt, {}, class_name(callable) + " " + problem);
}

[[noreturn]] void unsupported(const Value& callable, const std::string& problem) {
  throw Error(
      ErrorCode::Unsupported, {}, class_name(callable) + " " + problem,
      "load the state dict and torch.save it again: that writes it as Python's own pickle does");
}

bool is_sequence(const Value& value) { return value.is(Kind::List) || value.is(Kind::Tuple); }

// The argument of dict(argument): a mapping, or a sequence of pairs.
Pairs argument_pairs(const Value& callable, const Value& argument) {
  Pairs pairs;
  if (const auto mapping = as_mapping(argument)) {
    for (size_t i = 0; i < mapping->item_count(); ++i) {
      const auto [key, value] = mapping->item(i);
      pairs.emplace_back(key.id(), value.id());
    }
    return pairs;
  }
  if (!is_sequence(argument))
    unsupported(callable, "is called with something other than a mapping or pairs");
  for (size_t i = 0; i < argument.size(); ++i) {
    const Value pair = argument[i];
    if (!is_sequence(pair))
      unsupported(callable, "is called with a sequence that does not hold pairs");
    if (pair.size() != 2)
      corrupt(callable, "is called with a sequence of elements that are not all pairs");
    if (!is_hashable(pair[0])) corrupt(callable, "is called with a key that Python cannot hash");
    pairs.emplace_back(pair[0].id(), pair[1].id());
  }
  return pairs;
}

NodeId with_items(ValueTree& tree, NodeId mapping, const Pairs& pairs) {
  for (const auto& [key, value] : pairs) tree.set_item(mapping, key, value);
  return mapping;
}

// A sequence would be counted, not taken as pairs.
NodeId call_counter(ValueTree& tree, const Value& callable, const Value& argument) {
  if (!as_mapping(argument)) unsupported(callable, "is called with something other than a mapping");
  const Pairs pairs = argument_pairs(callable, argument);
  const NodeId callable_id = callable.id();
  const NodeId counts = with_items(tree, tree.dict(), pairs);
  return tree.object(Construction::Reduce, callable_id, tree.tuple({counts}));
}

bool is_factory(const Value& value) {
  return value.is_none() || value.is(Kind::Global) || value.is(Kind::Object);
}

// callable(*args).
NodeId call_mapping(ValueTree& tree, MappingClass type, const Value& callable, const Value& args) {
  const bool takes_factory = type == MappingClass::DefaultDict;
  const size_t pairs_at = takes_factory ? 1 : 0;
  if (args.size() > pairs_at + 1) corrupt(callable, "is called with too many arguments");
  if (takes_factory && args.size() != 0 && !is_factory(args[0])) {
    corrupt(callable, "is called with a first argument that is neither a callable nor None");
  }
  if (args.size() <= pairs_at) {
    return type == MappingClass::Dict ? tree.dict()
                                      : tree.object(Construction::Reduce, callable.id(), args.id());
  }
  const Value argument = args[pairs_at];
  if (type == MappingClass::Counter) return call_counter(tree, callable, argument);
  const Pairs pairs = argument_pairs(callable, argument);
  if (type == MappingClass::Dict) return with_items(tree, tree.dict(), pairs);
  const NodeId rest = takes_factory ? tree.tuple({args[0].id()}) : tree.tuple();
  return with_items(tree, tree.object(Construction::Reduce, callable.id(), rest), pairs);
}

// callable.__new__(callable, *args, **kwargs): no arguments reach the mapping.
void refuse_arguments(const Value& callable, const Value& args, NodeId kwargs) {
  const bool has_kwargs = kwargs != kNoNode && callable.tree().value(kwargs).item_count() != 0;
  if (args.size() == 0 && !has_kwargs) return;
  unsupported(callable, "is built by NEWOBJ with arguments, which Python ignores");
}

// Tuples that share their elements are looked at once for each mention: `visits` bounds that.
bool is_hashable(const Value& key, int depth, int& visits) {
  switch (key.kind()) {
    case Kind::List:
    case Kind::Dict:
    case Kind::Set:
    case Kind::ByteArray: return false;
    case Kind::Object: return !mapping_class(key.callable());
    case Kind::Tuple: break;
    default: return true;
  }
  for (size_t i = 0; i < key.size() && depth < kKeyDepthMax && visits-- > 0; ++i) {
    if (!is_hashable(key[i], depth + 1, visits)) return false;
  }
  return true;
}

}  // namespace

NodeId make_object(ValueTree& tree, const Call& call) {
  const Value callable = tree.value(call.callable), args = tree.value(call.args);
  const auto type = mapping_class(callable);
  if (!type) return tree.object(call.construction, call.callable, call.args, call.kwargs);
  if (call.construction == Construction::Reduce) return call_mapping(tree, *type, callable, args);
  refuse_arguments(callable, args, call.kwargs);
  if (type == MappingClass::Dict) return tree.dict();
  return tree.object(call.construction, call.callable, call.args, call.kwargs);
}

bool is_builtin(const Value& callable, std::string_view name) {
  return callable.is_global("builtins", name) || callable.is_global("__builtin__", name);
}

bool is_mapping_object(const Value& value) {
  return value.is(Kind::Object) && mapping_class(value.callable()).has_value();
}

std::optional<Value> as_mapping(const Value& value) {
  if (value.is(Kind::Dict)) return value;
  if (!is_mapping_object(value)) return std::nullopt;
  return value.tree().value(holder_of_items(value));
}

NodeId holder_of_items(const Value& value) {
  const bool is_counter =
      is_mapping_object(value) && mapping_class(value.callable()) == MappingClass::Counter;
  return is_counter && value.args().size() == 1 ? value.args()[0].id() : value.id();
}

bool is_hashable(const Value& key) {
  int visits = 1000;
  return is_hashable(key, 0, visits);
}

}  // namespace ckpt::pickle
