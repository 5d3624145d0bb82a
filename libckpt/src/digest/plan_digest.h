#pragma once

#include <span>

#include <ckpt/hash.h>
#include <ckpt/plan.h>

namespace ckpt {

// Of everything that decides which bytes a target's files will hold, but for the payload itself:
// paths and sizes, archives, value trees, literal bytes, and where each record comes from; and of
// the pieces that it is written in.
Sha256 plan_digest(const Target& target, const Plan& plan, std::span<const Piece> pieces);

}  // namespace ckpt
