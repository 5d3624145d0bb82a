#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <ckpt/limits.h>
#include <training/export.h>

// What is wrong with checkpoints in a way that is known, and can be mended while they are
// converted.
namespace optim {

enum class RepairKind : uint8_t {
  // Rows as Megatron-Core of July to September 2026 stores them under GTP: with padding (its issue
  // 7168), and gate and up cut in shards (7161). They are laid out as without GTP.
  GtpRows,
  // Masters and states of fully_reshardable lie behind their place, as Megatron-Core 0.15 to 0.19
  // saves them where gradients are in several buckets (its issue 5077). They are moved back.
  BucketShift,
  // Parameter groups have each other's weight decay: Megatron-Core up to 0.12 loads groups by their
  // place, which on later pipeline stages is another one. They get their own by wd_mult.
  GroupOrder,
  // The common state of a torch_dist folder, common.pt, is missing or cannot be used. It is taken
  // from another checkpoint of the run.
  CommonState,
};
inline constexpr std::array kRepairKinds = {RepairKind::GtpRows, RepairKind::BucketShift,
                                            RepairKind::GroupOrder, RepairKind::CommonState};
TRAINING_EXPORT std::string_view name(RepairKind kind);  // "bucket-shift"

struct RepairOptions {
  std::vector<RepairKind> kinds = {};
  bool accept_loss = false;         // of what no file holds
  std::filesystem::path like = {};  // whose common state it is
  bool wants(RepairKind kind) const;
};

// Elements of a parameter whose master and states no file holds.
struct LostElements {
  std::string param;
  uint64_t lost_count = 0, element_count = 0;
};

// What was found of one kind.
struct RepairFinding {
  RepairKind kind = RepairKind::BucketShift;
  enum class Verdict : uint8_t { Sound, Mendable, NotMendable } verdict = Verdict::Sound;
  std::string text;  // what is wrong, and what is done, as a sentence
  // How sure that is: of values that were compared, those that are right when it is mended.
  uint64_t compared_count = 0, right_count = 0;
  std::vector<LostElements> lost = {};  // in the order of the model
};

struct FindRepairsOptions {
  std::optional<int64_t> iteration = {};
  ckpt::Limits limits = {};
  std::filesystem::path like = {};  // without it, whether there is a need is all that is looked for
};
// One of each kind, in their order. Writes nothing; reads masters and weights of parameters that
// may be displaced. Throws as open_checkpoint() and read_training_state() do.
TRAINING_EXPORT std::vector<RepairFinding> find_repairs(const std::filesystem::path& checkpoint,
                                                        const FindRepairsOptions& options = {});

}  // namespace optim
