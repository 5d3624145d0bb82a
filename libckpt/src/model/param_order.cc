#include <ckpt/param_order.h>

#include <algorithm>
#include <map>

namespace ckpt {
namespace {

constexpr size_t kPlacedMax = 1 << 16;  // states of the search; past these no order is found

// How many parameters of each group are placed, and how that was reached last.
using PlacedCounts = std::vector<size_t>;
struct PlacedWay {
  size_t group = 0;
  bool is_only_one = true;
};
using PlacedLayer = std::map<PlacedCounts, PlacedWay>;

}  // namespace

std::optional<std::vector<std::vector<size_t>>> place_in_order(
    std::span<const Extents> model, std::span<const std::vector<std::optional<Extents>>> groups) {
  size_t count = 0, states = 0;
  for (const auto& group : groups) count += group.size();
  if (count != model.size()) return std::nullopt;
  std::vector<PlacedLayer> layers = {{{PlacedCounts(groups.size()), PlacedWay{}}}};
  for (const Extents& shape : model) {
    PlacedLayer next;
    for (const auto& [placed, way] : layers.back()) {
      for (size_t i = 0; i < groups.size(); ++i) {
        if (placed[i] == groups[i].size()) continue;
        const auto& wanted = groups[i][placed[i]];
        if (wanted && *wanted != shape) continue;
        PlacedCounts more = placed;
        ++more[i];
        const auto [known, is_new] =
            next.try_emplace(std::move(more), PlacedWay{i, way.is_only_one});
        if (!is_new) known->second.is_only_one = false;
      }
    }
    states += next.size();
    if (next.empty() || states > kPlacedMax) return std::nullopt;
    layers.push_back(std::move(next));
  }
  if (!layers.back().begin()->second.is_only_one) return std::nullopt;
  std::vector<std::vector<size_t>> places(groups.size());
  PlacedCounts placed = layers.back().begin()->first;
  for (size_t i = model.size(); i-- > 0;) {
    const size_t group = layers[i + 1].at(placed).group;
    places[group].push_back(i);
    --placed[group];
  }
  for (auto& each : places) std::ranges::reverse(each);
  return places;
}

}  // namespace ckpt
