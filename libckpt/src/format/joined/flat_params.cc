#include "format/joined/flat_params.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <utility>

namespace ckpt {
namespace {

constexpr uint64_t kAlignments[] = {8, 4, 2, 1};  // in elements; 1: PyTorch 2.0
constexpr size_t kPlaceChoicesMax = 1024, kFrozenMax = 10, kSharedMax = 3;

using PlacedParams = std::vector<size_t>;
using PartCounts = std::vector<uint64_t>;

// Of a module: the parameters that it leaves to the unit around it, and the units inside.
struct PlaceChoice {
  PlacedParams left;
  std::vector<PlacedParams> units;  // ascending
  bool operator==(const PlaceChoice&) const = default;
};

class PlaceSearch {
 public:
  struct Case {
    std::span<const UnitParam> model;
    std::span<const PartCounts> counts;
    const ModuleTree& tree;
    std::set<size_t> lacking;
    uint64_t alignment, parts;
  };
  explicit PlaceSearch(Case of) : of_(std::move(of)), is_frozen_(of_.tree.modules.size()) {
    for (size_t module = is_frozen_.size(); module-- > 0;) {
      const ModuleTree::Module& here = of_.tree.modules[module];
      const auto is_frozen = [&](size_t child) { return is_frozen_[child]; };
      is_frozen_[module] = std::ranges::all_of(here.modules, is_frozen) && !has_known(here.params);
    }
    frozen_module_.resize(of_.model.size());
    for (size_t module = 0; module < is_frozen_.size(); ++module) {
      for (const size_t param : of_.tree.modules[module].params) {
        frozen_module_[param] = is_frozen_[module] ? module + 1 : 0;
      }
    }
  }

  // Each choice's units.
  std::vector<std::vector<PlacedParams>> run() {
    std::vector<std::vector<PlacedParams>> found;
    for (PlaceChoice& choice : choices(0)) {
      if (!has_known(choice.left)) found.push_back(std::move(choice.units));
    }
    return found;
  }

  // The parameters that a unit may have: modules without a state may be units inside of it.
  std::vector<PlacedParams> variants(const PlacedParams& unit) {
    std::set<size_t> frozen;
    for (const size_t param : unit) {
      if (frozen_module_[param] != 0) frozen.insert(frozen_module_[param]);
    }
    if (frozen.size() > kFrozenMax) has_too_many_ = true;
    if (has_too_many_) return {};
    const std::vector<size_t> modules(frozen.begin(), frozen.end());
    std::vector<PlacedParams> fitting;
    for (size_t left_out = 0; left_out < size_t{1} << modules.size(); ++left_out) {
      PlacedParams params;
      std::ranges::copy_if(unit, std::back_inserter(params), [&](size_t param) {
        const auto at = std::ranges::find(modules, frozen_module_[param]) - modules.begin();
        return static_cast<size_t>(at) == modules.size() || (left_out >> at & 1) == 0;
      });
      if (fits(params)) fitting.push_back(std::move(params));
    }
    return fitting;
  }

  std::vector<FlatPlace> places(const PlacedParams& unit, uint64_t parts) const {
    std::vector<FlatPlace> made;
    uint64_t end = 0;
    for (const size_t param : unit) {
      end += (of_.alignment - end % of_.alignment) % of_.alignment;
      made.push_back({end, of_.model[param].elements, 0});
      end += of_.model[param].elements;
    }
    for (FlatPlace& place : made) place.each = end / parts + (end % parts != 0);
    return made;
  }

  bool has_too_many() const { return has_too_many_; }
  bool is_known(size_t param) const { return !of_.counts[param].empty(); }

 private:
  bool has_known(const PlacedParams& params) const {
    return std::ranges::any_of(params, [&](size_t param) { return is_known(param); });
  }

  bool fits(const PlacedParams& unit) const {
    const std::vector<FlatPlace> at = places(unit, of_.parts);
    for (size_t i = 0; i < unit.size(); ++i) {
      for (uint64_t part = 0; is_known(unit[i]) && part < of_.parts; ++part) {
        if (at[i].count(part) != of_.counts[unit[i]][part]) return false;
      }
    }
    return true;
  }

  // False where they are not in one flat parameter, in which parts follow each other.
  bool append(const PlacedParams& more, PlacedParams& params) const {
    const auto has_elements = [](uint64_t count) { return count != 0; };
    const auto tells = [&](size_t param) {
      return std::ranges::any_of(of_.counts[param], has_elements);
    };
    for (const size_t param : more) {
      if (of_.lacking.contains(param)) continue;
      const auto before = std::find_if(params.rbegin(), params.rend(), tells);
      if (before != params.rend() && tells(param)) {
        const PartCounts &one = of_.counts[*before], &two = of_.counts[param];
        const auto last = std::find_if(one.rbegin(), one.rend(), has_elements);
        const auto first = std::ranges::find_if(two, has_elements);
        if (one.rend() - last - 1 > first - two.begin()) return false;
      }
      params.push_back(param);
    }
    return true;
  }

  std::vector<PlaceChoice> choices(size_t module) {
    std::vector<PlaceChoice> made(1);
    if (!append(of_.tree.modules[module].params, made[0].left)) made.clear();
    for (const size_t child : of_.tree.modules[module].modules) {
      made = with(made, choices(child));
      if (made.size() > kPlaceChoicesMax) has_too_many_ = true;
      if (has_too_many_) return {};
    }
    for (size_t i = 0, count = made.size(); i < count; ++i) {
      if (!has_known(made[i].left) || variants(made[i].left).empty()) continue;
      PlaceChoice unit{{}, made[i].units};
      unit.units.insert(std::ranges::upper_bound(unit.units, made[i].left), made[i].left);
      // A module with all of another's parameters makes the same unit.
      if (std::ranges::find(made, unit) == made.end()) made.push_back(std::move(unit));
    }
    return made;
  }

  std::vector<PlaceChoice> with(const std::vector<PlaceChoice>& made,
                                const std::vector<PlaceChoice>& child) {
    std::vector<PlaceChoice> both;
    for (const PlaceChoice& one : made) {
      for (const PlaceChoice& other : child) {
        PlaceChoice choice = one;
        if (!append(other.left, choice.left)) continue;
        choice.units.insert(choice.units.end(), other.units.begin(), other.units.end());
        both.push_back(std::move(choice));
      }
      if (both.size() > kPlaceChoicesMax) break;
    }
    return both;
  }

  Case of_;
  std::vector<bool> is_frozen_;        // modules without a state
  std::vector<size_t> frozen_module_;  // that a parameter is in, counted from 1; 0: none
  bool has_too_many_ = false;
};

bool are_alike(const FlatPlace& one, const FlatPlace& other, uint64_t parts) {
  if (one.begin == other.begin && one.each == other.each) return true;
  for (uint64_t part = 0; part < parts; ++part) {
    if (one.first(part) != other.first(part)) return false;
  }
  return true;
}

class AgreedPlaces {
 public:
  AgreedPlaces(size_t params, uint64_t wanted) : wanted_(wanted), unclear_(params) {
    found_.of_params.resize(params);
  }

  void add(const PlaceSearch& search, const PlacedParams& unit) {
    const std::vector<FlatPlace> places = search.places(unit, wanted_);
    for (size_t i = 0; i < unit.size(); ++i) {
      auto& known = found_.of_params[unit[i]];
      const bool is_other = known && !are_alike(*known, places[i], wanted_);
      if (is_other && search.is_known(unit[i])) {
        found_.problem = "the counts of ranks fit more than one choice of units";
      }
      unclear_[unit[i]] = unclear_[unit[i]] || is_other;
      known = places[i];
    }
  }

  FlatPlaces take() {
    for (size_t param = 0; param < unclear_.size(); ++param) {
      if (unclear_[param]) found_.of_params[param].reset();
    }
    return std::move(found_);
  }

 private:
  uint64_t wanted_;
  std::vector<bool> unclear_;
  FlatPlaces found_;
};

}  // namespace

uint64_t FlatPlace::first(uint64_t part) const {
  return std::clamp(part * each, begin, begin + elements) - begin;
}

FlatPlaces find_flat_places(std::span<const UnitParam> model, std::span<const PartCounts> counts,
                            const std::vector<size_t>& may_lack, uint64_t wanted) {
  const ModuleTree tree = module_tree(model);
  if (tree.is_too_deep) return {{}, "modules are nested too deeply"};
  AgreedPlaces found(model.size(), wanted);
  const auto known = std::ranges::find_if(counts, [](const PartCounts& of) { return !of.empty(); });
  if (known == counts.end() || may_lack.size() > kSharedMax) {
    return {{}, "too many parameters may be tied to others"};
  }
  bool fits = false;
  for (size_t lacking = 0; lacking < size_t{1} << may_lack.size(); ++lacking) {
    std::set<size_t> left_out;
    for (size_t i = 0; i < may_lack.size(); ++i) {
      if ((lacking >> i & 1) != 0) left_out.insert(may_lack[i]);
    }
    for (const uint64_t alignment : kAlignments) {
      PlaceSearch search({model, counts, tree, left_out, alignment, known->size()});
      for (const std::vector<PlacedParams>& units : search.run()) {
        fits = true;
        for (const PlacedParams& unit : units) {
          for (const PlacedParams& of_unit : search.variants(unit)) found.add(search, of_unit);
        }
      }
      if (search.has_too_many()) return {{}, "too many choices of units fit the counts of ranks"};
    }
  }
  if (!fits) return {{}, "no choice of modules has the elements that ranks have", true};
  return found.take();
}

}  // namespace ckpt
