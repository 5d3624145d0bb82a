#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <optim/distributed_optimizer.h>

#include "step/communication/collectives.h"
#include "step/communication/gather_params.h"
#include "step/layer_wise/layer_wise_sharding.h"
#include "step/optimizer/peers_and_device.h"

// Who updates which elements of which parameter.
namespace optim {

// Elements of a parameter that one process updates. A process has at most one range of each.
struct ElementPiece {
  uint32_t id = 0;
  int owner = 0;  // process of the group that shares the parameter
  int64_t begin = 0, count = 0;

  at::Tensor of(const at::Tensor& whole) const {
    return whole.detach().view({-1}).narrow(0, begin, count);
  }
};

// Parameters that the same processes share: dense ones, or experts.
struct SharingGroup {
  Collectives collectives;
  std::vector<uint32_t> ids = {};
  // Of all processes; those of a parameter one after the other, from its first element on.
  std::vector<ElementPiece> pieces = {};

  std::span<const ElementPiece> pieces_of(uint32_t id) const;
};

struct RangeSharding {
  SharingGroup dense, experts;
  Collectives stats;
  DistributedOptimizerOptions options = {};
  std::vector<Param> params = {};         // by id, whole
  std::vector<bool> is_expert = {};       // by id
  std::vector<bool> is_duplicate = {};    // by id: another tensor-parallel rank counts its gradient
  std::vector<uint32_t> registered = {};  // ids in model order
  std::vector<uint32_t> group_sizes = {};  // parameters of each group, of all optimizers
  int64_t grad_count = 0;  // ranges with a gradient, of all processes, when the norm was taken last

  std::array<SharingGroup*, 2> groups() { return {&dense, &experts}; }
  SharingGroup& group_of(uint32_t id) { return is_expert[id] ? experts : dense; }
  // This process's range of a parameter; null: it has none.
  const ElementPiece* own_piece(uint32_t id);
};

// Cuts the buffers of all element types into ranges: fills `pieces` of both groups.
void cut_into_ranges(RangeSharding& sharding);

// Sums of squares by id, with the bits of sum_of_squares(whole gradient): the same on all processes
// of the group. `own`: this process's ranges that have a gradient. Collective.
std::vector<double> square_sums(const RangeSharding& sharding, SharingGroup& group,
                                std::span<OptimizedParam* const> own);

// Whether some process of a group has a gradient for its range of a parameter and another has none;
// if so the parameter's name. Collective.
std::optional<std::string> partial_grad(RangeSharding& sharding,
                                        std::span<OptimizedParam* const> own);

std::unique_ptr<Peers> make_peers(Optimizer& optimizer, RangeSharding& sharding);

}  // namespace optim
