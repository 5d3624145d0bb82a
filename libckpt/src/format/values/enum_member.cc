#include "format/values/enum_member.h"

#include <algorithm>
#include <iterator>
#include <string_view>

#include "codec/python_mapping.h"

namespace ckpt {
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

}  // namespace ckpt
