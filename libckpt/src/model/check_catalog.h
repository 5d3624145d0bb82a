#pragma once

#include <ckpt/catalog.h>
#include <ckpt/error.h>
#include <ckpt/limits.h>

namespace ckpt {

// Throws Corrupt for a shape that torch.empty refuses, of a tensor without elements, too: torch
// multiplies sizes from the left for the count, and from the right for the strides.
void check_shape(const Extents& shape);
// Throws Unsupported for a tensor of more than 2^63 - 1 bytes: PyTorch counts elements alone, and
// one element can be expanded to as many.
void check_bytes(const Extents& shape, DType dtype);

// Whether the box has as many dimensions, and reaches beyond none.
bool lies_inside(const Box& box, const Extents& shape);

// Throws Corrupt, with the key, unless the shape is valid and the tensor's chunks lie inside it, do
// not overlap and cover it. Linear for chunks in order and for equal cells of a grid, n log n for
// others.
void check_chunks(const TensorEntry& tensor);

// Throws Corrupt, with the key, unless every region lies inside its file and no two share a byte.
// (Chunks of torch.save files may: tied tensors. Call it for torch_dist and safetensors only.)
void check_regions(const Catalog& catalog);

// Throws Corrupt, with all of them, where files lack something and limits do not allow it. `where`:
// in the first of lacking_files(); default: the file.
void refuse_incomplete(const Catalog& catalog, const Limits& limits, Where where = {});

// Calls visit(region, key) for every region that the catalog names.
template <class Visit>
void for_each_region(const Catalog& catalog, Visit visit) {
  for (const ObjectEntry& object : catalog.objects) {
    if (object.region) visit(*object.region, object.key);
  }
  for (const TensorEntry& tensor : catalog.tensors) {
    for (const Chunk& chunk : tensor.chunks) visit(chunk.region, tensor.key);
  }
}

}  // namespace ckpt
