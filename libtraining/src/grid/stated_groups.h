#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include <ckpt/value.h>
#include <optim/param_group.h>

namespace optim {

// A number of a group's dict; nullopt where there is none.
std::optional<double> number_in(const ckpt::Value& group, std::string_view key);

// Those of one optimizer of a chain; `groups`: of all, in its order.
std::span<const ParamGroup> groups_of_optimizer(std::span<const ParamGroup> groups,
                                                uint32_t optimizer);

// Which of the groups that an optimizer states belongs to which group of the model's parameters:
// [group] a place in `stated`, dicts. By wd_mult, lr_mult, is_expert_parallel and is_decoupled_lr,
// as Megatron since 0.13 matches them: their order is not the same in all versions. Groups that
// these do not tell apart keep their order, and so do all where they do not fit. Both lists have
// one length.
std::vector<size_t> match_stated_groups(std::span<const ckpt::Value> stated,
                                        std::span<const ParamGroup> groups);

}  // namespace optim
