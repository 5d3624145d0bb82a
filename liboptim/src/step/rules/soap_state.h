#pragma once

#include <optim/update_rule.h>

namespace optim {

// Throws Error(InvalidArgument), with "STATE.PARAMETER", for a state of SOAP that no step can begin
// from: NaN or infinity in any, another shape, negative squares, a factor that is not positive
// semi-definite (a negative number on its diagonal, or one beside it that is too large for a
// 2 x 2 minor). Absent states are fine.
void check_soap_state(const UpdateTarget& target);

}  // namespace optim
