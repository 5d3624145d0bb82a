#pragma once

#include <ckpt/hash.h>
#include <ckpt/plan.h>

namespace ckpt {

// Of everything that decides which bytes a target's files will hold, but for the payload itself:
// paths and sizes, archives, value trees, literal bytes, and where each record comes from.
Sha256 plan_digest(const Target& target, const Plan& plan);

}  // namespace ckpt
