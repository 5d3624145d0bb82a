#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "huggingface/export.h"
#include "huggingface/import.h"
#include "huggingface/table_walk.h"

// Adapter-only iterations of Megatron Bridge as folders of PEFT, and back, by tables of names.
namespace optim {

// The rows of a table for the factors of what they describe. `rank`: an axis of that name has the
// rank, `stacked` the experts, of which one is taken.
inline constexpr const char *kRankAxis = "rank__", *kStackAxis = "stack__";
struct FactorRow {
  TensorRow row;         // of B, whose rows are those of the weight
  uint64_t columns = 0;  // of A
};
// Throws Unsupported, by the row's target, where the columns of the weight are not those of the
// model's: transposed, cut, or of several tensors. `expert`: the model's factors are stacked.
FactorRow row_of_factor(const TableTensor& tensor, const NameScope& scope,
                        std::optional<uint32_t> expert = {});
// The sizes of such axes beside args.
NameScope with_axes(const NameTable& table, const nlohmann::json& args, nlohmann::json axes);

// The module of a weight, or of one of grouped experts (weight3); empty: it is not a weight.
std::string module_of_weight(const std::string& name);
// ".adapter_q", where CanonicalLoRA has an adapter of its own for a key; empty: it has none.
std::string canonical_suffix(const std::string& key);

// By the table of options.hugging_face. `source`: that the state was read from, with its
// run_config.yaml. Throws Unsupported, by name, for adapters that are not LoRA, without rank and
// alpha, and where a factor has no place.
HuggingFaceExport export_adapter(const OpenedTraining& source, const TrainingState& state,
                                 const ConvertOptions& options);

// Whether a folder is an adapter of PEFT.
bool is_adapter(const OpenedTraining& folder);
// import_model(), or of an adapter, for the base whose config.json is in options.names.args_from.
// Throws Unsupported, by name, for what Bridge has no place for.
HuggingFaceImport import_folder(const OpenedTraining& folder, const ImportOptions& options,
                                const SizeChange& sizes);

}  // namespace optim
