#include <ckpt/error.h>

#include "target/conservation.h"
#include "target/plain_target.h"

namespace ckpt {
namespace {

// Such folders carry more than a state dict: who knows the convention knows what they would lose.
void refuse_convention(const Checkpoint& source) {
  const FolderConvention* const convention = source.convention();
  if (convention == nullptr) return;
  throw Error(
      ErrorCode::Unsupported, {.file = source.shown_path(), .key = {}},
      "is a " + std::string(convention->framework) + " checkpoint; expected a plain state dict",
      std::string(convention->commands_hint));
}

Target make_plain_target(PlainState state, const TargetSpec& spec) {
  switch (spec.format) {
    case Format::Torch: return plain_torch_target(std::move(state));
    case Format::TorchDist: return plain_torch_dist_target(std::move(state));
    case Format::Safetensors: break;
  }
  return plain_safetensors_target(std::move(state), spec.as_folder);
}

// A torch.save file is one object, which holds all.
Holdings carried_by(const Target& target, const Holdings& held) {
  Holdings carried = holdings_of(target);
  if (target.format == Format::Torch) carried.objects = held.objects;
  return carried;
}

}  // namespace

Target make_target(const Checkpoint& source, const TargetSpec& spec) {
  refuse_convention(source);
  constexpr std::string_view kNames[] = {"a new file", "DCP", "safetensors"};
  PlainState state = read_plain_state(source, kNames[static_cast<size_t>(spec.format)]);
  const uint64_t left_out_count = apply(spec.keys, state);
  if (spec.format == Format::TorchDist) check_places(state);
  const Holdings held = holdings_of(state), listed = listed_holdings(state, spec.format);
  Target target = make_plain_target(std::move(state), spec);
  target.left_out_count = left_out_count;
  check_conserved(held, carried_by(target, held), listed);
  return target;
}

}  // namespace ckpt
