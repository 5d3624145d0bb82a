// What a checkpoint says of the run that wrote it, read once.
#include <training/opened_training.h>

#include <mutex>
#include <optional>
#include <utility>

#include <ckpt/document.h>
#include <ckpt/error.h>
#include <training/megatron_folders.h>

#include "args/bridge_args.h"
#include "args/common_state.h"
#include "args/iteration_names.h"
#include "args/nemo_args.h"
#include "args/run_args.h"

namespace optim {
namespace {

// A value that the first who asks for it reads; who asks after a failure reads again.
template <class Value>
class ReadOnce {
 public:
  const Value& get(auto read) {
    std::call_once(is_read_, [&] { value_.emplace(read()); });
    return *value_;
  }

 private:
  std::once_flag is_read_;
  std::optional<Value> value_;
};

// Where it has none.
void add_args(const ckpt::Value& assumed, CommonState& state) {
  const ckpt::Value root = state.document->tree.root();
  if (!root.is(ckpt::Kind::Dict) || root.find("args")) return;
  auto document = std::make_shared<ckpt::Document>();
  ckpt::ValueTree& tree = document->tree;
  tree.set_root(tree.copy(root));
  document->storages = state.document->storages;
  tree.put(tree.root().id(), "args", tree.copy(*assumed.find("args")));
  state.document = std::move(document);
}

// A configuration that is not read leaves it without args, which is no damage.
void add_args_of_configuration(const OpenedTraining& checkpoint, CommonState& state) {
  const ckpt::Value root = state.document->tree.root();
  if (!root.is(ckpt::Kind::Dict) || root.find("args")) return;
  try {
    if (const std::string nemo = nemo_config(checkpoint); !nemo.empty()) {
      return translate_nemo(nemo, checkpoint.catalog(), state);
    }
    std::string config = bridge_config(checkpoint);
    if (config.empty()) return;
    add_args(args_of_bridge(config, root, checkpoint.catalog()).root(), state);
    state.config = std::move(config);
  } catch (const ckpt::Error& error) {
    if (error.code() != ckpt::ErrorCode::Unsupported) throw;
  }
}

}  // namespace

struct OpenedTraining::Known {
  std::shared_ptr<const ckpt::Document> assumed;  // null: nothing
  ReadOnce<std::optional<CommonState>> common_state;
  ReadOnce<RunArgs> args;
};

OpenedTraining::OpenedTraining(ckpt::Checkpoint checkpoint)
    : Checkpoint(std::move(checkpoint)), known_(std::make_unique<Known>()) {}
OpenedTraining::OpenedTraining(OpenedTraining&&) noexcept = default;
OpenedTraining& OpenedTraining::operator=(OpenedTraining&&) noexcept = default;
OpenedTraining::~OpenedTraining() = default;

const CommonState* OpenedTraining::common_state() const {
  const auto& state = known_->common_state.get([this] {
    auto read = read_common_state(*this);
    if (read && known_->assumed) add_args(known_->assumed->tree.root(), *read);
    if (read) add_args_of_configuration(*this, *read);
    return read;
  });
  return state ? &*state : nullptr;
}

void OpenedTraining::assume_args(std::shared_ptr<const ckpt::Document> state) {
  known_->assumed = std::move(state);
}

const CommonState& OpenedTraining::require_common_state() const {
  if (const CommonState* const state = common_state()) return *state;
  throw ckpt::Error(ckpt::ErrorCode::Corrupt, {.file = shown_path(), .key = {}},
                    "common.pt is missing, and the store has no common state",
                    "copy it again; reshard --repair common-state --like OTHER takes it from "
                    "another iteration")
      .mark_incomplete();
}

const RunArgs& OpenedTraining::args() const {
  return known_->args.get([this] { return RunArgs(*this); });
}

OpenedTraining open_checkpoint(const std::filesystem::path& path, ckpt::OpenOptions options) {
  options.convention = &kMegatronFolders;
  std::filesystem::path found = path;
  if (options.iteration) {
    found = find_iteration(path, *options.iteration, options.limits);
    if (found != path) options.iteration.reset();
  }
  try {
    return OpenedTraining(ckpt::Checkpoint::open(found, options));
  } catch (const ckpt::Error& error) {
    const bool may_be_of_verl = error.code() == ckpt::ErrorCode::NotFound && !options.iteration;
    if (may_be_of_verl) found = find_step_of_verl(path, options.limits);
    if (!may_be_of_verl || found == path) throw;
  }
  return OpenedTraining(ckpt::Checkpoint::open(found, options));
}

}  // namespace optim
