// What conversions do before they publish: the result is read as any later reader would.
#include "convert/check_result.h"

#include <algorithm>
#include <set>
#include <stdexcept>
#include <string_view>

#include <ckpt/error.h>
#include <training/logical_inventory.h>
#include <training/megatron_folders.h>
#include <training/verify.h>

#include "grid/placement.h"
#include "layouts/job/layer_wise_target.h"

namespace optim {
namespace {

OpenedTraining open_written(const ckpt::WrittenResult& written,
                            const ckpt::ConvertOptions& options) {
  return OpenedTraining(
      ckpt::open_result(written, {std::nullopt, options.limits, &kMegatronFolders}));
}

// The checks of `ckpt-inspect verify`.
void refuse_damage(const ckpt::WrittenResult& written, const ckpt::ConvertOptions& options) {
  if (!options.verify) return;
  VerifyOptions checks;
  checks.limits = options.limits;
  checks.execution = named_steps(options, "verifying");
  const VerifyReport report = written.source ? verify(open_written(written, options), checks)
                                             : verify(written.path, checks);
  ckpt::refuse_damage(report.findings);
}

ckpt::ResultCheck content_check(const std::vector<ckpt::NotCarried>& not_carried,
                                const ckpt::ConvertOptions& options) {
  return {not_carried, options.verify, named_steps(options, "comparing")};
}

FiledState read_state(const OpenedTraining& written, const ReadOptions& options) {
  try {
    return read_training_state(written, options);
  } catch (const ckpt::Error& error) {
    ckpt::refuse_unreadable(error);
  }
}

// Each element of each state, and no other.
void require_counts(const std::vector<StateCount>& wanted, const FiledState& found) {
  const std::vector<StateCount> counts = count_states(found);
  for (const StateCount& count : wanted) {
    if (std::ranges::find(counts, count) != counts.end()) continue;
    throw std::logic_error("the result does not hold " + std::to_string(count.element_count) +
                           " elements of " + ckpt::escaped(count.state));
  }
  if (counts.size() != wanted.size()) throw std::logic_error("the result holds other states");
}

// The first rows of a tensor.
void cut_rows(ckpt::TensorEntry& tensor, uint64_t rows) {
  if (tensor.shape.empty() || tensor.shape[0] <= rows) return;
  tensor.shape[0] = rows;
  std::erase_if(tensor.chunks,
                [&](const ckpt::Chunk& chunk) { return chunk.box.offsets[0] >= rows; });
  for (ckpt::Chunk& chunk : tensor.chunks) {
    chunk.box.sizes[0] = std::min(chunk.box.sizes[0], rows - chunk.box.offsets[0]);
  }
}

struct Compared {
  ckpt::Inventory &wanted, &found;
};

void cut_to_common_rows(const FiledState& state, uint64_t rows, const Compared& both) {
  std::set<std::string> keys;
  for (const TrainedParam& param : state.params) {
    if (!is_vocabulary(state, param.info.name)) continue;
    keys.insert(param.weight->key);
    if (param.master) keys.insert(param.master->key);
    for (const StateTensor& kept : param.states) keys.insert(kept.value->key);
  }
  uint64_t common = rows;
  for (const ckpt::TensorEntry& tensor : both.wanted.tensors) {
    if (keys.contains(tensor.key)) common = std::min(common, tensor.shape[0]);
  }
  for (ckpt::Inventory* const inventory : {&both.wanted, &both.found}) {
    for (ckpt::TensorEntry& tensor : inventory->tensors) {
      if (keys.contains(tensor.key)) cut_rows(tensor, common);
    }
  }
}

ckpt::Inventory wanted_tensors(const FiledState& state, const ckpt::KeyRules& key_rules) {
  const ckpt::KeyRules rules = rules_for(state, key_rules);
  ckpt::Inventory inventory;
  for (const TensorRef& tensor : tensors_of(state)) {
    const auto key = key_in_safetensors(tensor->key, rules);
    if (!key) continue;
    inventory.tensors.push_back(*tensor);
    inventory.tensors.back().key = *key;
  }
  return inventory;
}

}  // namespace

ckpt::ExecuteOptions named_steps(const ckpt::ConvertOptions& options, std::string_view step) {
  ckpt::ExecuteOptions execute;
  execute.threads = options.execute.threads;
  execute.memory_bytes_max = options.execute.memory_bytes_max;
  execute.process_bytes_max = options.execute.process_bytes_max;
  execute.stop = options.execute.stop;
  if (!options.execute.on_progress) return execute;
  execute.on_progress = [report = options.execute.on_progress, step](ckpt::Progress progress) {
    progress.step = step;
    report(progress);
  };
  return execute;
}

CheckWritten plain_check(const OpenedTraining& source, ckpt::TargetSpec spec,
                         std::vector<ckpt::NotCarried> not_carried,
                         const ckpt::ConvertOptions& options) {
  return [&source, &options, spec = std::move(spec),
          not_carried = std::move(not_carried)](const ckpt::WrittenResult& written) {
    refuse_damage(written, options);
    return ckpt::check_plain_result(source, spec, written, content_check(not_carried, options));
  };
}

CheckWritten layer_wise_check(const FiledState& state, const ckpt::PayloadSource& payloads,
                              const WrittenAs& made, std::vector<ckpt::NotCarried> not_carried,
                              const ckpt::ConvertOptions& options) {
  const ReadOptions reading{.rules = state.rules, .model_only = state.chain.empty()};
  return [&state, &payloads, &options, reading, made,
          not_carried = std::move(not_carried)](const ckpt::WrittenResult& written) {
    refuse_damage(written, options);
    const OpenedTraining result = open_written(written, options);
    ckpt::Inventory wanted = logical_inventory(state);
    const FiledState written_state = read_state(result, reading);
    require_counts(made.states, written_state);
    ckpt::Inventory found = logical_inventory(written_state);
    if (made.vocabulary_rows != 0) cut_to_common_rows(state, made.vocabulary_rows, {wanted, found});
    ckpt::require_same_content({wanted, payloads}, {found, result},
                               content_check(not_carried, options));
    return ckpt::count_carried(result);
  };
}

CheckWritten layer_wise_safetensors_check(const FiledState& state,
                                          const ckpt::PayloadSource& payloads,
                                          std::vector<ckpt::NotCarried> not_carried,
                                          const ckpt::ConvertOptions& options) {
  return [&state, &payloads, &options,
          not_carried = std::move(not_carried)](const ckpt::WrittenResult& written) {
    refuse_damage(written, options);
    const OpenedTraining result = open_written(written, options);
    const ckpt::Inventory wanted = wanted_tensors(state, options.keys);
    const ckpt::Inventory found{native_inventory(result).tensors, {}};
    ckpt::require_same_content({wanted, payloads}, {found, result},
                               content_check(not_carried, options));
    return ckpt::count_carried(result);
  };
}

CheckWritten export_check(std::vector<HuggingFaceExport::Tensor> tensors,
                          const ckpt::PayloadSource& payloads,
                          std::vector<ckpt::NotCarried> not_carried,
                          const ckpt::ConvertOptions& options) {
  return [&payloads, &options, tensors = std::move(tensors),
          not_carried = std::move(not_carried)](const ckpt::WrittenResult& written) {
    refuse_damage(written, options);
    const OpenedTraining result = open_written(written, options);
    const ckpt::Inventory wanted = inventory_of(tensors);
    ckpt::Inventory found{native_inventory(result).tensors, {}};
    name_axes(tensors, found);
    ckpt::require_same_content({wanted, payloads}, {found, result},
                               content_check(not_carried, options));
    return ckpt::count_carried(result);
  };
}

}  // namespace optim
