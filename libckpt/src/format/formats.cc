#include <ckpt/error.h>

#include <algorithm>

#include "format/format.h"
#include "format/joined/rank_files.h"
#include "format/safetensors/safetensors_header.h"
#include "format/torch/torch_save.h"
#include "format/torch_dist/dist_metadata.h"

namespace ckpt {
namespace {

// Files of ranks that are one state are read into what a torch.save file holds.
bool is_folder_of_torch(const Folder& source, Location& location) {
  return is_torch_folder(source, location) || is_rank_files_folder(source, location) ||
         find_deepspeed_folder(source, location);
}

Contents read_torch(const Location& location, const Limits& limits) {
  Location found = location;
  if (location.only_file || is_torch_folder(*location.source, found)) {
    return read_torch_contents(location, limits);
  }
  return is_rank_files_folder(*location.source, location) ? read_rank_files(location, limits)
                                                          : read_deepspeed(location, limits);
}

}  // namespace

std::vector<FormatRow>& formats() {
  static std::vector<FormatRow> rows = {
      {Format::TorchDist, "torch_dist", KeyStyle::Planned, is_torch_dist_folder, nullptr,
       read_torch_dist_contents,
       "where you trust its origin, dcp_to_torch_save of "
       "torch.distributed.checkpoint.format_utils writes a torch.save file of it"},
      {Format::Torch, "torch", KeyStyle::Places, is_folder_of_torch, is_torch_file, read_torch,
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
