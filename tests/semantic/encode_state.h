#pragma once

#include <ckpt/hash.h>

#include "semantic/state.h"

namespace semantic {

// SHA-256 of a value's canonical encoding, made from docs/formats/canonical_encoding.md alone.
ckpt::Sha256 encoding_digest(const Node& node);

ckpt::Sha256 sha256_of(std::string_view bytes);

}  // namespace semantic
