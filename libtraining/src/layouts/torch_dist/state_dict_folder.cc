// What state_dicts.cc reads, but for its model and its optimizer: the folder, args, random states.
#include "layouts/torch_dist/state_dict_folder.h"

#include <algorithm>

#include "args/run_args.h"
#include "state/words.h"

namespace optim {
namespace {

using ckpt::ArchiveBuilder;

std::string key_of(const Path& path) {
  std::string key;
  for (const Step& step : path) {
    if (!key.empty()) key += '.';
    const auto* const index = std::get_if<int64_t>(&step);
    key += index != nullptr ? std::to_string(*index) : std::get<std::string>(step);
  }
  return key;
}

}  // namespace

void require_adam_in_float32(const TrainedParam& param, const std::string& hint) {
  const auto refuse = [&](const std::string& key, std::string problem) {
    throw Error(ErrorCode::Unsupported, {.file = {}, .key = key}, std::move(problem), hint);
  };
  if (!param.master || param.master->dtype != DType::Float32) {
    refuse(param.info.name, "has no float32 master, which is what it stores");
  }
  for (const StateTensor& state : param.states) {
    if (state.name == "exp_avg" || state.name == "exp_avg_sq") continue;
    refuse(state.value->key, "Megatron's FSDP has Adam's states alone");
  }
}

StateDictFolder::StateDictFolder(const FiledState& source)
    : source_(source), paths_root_(paths_.dict()) {}

void StateDictFolder::add_tensor(const Path& path, const TensorRef& tensor) {
  add_box(path, tensor, ckpt::whole(tensor->shape));
}

void StateDictFolder::add_box(const Path& path, const TensorRef& tensor, Box box) {
  const auto index = static_cast<uint32_t>(spec_.tensors.size());
  spec_.tensors.push_back({key_of(path), tensor->dtype, box.sizes});
  note(path);
  Box whole = ckpt::whole(box.sizes);
  spec_.chunks.push_back({index, 0, std::move(whole), ckpt::TensorSource{tensor, std::move(box)}});
}

// planner_data
void StateDictFolder::note(const Path& path) {
  std::vector<NodeId> steps;
  for (const Step& step : path) {
    const auto* const index = std::get_if<int64_t>(&step);
    steps.push_back(index != nullptr ? paths_.integer(*index)
                                     : paths_.str(std::get<std::string>(step)));
  }
  paths_.put(paths_root_, key_of(path), paths_.sequence(Kind::Tuple, steps));
}

void StateDictFolder::add_object(const Path& path, ArchiveBuilder& archive, NodeId root) {
  note(path);
  ckpt::TargetArchive made = archive.finish("archive", root);
  spec_.objects.push_back(
      {key_of(path), std::get<1>(std::move(made.content)), std::move(made.records), 0});
}

void StateDictFolder::add_value(const Path& path, const Value& value) {
  ArchiveBuilder archive;
  add_object(path, archive, archive.carry(value, source_.common));
}

// Dictionaries are flattened, and tensors entries of their own.
void StateDictFolder::add_values(const Path& path, const Value& value) {
  if (const auto tensor = ckpt::as_tensor(value)) {
    return add_tensor(path, std::make_shared<const TensorEntry>(ckpt::make_tensor_entry(
                                source_.common, {key_of(path), value.id(), *tensor}, {})));
  }
  if (!value.is(Kind::Dict)) return add_value(path, value);
  for (size_t i = 0; i < value.item_count(); ++i) {
    Path further = path;
    further.emplace_back(ckpt::key_text(value.item(i).first));
    add_values(further, value.item(i).second);
  }
}

void StateDictFolder::add_common(const Run& run) {
  const Value root = source_.common.tree.root();
  for (const auto& [name, value] : ckpt::items_of(root)) {
    const std::string key = ckpt::key_text(name);
    if (key == "args") {
      add_args(value, run);
    } else if (key != "rng_state") {
      add_values({key}, value);
    } else if (value.is(Kind::List) && value.size() != 0 && value[0].is(Kind::Dict)) {
      add_values(run.first_rng, value[0]);
    }
  }
}

void StateDictFolder::add_args(const Value& args, const Run& run) {
  ArchiveBuilder archive;
  ValueTree& tree = archive.tree();
  const NodeId carried = archive.carry(args, source_.common);
  const NodeId attributes = tree.value(carried).state()->id();
  tree.put(attributes, "ckpt_format", tree.str(run.ckpt_format));
  for (const auto& [name, is_on] : run.args) tree.put(attributes, name, tree.boolean(is_on));
  const auto put = [&](std::string_view name, NodeId value) {
    if (tree.value(attributes).find(name)) tree.put(attributes, name, value);
  };
  // Random states are those of one rank of the model.
  for (const char* const size : {"pipeline_model_parallel_size", "tensor_model_parallel_size",
                                 "expert_tensor_parallel_size", "megatron_fsdp_version"}) {
    put(size, tree.integer(1));
  }
  put("expert_model_parallel_size", tree.integer(run.expert_parallel));
  put("sequence_parallel", tree.boolean(false));
  put("virtual_pipeline_model_parallel_size", tree.none());
  add_object({"args"}, archive, carried);
}

void StateDictFolder::share_out() {
  spec_.rank_count = std::clamp<uint32_t>(source_.grid.sizes.data_parallel, 1, 1024);
  std::vector<uint64_t> loads(spec_.rank_count);
  for (ckpt::DistChunk& chunk : spec_.chunks) {
    const auto least = std::ranges::min_element(loads);
    chunk.rank = static_cast<uint32_t>(least - loads.begin());
    *least += ckpt::element_count(chunk.box.sizes) *
              ckpt::bytes_per_element(spec_.tensors[chunk.tensor].dtype);
  }
  std::ranges::stable_sort(spec_.chunks, {}, &ckpt::DistChunk::rank);
}

ckpt::Target StateDictFolder::finish() {
  share_out();
  ckpt::Target target;
  target.format = ckpt::Format::TorchDist;
  paths_.set_root(paths_root_);
  spec_.planner_data = std::move(paths_);
  spec_.chunk_index = true;
  target.files = ckpt::make_torch_dist_files(std::move(spec_));
  if (!source_.rank_objects.empty()) {
    target.not_carried.push_back(
        {"rerun_state_machine_state", "of the ranks of one run; a run under FSDP starts its own"});
  }
  if (source_.rng_states.size() > 1) {
    target.not_carried.push_back(
        {"rng_state of " + std::to_string(source_.rng_states.size() - 1) + " places in the model",
         "the first one's is carried"});
  }
  return target;
}

}  // namespace optim
