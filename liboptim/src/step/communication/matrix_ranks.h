#pragma once

#include <optim/matrix_split.h>

#include "step/communication/collectives.h"

namespace optim {

// A failure of one is a failure of both.
std::shared_ptr<MatrixRanks> make_matrix_ranks(const ProcessGroupPtr& group,
                                               const Collectives& other);

}  // namespace optim
