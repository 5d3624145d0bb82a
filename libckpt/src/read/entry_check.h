#pragma once

#include <ckpt/catalog.h>
#include <ckpt/document.h>
#include <ckpt/error.h>

namespace ckpt {

// The tensor in an entry of a .distcp file must be the one that .metadata promises: throws Corrupt
// at `where`.
void check_entry(const TensorView& view, const TensorEntry& tensor, const Chunk& chunk,
                 const Where& where);

}  // namespace ckpt
