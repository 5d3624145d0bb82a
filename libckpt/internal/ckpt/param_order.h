#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include <ckpt/catalog.h>

namespace ckpt {

// Which of a model's parameters each one of each group is, where every group has its own in the
// model's order and all of the model are in one: places in `model`. A shape that is not known may
// be any. nullopt where shapes allow no such order, or more than one. Pure.
std::optional<std::vector<std::vector<size_t>>> place_in_order(
    std::span<const Extents> model, std::span<const std::vector<std::optional<Extents>>> groups);

}  // namespace ckpt
