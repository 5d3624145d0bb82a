#include "verify/trained_tensors.h"

#include <algorithm>
#include <cctype>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ckpt/document.h>
#include <ckpt/error.h>
#include <training/key_kind.h>
#include <training/megatron_folders.h>

#include "state/object_tensors.h"
#include "state/value_scan.h"

namespace optim {
namespace {

// Parts of names of what training loops keep beside a model, and of single values.
constexpr std::string_view kOthers[] = {
    "callback",  "scheduler", "loop",   "loss", "score",  "metric",  "history", "sampler", "loader",
    "hyper_par", "hparams",   "config", "args", "scaler", "tracker", "logger",  "progress"};
constexpr std::string_view kOtherValues[] = {"best", "epoch", "step", "time", "stat"};
// A mapping with one of these in its name is a model's all the same: "best_model".
constexpr std::string_view kModelWords[] = {"model", "state_dict", "weight",
                                            "net",   "module",     "param"};
// Of keys whose steps are joined by dots, where a module may be called nearly anything.
constexpr std::string_view kOtherSteps[] = {
    "callbacks", "lr_schedulers", "lr_scheduler", "scheduler", "schedulers",
    "loops",     "metrics",       "best_score",   "best_loss", "best_metric"};
constexpr std::string_view kModelSteps[] = {"model", "models", "module", "state_dict",
                                            "model_state_dict"};

template <class Words>
bool has_any(std::string_view step, const Words& words) {
  std::string text(step);
  std::ranges::transform(text, text.begin(),
                         [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return std::ranges::any_of(words,
                             [&](std::string_view word) { return text.find(word) != text.npos; });
}

template <class Words>
bool is_one_of(std::string_view step, const Words& words) {
  return std::ranges::find(words, step) != std::ranges::end(words);
}

// The first step, and whether it is the last.
struct FirstStep {
  std::string_view text;
  bool is_last;
};

FirstStep first_step(std::string_view key) {
  const bool is_pointer = key.starts_with('/');
  if (is_pointer) key.remove_prefix(1);
  const size_t end = key.find_first_of(is_pointer ? "/" : "./");
  return {key.substr(0, end), end == key.npos};
}

}  // namespace

TrainedTensors::TrainedTensors(const ckpt::Catalog& catalog,
                               const std::deque<ckpt::TensorEntry>& more) {
  for (const ckpt::TensorEntry& tensor : catalog.tensors) see(tensor);
  for (const ckpt::TensorEntry& tensor : more) see(tensor);
}

void TrainedTensors::see(const ckpt::TensorEntry& tensor) {
  const FirstStep first = first_step(tensor.key);
  const bool is_optimizers = kind_of_key(tensor.file, tensor.key) == KeyKind::OptimizerState;
  has_optimizer_ = has_optimizer_ || is_optimizers;
  has_loop_ = has_loop_ || is_optimizers || (!first.is_last && is_one_of(first.text, kModelSteps));
}

bool TrainedTensors::contains(const ckpt::TensorEntry& tensor) const {
  switch (kind_of_key(tensor.file, tensor.key)) {
    case KeyKind::OptimizerState: return true;
    case KeyKind::RngState:
    case KeyKind::CommonState: return false;
    case KeyKind::Model: break;
  }
  const FirstStep first = first_step(tensor.key);
  if (!tensor.key.starts_with('/')) {
    return !has_optimizer_ || !is_one_of(first.text, kOtherSteps);
  }
  if (!has_loop_) return true;
  if (first.is_last) {
    return ckpt::element_count(tensor.shape) != 1 && !has_any(first.text, kOthers) &&
           !has_any(first.text, kOtherValues);
  }
  return has_any(first.text, kModelWords) || !has_any(first.text, kOthers);
}

ObjectTensors tensors_in_objects(const OpenedTraining& checkpoint) {
  ObjectTensors found;
  const ckpt::Catalog& catalog = checkpoint.catalog();
  if (catalog.format != ckpt::Format::TorchDist || is_megatron(checkpoint)) return found;
  for (const ckpt::ObjectEntry& object : catalog.objects) {
    try {
      const ckpt::Document document = checkpoint.read_object(object);
      for (auto& tensor : tensors_of_object(document, document.tree.root(), object.key)) {
        if (!is_scanned(tensor.dtype)) continue;
        for (const ckpt::Chunk& chunk : tensor.chunks) {
          if (chunk.region.file < catalog.files.size()) continue;
          found.compressed.emplace(chunk.region.file, *object.region);
        }
        found.tensors.push_back(std::move(tensor));
      }
    } catch (const ckpt::Error& error) {
      if (error.code() == ckpt::ErrorCode::IoFailure) throw;  // else its structure says why
    }
  }
  return found;
}

}  // namespace optim
