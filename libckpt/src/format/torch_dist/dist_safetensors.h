#pragma once

#include "format/location/location.h"

namespace ckpt {

// DCP folders written with SerializationFormat.SAFETENSORS: the tensors of each file lie in one
// safetensors blob behind the objects. .metadata gives the blob's start as every tensor's offset,
// and the tensor's bytes as its length. Replaces such places by the true ones. Throws Corrupt where
// a blob does not hold what .metadata says. Returns whether there was a place to replace.
bool resolve_safetensors_blobs(const Location& location, const Limits& limits, Catalog& catalog);

}  // namespace ckpt
