#pragma once

#include <filesystem>
#include <vector>

#include <training/convert.h>

// Models out of several. Results are in the form of the first source; an optimizer's state is left
// out.
namespace optim {

// The mean of models that have the same tensors: in float32, source by source, divided by the sum
// of the weights, then rounded once to the tensor's type. Sources are Megatron checkpoints of any
// layout, or safetensors. Throws Unsupported, by name, where tensors, shapes, types or what
// describes the model differ; InvalidArgument for less than two sources, other numbers of weights
// than of sources, and weights that add up to nothing; else as convert().
ConvertReport average(const std::vector<std::filesystem::path>& sources,
                      const std::filesystem::path& destination, const std::vector<double>& weights,
                      const ConvertOptions& options);

// A Hugging Face folder, or the model of a Megatron checkpoint by the table of names that
// options.hugging_face says, with a PEFT adapter in it: W + scale * B * A in float32, rounded once.
// Throws Unsupported, by name, for adapters of other kinds than LoRA, for settings that are not
// understood, and for a tensor that has no place in the base; else as convert().
ConvertReport merge_adapter(const std::filesystem::path& base, const std::filesystem::path& adapter,
                            const std::filesystem::path& destination,
                            const ConvertOptions& options);

}  // namespace optim
