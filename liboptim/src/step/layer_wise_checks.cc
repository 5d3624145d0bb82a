#include <array>
#include <string>
#include <string_view>
#include <utility>

#include <ckpt/error.h>

#include "step/layer_wise_sharding.h"

namespace optim {
namespace {

[[noreturn]] void refuse(const std::string& key, const std::string& problem) {
  throw ckpt::Error(ckpt::ErrorCode::InvalidArgument, {.file = {}, .key = key}, problem);
}

// FNV-1a: the same in every build.
class Digest {
 public:
  void add(std::string_view text) {
    for (const char letter : text) add_byte(static_cast<unsigned char>(letter));
    add_byte(0xFF);
  }
  void add(int64_t number) { add(std::to_string(number)); }
  std::string text() const { return std::to_string(value_); }

 private:
  void add_byte(unsigned char byte) { value_ = (value_ ^ byte) * 1099511628211U; }
  uint64_t value_ = 14695981039346656037U;
};

}  // namespace

void check_groups(const ProcessGroupCollection& groups, const LayerWiseOptions& options) {
  const int processes = rank_in(groups.dp_cp).size;
  const std::array<std::pair<const char*, const ProcessGroupPtr*>, 4> parallel = {
      {{"mp", &groups.mp},
       {"tp", &groups.tp},
       {"expt_tp", &groups.expt_tp},
       {"tp_ep_pp", &groups.tp_ep_pp}}};
  for (const auto& [name, group] : parallel) {
    if (rank_in(*group).size == 1 || groups.world) continue;
    refuse("world", std::string("is needed where '") + name + "' has many processes");
  }
  if (groups.world && rank_in(groups.world).size % processes != 0) {
    refuse("world", "its size is no multiple of the data parallel group's");
  }
  const int expert_processes = rank_in(groups.expt_dp).size;
  if (processes % expert_processes != 0) {
    refuse("expt_dp", "its size does not divide the data parallel group's");
  }
  const bool several_ranks = options.layout_ranks && *options.layout_ranks != uint32_t(processes);
  if (several_ranks && expert_processes != 1 && expert_processes != processes) {
    refuse("expt_dp", "needs as many ranks as processes");
  }
  if (options.gather_bucket_bytes < 1) refuse("gather_bucket_bytes", "is not positive");
}

void check_same_model(const std::vector<Param>& params, const Ownership& ownership,
                      const OptimizerConfig& config, Collectives& collectives) {
  Digest digest;
  digest.add(config.optimizer);
  for (size_t id = 0; id < params.size(); ++id) {
    if (ownership.is_expert[id]) continue;
    digest.add(int64_t{ownership.owner[id]});
    digest.add(params[id].info.name);
    digest.add(c10::toString(params[id].param.scalar_type()));
    for (const int64_t size : params[id].param.sizes()) digest.add(size);
  }
  const std::vector<std::string> all = collectives.all_gather(digest.text());
  for (size_t process = 0; process < all.size(); ++process) {
    if (all[process] == digest.text()) continue;
    refuse({}, "process " + std::to_string(process) +
                   " of the data parallel group has other parameters, another ownership or "
                   "another optimizer than this one");
  }
}

}  // namespace optim
