#pragma once

#include <ckpt/execute.h>

#include "staging/destination.h"

namespace ckpt {

struct WriteOrder {
  const Target& target;
  const Plan& plan;
  const PayloadSource& source;
};

// As execute(), into any destination.
ExecuteStats execute_into(const WriteOrder& order, Destination& destination,
                          const ExecuteOptions& options);

}  // namespace ckpt
