#pragma once

#include <ckpt/error.h>
#include <ckpt/value.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

// Ways through the value tree of a rank file that know where they are, for errors.
namespace optim {

inline std::string escaped_step(std::string_view text) {
  std::string step = "/";
  for (const char c : text) step += c == '~' ? "~0" : c == '/' ? "~1" : std::string(1, c);
  return step;
}

// Where a value lies in a rank file, for errors and for the catalog's pointers.
struct Place {
  std::string file;
  std::string pointer;
  Place operator/(std::string_view step) const { return {file, pointer + escaped_step(step)}; }
  Place operator/(size_t index) const { return *this / std::string_view(std::to_string(index)); }

  [[noreturn]] void corrupt(std::string problem, std::string hint = {}) const {
    throw ckpt::Error(ckpt::ErrorCode::Corrupt, {file, std::nullopt, pointer}, std::move(problem),
                      std::move(hint));
  }
  [[noreturn]] void unsupported(std::string problem) const {
    throw ckpt::Error(ckpt::ErrorCode::Unsupported, {file, std::nullopt, pointer},
                      std::move(problem));
  }
};

inline constexpr const char* kMixedFilesHint =
    "the rank files may come from different iterations, models or data-parallel sizes";

inline ckpt::Value member(const ckpt::Value& value, std::string_view key, const Place& place) {
  const auto found = value.is(ckpt::Kind::Dict) ? value.find(key) : std::nullopt;
  if (!found) place.corrupt("has no '" + std::string(key) + "'");
  return *found;
}

inline ckpt::Value list_member(const ckpt::Value& value, std::string_view key, const Place& place) {
  const ckpt::Value found = member(value, key, place);
  if (!found.is(ckpt::Kind::List)) (place / key).corrupt("is not a list");
  return found;
}

// The optimizers of one rank: a list, or the one optimizer itself (ChainedOptimizer.state_dict).
struct RankOptimizers {
  std::vector<ckpt::Value> states;
  std::vector<Place> places;
};

inline RankOptimizers optimizers_of(const ckpt::Value& root, const Place& place) {
  if (root.is(ckpt::Kind::Dict)) return {{root}, {place}};
  if (!root.is(ckpt::Kind::List))
    place.corrupt("is neither the state of an optimizer nor a list of such states");
  if (root.size() == 1) {
    place.corrupt(
        "lists 1 optimizer, so that others are missing: Megatron lists none that is alone");
  }
  RankOptimizers result;
  for (size_t i = 0; i < root.size(); ++i) {
    result.states.push_back(root[i]);
    result.places.push_back(place / i);
  }
  return result;
}

}  // namespace optim
