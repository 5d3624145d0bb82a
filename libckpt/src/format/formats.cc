#include <ckpt/error.h>

#include <algorithm>

#include "format/format.h"
#include "format/safetensors/safetensors.h"
#include "format/torch/torch_save.h"
#include "format/torch_dist/torch_dist.h"

namespace ckpt {

std::vector<FormatRow>& formats() {
  static std::vector<FormatRow> rows = {
      {Format::TorchDist, "torch_dist", KeyStyle::Planned, is_torch_dist_folder, nullptr,
       read_torch_dist_contents,
       "where you trust its origin, dcp_to_torch_save of "
       "torch.distributed.checkpoint.format_utils writes a torch.save file of it"},
      {Format::Torch, "torch", KeyStyle::Places, is_torch_folder, is_torch_file,
       read_torch_contents,
       "where you trust its origin, torch.load it, and torch.save plain dense tensors: that "
       "file is read"},
      {Format::Safetensors, "safetensors", KeyStyle::Flat, find_safetensors_folder,
       find_safetensors_file, read_safetensors_contents,
       "load it with the program that wrote it, and save it in types that torch has"},
  };
  return rows;
}

const FormatRow& row_of(Format format) {
  const auto row = std::ranges::find(formats(), format, &FormatRow::format);
  if (row != formats().end()) return *row;
  throw Error(ErrorCode::Unsupported, {}, "no reader for this format");
}

std::string_view name(Format format) { return row_of(format).name; }

}  // namespace ckpt
