#pragma once

#include "targets/plain_state.h"

namespace ckpt {

// A flattened state dict as a DCP folder, as the nested state dict in a torch.save file
// (unflatten_state_dict), and as safetensors.
Target plain_torch_dist_target(PlainState state, const TargetSpec& spec);
Target plain_torch_target(PlainState state, const TargetSpec& spec);
Target plain_safetensors_target(PlainState state, const TargetSpec& spec);

// How a plain state dict is written in a format.
struct TargetRow {
  Format format;
  std::string_view called;  // in the list of what is not carried
  Target (*make)(PlainState, const TargetSpec&);
  bool (*is_listed)(const PlainEntry&);  // there, and left out for it
  bool keeps_keys = false;               // and mappings: PlainTargetWords::keeps_keys

  PlainTargetWords words() const { return {called, keeps_keys}; }
};
// That of a format. Throws Unsupported where it is not written.
const TargetRow& target_row_of(Format format);
// A test adds one.
std::vector<TargetRow>& target_rows();

}  // namespace ckpt
