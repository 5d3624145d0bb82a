#pragma once

#include <filesystem>
#include <functional>
#include <string_view>
#include <vector>

#include <ckpt/convert.h>
#include <ckpt/plain_target.h>
#include <ckpt/write_target.h>
#include <training/convert.h>

#include "huggingface/export.h"

namespace optim {

// Hooks for ckpt::ConversionSource::check_result. What they refer to must outlive them.
using CheckWritten = std::function<ckpt::Carried(const ckpt::WrittenResult& written)>;

// Of a plain state dict.
CheckWritten plain_check(const OpenedTraining& source, ckpt::TargetSpec spec,
                         std::vector<ckpt::NotCarried> not_carried,
                         const ckpt::ConvertOptions& options);

struct WrittenAs {
  uint64_t vocabulary_rows;        // target_vocabulary() of its grid
  std::vector<StateCount> states;  // that the result must have
};

// What a step of a conversion, which is neither reading nor writing its files, is told.
ckpt::ExecuteOptions named_steps(const ckpt::ConvertOptions& options, std::string_view step);

// Of what make_layer_wise_target() made of a state, which is filed in the target's form.
// `payloads`: what the state's chunks lie in. Embeddings that the target pads otherwise are
// compared in the rows that both have.
CheckWritten layer_wise_check(const FiledState& state, const ckpt::PayloadSource& payloads,
                              const WrittenAs& made, std::vector<ckpt::NotCarried> not_carried,
                              const ckpt::ConvertOptions& options);

// Of what make_layer_wise_safetensors(state, options.keys) made.
CheckWritten layer_wise_safetensors_check(const FiledState& state,
                                          const ckpt::PayloadSource& payloads,
                                          std::vector<ckpt::NotCarried> not_carried,
                                          const ckpt::ConvertOptions& options);

// Of what export_model() made: each tensor has the elements of the source where its table puts
// them.
CheckWritten export_check(std::vector<HuggingFaceExport::Tensor> tensors,
                          const ckpt::PayloadSource& payloads,
                          std::vector<ckpt::NotCarried> not_carried,
                          const ckpt::ConvertOptions& options);

}  // namespace optim
