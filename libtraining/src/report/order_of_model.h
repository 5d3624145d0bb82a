#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include <ckpt/extents.h>

namespace optim {

// Which of a model's parameters each one of each group is, where every group has its own in the
// model's order and all of the model are in one: places in `model`. nullopt where shapes allow no
// such order, or more than one.
std::optional<std::vector<std::vector<size_t>>> place_in_order(
    std::span<const ckpt::Extents> model, std::span<const std::vector<ckpt::Extents>> groups);

}  // namespace optim
