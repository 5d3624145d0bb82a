#include <optim/update_modes.h>

#include <cstddef>

#include "rules/mode_names.h"

namespace optim {
namespace {

template <typename Mode>
std::string_view name_of(Mode mode) {
  const auto index = static_cast<size_t>(mode);
  return index < names_of(mode).size() ? names_of(mode)[index] : std::string_view("?");
}

}  // namespace

std::string_view name(MuonScaleMode mode) { return name_of(mode); }
std::string_view name(MatmulPrecision precision) { return name_of(precision); }
std::string_view name(MuonTpMode mode) { return name_of(mode); }
std::string_view name(NsCoefficients type) { return name_of(type); }
std::string_view name(Moment2Method method) { return name_of(method); }

}  // namespace optim
