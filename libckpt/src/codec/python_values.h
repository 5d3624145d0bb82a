#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include <ckpt/value_tree.h>

namespace ckpt {
namespace pickle {
// What REDUCE, NEWOBJ or NEWOBJ_EX is to make.
struct Call {
  Construction construction;
  NodeId callable, args, kwargs = kNoNode;
};

// Adds what callable(*args), or callable.__new__(callable, *args, **kwargs), is: an object, or a
// mapping whose items are the pairs that the arguments state. A dict is a Kind::Dict;
// Counter(pairs) keeps a dict of its own as its argument. Throws Error(Corrupt) for a mapping that
// Python cannot make, Error(Unsupported) for one whose pairs are not known without running code.
NodeId make_object(ValueTree& tree, const Call& call);

// A class or function that Python has without an import; Python 2 had another module for them.
bool is_builtin(const Value& callable, std::string_view name);

// An OrderedDict, a defaultdict or a Counter.
bool is_mapping_object(const Value& value);

// The pairs of what Python calls a Mapping: dict and the subclasses of its standard library.
std::optional<Value> as_mapping(const Value& value);

// Where a pair goes that the pickle sets on `value`: the dict inside a Counter, else itself.
NodeId holder_of_items(const Value& value);

// Whether Python can hash `key`.
bool is_hashable(const Value& key);

}  // namespace pickle

// The number of a signal, in whichever way Python pickles it: signal.Signals(15), signal.SIGTERM,
// getattr(signal.Signals, "SIGTERM"). Of those alone that POSIX gives a number: all others depend
// on the system, as members of other enums depend on their classes, which no file has.
std::optional<int64_t> signal_number(const Value& value);

// Whether one of two values is C(VALUE) and the other C.NAME: Python 3.11 stores members of enums
// by name, other versions by value, so that the two may be one.
bool may_be_one_member(const Value& a, const Value& b);

}  // namespace ckpt
