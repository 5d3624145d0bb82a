#include "convert/plain_model.h"

#include <algorithm>
#include <map>
#include <optional>
#include <span>
#include <string_view>

#include <ckpt/printed.h>

#include "model/tensor_names.h"
#include "state/words.h"

namespace optim {
namespace {

using Path = std::vector<std::string>;  // steps from the root

// What training loops call a model; Lightning and many scripts say state_dict, DeepSpeed module.
constexpr std::string_view kModels[] = {"model", "state_dict", "model_state_dict", "model_state",
                                        "module"};
// What they save beside it and the optimizer, as far as it holds tensors.
constexpr std::string_view kOthers[] = {"sched",    "rng",   "random",      "scaler",  "loader",
                                        "callback", "loops", "train_state", "metrics", "sampler"};
constexpr std::string_view kOfRanks[] = {"extra_state", "ranks", "deepspeed"};
constexpr std::string_view kWrapper = "app";  // of the tutorials of torch.distributed.checkpoint

bool is_model(std::string_view step) {
  return std::ranges::find(kModels, step) != std::end(kModels);
}

struct Place {
  uint64_t nested_count = 0;  // tensors below it
  bool is_tensor = false;     // it is one: a weight, or a random state
};
using Places = std::map<std::string, Place, std::less<>>;

bool is_beside_model(std::string_view step, const Place& place) {
  if (std::ranges::find(kOfRanks, step) != std::end(kOfRanks) && !place.is_tensor) return true;
  if (place.is_tensor) return step.ends_with("rng_state");
  return is_optimizer_step(step) || std::ranges::any_of(kOthers, [&](std::string_view other) {
           return step.find(other) != step.npos;
         });
}

// Of a DCP folder: how its keys were nested, as far as it says so.
std::map<std::string, Path, std::less<>> planned_paths(const OpenedTraining& source) {
  std::map<std::string, Path, std::less<>> paths;
  const ValueTree* const metadata = source.dist_metadata();
  const auto state = metadata ? metadata->root().state() : std::nullopt;
  const auto planner = state ? state->find("planner_data") : std::nullopt;
  if (!planner || !planner->is(Kind::Dict)) return paths;
  for (const auto& [key, steps] : ckpt::items_of(*planner)) {
    if (!key.is(Kind::Str) || !steps.is(Kind::Tuple)) continue;
    Path path;
    for (size_t s = 0; s < steps.size(); ++s) {
      path.push_back(steps[s].is(Kind::Str) ? std::string(steps[s].text()) : "0");
    }
    paths.emplace(key.text(), std::move(path));
  }
  return paths;
}

class Paths {
 public:
  explicit Paths(const OpenedTraining& source) {
    const bool is_torch = source.catalog().format == ckpt::Format::Torch;
    const auto planned = planned_paths(source);
    const auto path_of = [&](const std::string& key) {
      if (is_torch) return key.empty() ? Path() : key_steps(key);
      const auto found = planned.find(key);
      return found == planned.end() ? Path{key} : found->second;
    };
    for (const TensorEntry& tensor : source.catalog().tensors) {
      tensors_.push_back(path_of(tensor.key));
      if (tensors_.back().size() == 1 && is_state(tensor)) flat_states_.push_back(tensor.key);
    }
    for (const ckpt::ObjectEntry& object : source.catalog().objects) {
      objects_.push_back(path_of(object.key));
    }
  }

  // What lies below a wrapper, or at the root.
  Places below(const Path& wrapper) const {
    Places places;
    for (const Path& path : tensors_) {
      if (!starts_with(path, wrapper)) continue;
      Place& place = places[path[wrapper.size()]];
      if (path.size() == wrapper.size() + 1) place.is_tensor = true;
      if (path.size() > wrapper.size() + 1) ++place.nested_count;
    }
    return places;
  }
  const std::vector<Path>& tensors() const { return tensors_; }
  // Of an optimizer, under keys that are not nested.
  const std::vector<std::string>& flat_states() const { return flat_states_; }
  // Everything beside `kept`, which lies below the wrapper.
  std::vector<std::string> beside(const Path& wrapper, std::string_view kept) const {
    std::vector<std::string> names;
    for (const auto* paths : {&tensors_, &objects_}) {
      for (const Path& path : *paths) {
        const bool is_below = starts_with(path, wrapper);
        const std::string& step = is_below ? path[wrapper.size()] : path[0];
        if (is_below && step == kept) continue;
        if (std::ranges::find(names, step) == names.end()) names.push_back(step);
      }
    }
    return names;
  }

 private:
  static bool starts_with(const Path& path, const Path& front) {
    return path.size() > front.size() &&
           std::ranges::equal(front, std::span(path).first(front.size()));
  }

  std::vector<Path> tensors_, objects_;
  std::vector<std::string> flat_states_;
};

std::string listed(const std::vector<std::string>& names) {
  return ckpt::joined(names, ", ", ckpt::escaped);
}

[[noreturn]] void refuse(const OpenedTraining& source, const std::vector<std::string>& names,
                         const std::string& why) {
  throw Error(ErrorCode::Unsupported, {.file = source.shown_path(), .key = names.front()},
              why + listed(names),
              "--include '" + ckpt::escaped(names.front()) + ".*' --rename " +
                  ckpt::escaped(names.front()) + "= carries what you choose");
}

std::vector<std::string> names_that(const Places& places, auto&& fits) {
  std::vector<std::string> names;
  for (const auto& [name, place] : places) {
    if (fits(name, place)) names.push_back(name);
  }
  return names;
}

}  // namespace

std::vector<std::string> plain_keys(const OpenedTraining& source) {
  std::vector<std::string> keys;
  const Paths paths(source);
  for (const Path& path : paths.tensors()) keys.push_back(ckpt::joined(path, "."));
  return keys;
}

PlainModel find_plain_model(const OpenedTraining& source) {
  const Paths paths(source);
  Path wrapper;
  Places places = paths.below(wrapper);
  if (const auto found = places.find(kWrapper); found != places.end() && places.size() == 1) {
    wrapper = {std::string(kWrapper)};
    places = paths.below(wrapper);
  }
  const auto models = names_that(places, [](const std::string& name, const Place& place) {
    return is_model(name) && place.nested_count != 0;
  });
  const auto unknown = names_that(places, [](const std::string& name, const Place& place) {
    return !is_beside_model(name, place) && !(is_model(name) && place.nested_count != 0) &&
           (place.is_tensor || place.nested_count != 0);
  });
  const auto nested = names_that(places, [&](const std::string& name, const Place& place) {
    return place.nested_count != 0 && std::ranges::find(unknown, name) != unknown.end();
  });
  if (!paths.flat_states().empty()) {
    throw Error(ErrorCode::Unsupported,
                {.file = source.shown_path(), .key = paths.flat_states().front()},
                "is a state of an optimizer among keys that are not nested, which do not say what "
                "the model is",
                "--include 'model.*' --rename model= carries the keys that you choose");
  }
  if (models.size() > 1) refuse(source, models, "more than one thing may be the model: ");
  if (models.size() == 1 && !unknown.empty()) {
    refuse(source, unknown, "beside '" + models[0] + "' there are tensors that may be its: ");
  }
  if (models.size() == 1) {
    std::string keys = wrapper.empty() ? models[0] : wrapper[0] + "." + models[0];
    return {std::move(keys), paths.beside(wrapper, models[0])};
  }
  if (!nested.empty()) refuse(source, nested, "it is not known which of these is the model: ");
  if (unknown.empty()) {
    refuse(source, names_that(places, [](const auto&...) { return true; }),
           "none of these is a model: ");
  }
  PlainModel model;
  for (const std::string& name : paths.beside({}, {})) {
    if (std::ranges::find(unknown, name) == unknown.end()) model.left_out.push_back(name);
  }
  return model;
}

std::string text_of(const PlainModel& model) {
  const std::string where =
      model.keys.empty() ? "at the root" : "under '" + ckpt::escaped(model.keys) + "'";
  return "the model is what lies " + where +
         "; left out: " + (model.left_out.empty() ? "nothing" : listed(model.left_out));
}

ckpt::KeyRules rules_of_model(const PlainModel& model, const ckpt::KeyRules& asked,
                              const std::string& place) {
  if (!asked.empty()) {
    throw Error(ErrorCode::InvalidArgument, {},
                "--model-only chooses the keys, and the model's own names for them",
                "leave out --model-only, or --include, --exclude and --rename");
  }
  ckpt::KeyRules rules;
  if (!model.keys.empty()) {
    std::vector<std::string> included = {model.keys + ".*"};
    // What ranks have of their own in the model is refused where files of ranks are written.
    if (!place.empty()) included.push_back("ranks.*./" + model.keys + "/*");
    rules.selection = ckpt::KeySelection(included, {});
    if (model.keys != place) rules.renames.emplace_back(model.keys, place);
    return rules;
  }
  std::vector<std::string> excluded;
  for (const std::string& name : model.left_out) {
    excluded.push_back(name);
    excluded.push_back(name + ".*");
  }
  rules.selection = ckpt::KeySelection({}, excluded);
  return rules;
}

}  // namespace optim
