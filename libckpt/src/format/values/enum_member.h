#pragma once

#include <cstdint>
#include <optional>

#include <ckpt/value.h>

namespace ckpt {

// The number of a signal, in whichever way Python pickles it: signal.Signals(15), signal.SIGTERM,
// getattr(signal.Signals, "SIGTERM"). Of those alone that POSIX gives a number: all others depend
// on the system, as members of other enums depend on their classes, which no file has.
std::optional<int64_t> signal_number(const Value& value);

// Whether one of two values is C(VALUE) and the other C.NAME: Python 3.11 stores members of enums
// by name, other versions by value, so that the two may be one.
bool may_be_one_member(const Value& a, const Value& b);

}  // namespace ckpt
