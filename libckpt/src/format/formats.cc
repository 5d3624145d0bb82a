#include <ckpt/error.h>

#include "format/format.h"
#include "format/safetensors/safetensors.h"
#include "format/torch/torch.h"
#include "format/torch_dist/torch_dist.h"

namespace ckpt {
namespace {

constexpr FormatReader kFormats[] = {
    {Format::Torch, read_torch_contents},
    {Format::TorchDist, read_torch_dist_contents},
    {Format::Safetensors, read_safetensors_contents},
};

}  // namespace

const FormatReader& reader_of(Format format) {
  for (const FormatReader& row : kFormats) {
    if (row.format == format) return row;
  }
  throw Error(ErrorCode::Unsupported, {}, "no reader for this format");
}

}  // namespace ckpt
