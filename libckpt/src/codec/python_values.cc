// What Python makes of values, without calling anything: mappings out of the arguments that a
// pickle gives them (docs.python.org, collections and "Mapping Types"), members of enums, and keys
// that are equal: 1, 1.0 and True; (1, 2) and (True, 2.0); never 1 and "1".
#include "codec/python_values.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <iterator>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include <ckpt/error.h>

#include "codec/value_nodes.h"

namespace ckpt {
namespace pickle {
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
    for (const auto& [key, value] : items_of(*mapping)) {
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

}  // namespace pickle

namespace {

// The numbers that POSIX fixes (kill); all others depend on the system.
struct Signal {
  int64_t number;
  std::string_view name;
};
constexpr Signal kSignals[] = {{1, "SIGHUP"},  {2, "SIGINT"},   {3, "SIGQUIT"}, {6, "SIGABRT"},
                               {9, "SIGKILL"}, {14, "SIGALRM"}, {15, "SIGTERM"}};

bool is_call(const Value& value, size_t args) {
  return value.is(Kind::Object) && value.construction() == Construction::Reduce &&
         value.callable().is(Kind::Global) && value.args().is(Kind::Tuple) &&
         value.args().size() == args && value.size() == 0 && value.item_count() == 0 &&
         !value.state();
}

std::optional<int64_t> number_of(std::string_view name) {
  const auto row = std::ranges::find(kSignals, name, &Signal::name);
  return row == std::end(kSignals) ? std::nullopt : std::optional(row->number);
}

// What NAME is looked up in, and NAME: of getattr(C, NAME), or of the module's own NAME.
struct Named {
  std::string_view module, holder, name;
};

std::optional<Named> named_by(const Value& value) {
  if (value.is(Kind::Global)) {
    const size_t dot = value.name().rfind('.');
    const bool is_nested = dot != std::string_view::npos;
    return Named{value.module(), is_nested ? value.name().substr(0, dot) : "",
                 value.name().substr(is_nested ? dot + 1 : 0)};
  }
  if (!is_call(value, 2) || !pickle::is_builtin(value.callable(), "getattr")) return std::nullopt;
  const Value holder = value.args()[0], attribute = value.args()[1];
  if (!holder.is(Kind::Global) || !attribute.is(Kind::Str)) return std::nullopt;
  return Named{holder.module(), holder.name(), attribute.text()};
}

bool is_signal(const Named& named) {
  return named.module == "signal" && (named.holder.empty() || named.holder == "Signals");
}

bool calls_signals(const Value& value) {
  return is_call(value, 1) && value.callable().is_global("signal", "Signals");
}

// C(VALUE), and what is named in C; a signal is named in its module, too.
bool is_maybe_named(const Value& call, const Value& by_name) {
  if (!is_call(call, 1) || signal_number(call)) return false;
  const auto named = named_by(by_name);
  if (!named || named->module != call.callable().module()) return false;
  return named->holder == call.callable().name() || (calls_signals(call) && is_signal(*named));
}

// 2^63 and beyond, exactly: such a float is an integer.
std::string decimal_of(double integral) {
  char buffer[400];
  const int length = std::snprintf(buffer, sizeof buffer, "%.0f", integral);
  return {buffer, static_cast<size_t>(length)};
}

std::string number_identity(std::string_view decimal) {
  const bool is_negative = decimal.starts_with('-');
  if (is_negative) decimal.remove_prefix(1);
  while (decimal.size() > 1 && decimal.front() == '0') decimal.remove_prefix(1);
  const bool is_zero = decimal == "0";
  return (is_negative && !is_zero ? "I-" : "I") + std::string(decimal);
}

std::string self(const Value& key) { return "#" + std::to_string(key.id()); }

std::string float_identity(const Value& key) {
  const double value = key.as_float();
  if (std::isnan(value)) return self(key);
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  if (std::trunc(value) == value) return number_identity(decimal_of(value));
  return "D" + std::to_string(std::bit_cast<uint64_t>(value));
}

// Text that two keys share if they are equal. Keys that only code could compare (other objects),
// NaN, and tuples of too many values to look into, are equal to themselves alone.
class KeyIdentity {
 public:
  std::string of(const Value& key) {
    switch (key.kind()) {
      case Kind::None: return "N";
      case Kind::Bool:
      case Kind::Int: return number_identity(std::to_string(key.as_int()));
      case Kind::BigInt: return number_identity(key.text());
      case Kind::Float: return float_identity(key);
      case Kind::Str: return "S" + std::string(key.text());
      case Kind::Bytes: return "B" + std::string(key.text());
      case Kind::Global: return "G" + std::string(key.module()) + '\0' + std::string(key.name());
      case Kind::Tuple:
      case Kind::FrozenSet: return of_elements(key);
      default: return self(key);
    }
  }

 private:
  std::string of_elements(const Value& key) {
    if (key.size() > values_left_) return self(key);
    values_left_ -= key.size();
    std::vector<std::string> elements;
    for (size_t i = 0; i < key.size(); ++i) elements.push_back(of(key[i]));
    const bool is_set = key.is(Kind::FrozenSet);
    if (is_set) {
      std::ranges::sort(elements);
      elements.erase(std::unique(elements.begin(), elements.end()), elements.end());
    }
    std::string text = is_set ? "Z" : "T";
    for (const std::string& element : elements) {
      text += std::to_string(element.size()) + ':' + element;
    }
    return text;
  }

  size_t values_left_ = 64;
};

void merge(const ValueTree& tree, std::vector<NodeId>& items) {
  if (items.size() <= 2) return;
  std::unordered_map<std::string, size_t> place_of;
  place_of.reserve(items.size() / 2);
  size_t kept = 0;
  for (size_t i = 0; i < items.size(); i += 2) {
    const auto [known, is_new] = place_of.emplace(KeyIdentity().of(tree.value(items[i])), kept);
    if (is_new) {
      items[kept] = items[i];
      kept += 2;
    }
    items[known->second + 1] = items[i + 1];
  }
  items.resize(kept);
}

}  // namespace

std::optional<int64_t> signal_number(const Value& value) {
  if (!value.is(Kind::Object) && !value.is(Kind::Global)) return std::nullopt;
  if (calls_signals(value)) {
    const Value number = value.args()[0];
    const bool is_known =
        number.is(Kind::Int) &&
        std::ranges::find(kSignals, number.as_int(), &Signal::number) != std::end(kSignals);
    return is_known ? std::optional(number.as_int()) : std::nullopt;
  }
  const auto named = named_by(value);
  return named && is_signal(*named) ? number_of(named->name) : std::nullopt;
}

bool may_be_one_member(const Value& a, const Value& b) {
  return is_maybe_named(a, b) || is_maybe_named(b, a);
}

void ValueTree::merge_equal_keys() {
  for (NodeId id = 0; id < node_count(); ++id) {
    if (pickle::as_mapping(value(id))) merge(*this, nodes_->items_to_change(id));
  }
}

}  // namespace ckpt
