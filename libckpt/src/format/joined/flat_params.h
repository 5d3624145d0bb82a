#pragma once

#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <ckpt/catalog.h>

namespace ckpt {

// Which elements of a rank's flat tensor are which of a parameter, in row-major order. Pure.
struct FlatPart {
  size_t rank = 0, group = 0;  // of the flat tensor
  uint64_t offset = 0;         // in it
  uint64_t first = 0, count = 0;
};
struct FlatParam {
  std::string name;
  Extents shape;
  std::vector<FlatPart> parts;
};

struct NamedShape {
  std::string name;
  Extents shape;
  uint64_t padding = 0;  // elements behind it
};
using FlatLengths = std::vector<std::vector<uint64_t>>;  // by rank, then by group; empty: not known

// A group's parameters behind each other, cut into one part for each rank (ZeRO-1, ZeRO-2). The
// ranks behind one that is not known have parts that are not known.
std::vector<FlatParam> cut_groups(std::span<const std::vector<NamedShape>> groups,
                                  const FlatLengths& lengths);
// Each parameter cut into one part for each rank, which has those of all parameters behind each
// other, in groups (ZeRO-3).
std::vector<FlatParam> cut_params(std::span<const std::vector<NamedShape>> groups,
                                  const FlatLengths& lengths);

// How many elements parameters take: of one group of all ranks, of one rank.
uint64_t count_of_group(const std::vector<NamedShape>& group);
uint64_t count_of_rank(std::span<const std::vector<NamedShape>> groups, uint64_t ranks);

// The parameter out of flat tensors, of which nullptr is not known.
TensorEntry tensor_of_parts(const FlatParam& param, DType dtype,
                            const std::function<const TensorEntry*(const FlatPart&)>& flat);

}  // namespace ckpt
