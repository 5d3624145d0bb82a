// A PEFT adapter in the weights that it changes.
#include <algorithm>
#include <map>
#include <utility>

#include <ckpt/cast.h>
#include <training/combine.h>
#include <training/layer_wise_checkpoint.h>

#include "convert/adapter.h"
#include "convert/files_beside.h"
#include "convert/repaired_source.h"
#include "convert/write_named.h"
#include "huggingface/table_walk.h"
#include "layouts/parts/tensor_parts.h"
#include "state/words.h"

namespace optim {
namespace {

using nlohmann::json;

std::string changes_text(const Adapter& adapter) {
  return "the base with the adapter's " + std::to_string(adapter.changes().size()) + " changes";
}

ConvertReport merge_into_folder(const OpenedTraining& opened, const std::filesystem::path& adapter,
                                Job job, const ConvertOptions& options) {
  BaseTensors base;
  for (const TensorEntry& tensor : opened.catalog().tensors) {
    base[tensor.key] = {std::make_shared<const TensorEntry>(tensor), tensor.shape};
  }
  const Adapter changes(adapter, base);
  MergedTensors merged(opened, changes);
  WrittenFolder folder;
  for (const TensorEntry& tensor : opened.catalog().tensors) {
    ViewedTensor value = base.at(tensor.key);
    if (changes.changes().contains(tensor.key)) {
      value.entry = std::make_shared<const TensorEntry>(merged.add(tensor.key, value));
    }
    folder.tensors.push_back({tensor.key, std::move(value)});
  }
  job.repaired = merged.payloads();
  ConvertReport report = write_folder(std::move(job), std::move(folder), options);
  report.computed = changes_text(changes);
  return report;
}

// --- a checkpoint of Megatron ---

// Rows behind those of tokens, as they are.
void add_padding(const TensorEntry& stored, uint64_t tokens, TensorEntry& made) {
  Box rows = ckpt::whole(stored.shape);
  rows.offsets[0] = tokens;
  rows.sizes[0] -= tokens;
  for (const Chunk& chunk : stored.chunks) {
    const auto box = ckpt::intersect(chunk.box, rows);
    if (box) made.chunks.push_back(part_of(chunk, *box, ckpt::stored_type(stored)));
  }
}

// The model's tensors that an adapter changes, out of what it makes of those of the export.
class MergedModel {
 public:
  MergedModel(const HuggingFaceExport& made, const Adapter& adapter, TrainingState& state)
      : made_(made), adapter_(adapter), scope_(made.table, made.args, without_padding(made)) {
    for (TrainedParam& param : state.params) params_[param.info.name] = &param;
    for (const auto& [key, value] : made.tensors) views_[key] = &value;
    for_each_tensor(made_.table, scope_, [&](TableTensor tensor) {
      if (!adapter_.changes().contains(tensor.key)) return;
      for (const TableTensor::Part& part : tensor.parts) changed_[name_of(part)] = {};
    });
  }

  void run(MergedTensors& merged) {
    for_each_tensor(made_.table, scope_, [&](TableTensor tensor) { add(tensor, merged); });
    for (auto& [name, entry] : changed_) {
      const TensorEntry& stored = *params_.at(name)->weight;
      if (entry.shape != stored.shape) add_padding(stored, entry.shape[0], entry);
      entry.key = stored.key;
      entry.dtype = stored.dtype;
      entry.shape = stored.shape;
      params_.at(name)->weight = std::make_shared<const TensorEntry>(std::move(entry));
    }
  }

 private:
  static json without_padding(const HuggingFaceExport& made) {
    json given = made.given;
    given["vocabulary_rows"] = given["vocabulary"];
    return given;
  }
  std::string name_of(const TableTensor::Part& part) const {
    return *std::ranges::find_if(part.names,
                                 [&](const std::string& name) { return params_.contains(name); });
  }

  void add(const TableTensor& tensor, MergedTensors& merged) {
    std::vector<std::string> names;
    std::vector<size_t> numbers;
    for (const TableTensor::Part& part : tensor.parts) {
      numbers.push_back(names.size());
      names.push_back(name_of(part));
    }
    if (std::ranges::none_of(names, [&](const auto& name) { return changed_.contains(name); })) {
      return;
    }
    if (tensor.added != 0) {
      throw Error(ErrorCode::Unsupported, {.file = {}, .key = tensor.key},
                  "is in the checkpoint without the number that is added to it, which an adapter's "
                  "values cannot replace",
                  "ckpt-convert --to huggingface makes a folder that they can be merged into");
    }
    const TensorEntry entry = merged.add(tensor.key, *views_.at(tensor.key));
    for (GivenPart& part : parts_of({entry, *tensor.row}, scope_, numbers)) {
      const auto changed = changed_.find(names[part.tensor]);
      if (changed == changed_.end()) continue;
      uint64_t count = 0;
      for (const Chunk& chunk : changed->second.chunks) {
        count += ckpt::element_count(chunk.box.sizes);
      }
      if (count != 0 && count == ckpt::element_count(part.shape)) {
        throw Error(ErrorCode::Unsupported, {.file = {}, .key = tensor.key},
                    "is a copy of what an adapter changes, and Megatron has one tensor for both");
      }
      changed->second.shape = part.shape;
      for (Chunk& chunk : part.chunks) changed->second.chunks.push_back(std::move(chunk));
    }
  }

  const HuggingFaceExport& made_;
  const Adapter& adapter_;
  NameScope scope_;
  std::map<std::string, TrainedParam*> params_;
  std::map<std::string, const ViewedTensor*> views_;
  std::map<std::string, TensorEntry> changed_;  // by the model's name
};

ConvertReport merge_into_checkpoint(const OpenedSource& opened,
                                    const std::filesystem::path& adapter, Job job,
                                    const ConvertOptions& options) {
  RepairedState state = read_repaired(opened.checkpoint, options, opened.repairs);
  const HuggingFaceExport made =
      export_model(state.state, options.hugging_face.value_or(HuggingFaceOptions{}), {});
  BaseTensors base;
  for (const auto& [key, value] : made.tensors) base[key] = value;
  const Adapter changes(adapter, base);
  MergedTensors merged(opened.checkpoint, changes);
  MergedModel(made, changes, state.state).run(merged);
  state.payloads = merged.payloads();
  ConvertOptions plain = options;
  plain.hugging_face.reset();
  ConvertReport report = convert_state(std::move(job), plain, std::move(state));
  report.computed = changes_text(changes);
  return report;
}

}  // namespace

ConvertReport merge_adapter(const std::filesystem::path& base, const std::filesystem::path& adapter,
                            const std::filesystem::path& destination, const ConvertOptions& given) {
  ConvertOptions options = given;
  options.model_only = true;
  const OpenedSource opened = open_source(base, options);
  Job job{opened.checkpoint, base, destination};
  if (has_training_state(opened.checkpoint)) {
    return merge_into_checkpoint(opened, adapter, std::move(job), options);
  }
  if (opened.checkpoint.catalog().format == ckpt::Format::Safetensors) {
    return merge_into_folder(opened.checkpoint, adapter, std::move(job), given);
  }
  throw Error(ErrorCode::Unsupported, {.file = opened.checkpoint.shown_path(), .key = {}},
              "is neither a Hugging Face folder nor a training checkpoint of Megatron, which "
              "adapters are merged into");
}

}  // namespace optim
