#pragma once

#include <ckpt/catalog.h>
#include <ckpt/document.h>
#include <ckpt/error.h>
#include <ckpt/limits.h>

namespace ckpt {

// Where an entry of a .distcp file is compressed, the most bytes that its archive may inflate to.
// `chunk`: what .metadata says that it holds of the tensor; an object where there is none.
uint64_t inflated_bytes_max(const TensorEntry* tensor, const Chunk* chunk, const Limits& limits);

// The tensor in an entry of a .distcp file must be the one that .metadata promises: throws Corrupt
// at `where`.
void check_entry(const TensorView& view, const TensorEntry& tensor, const Chunk& chunk,
                 const Where& where);

}  // namespace ckpt
