#include <training/names_check.h>

#include <algorithm>
#include <unordered_map>

#include <ckpt/error.h>
#include <ckpt/printed.h>
#include <ckpt/tensor_stream.h>

#include "convert/repaired_source.h"
#include "huggingface/export.h"

namespace optim {
namespace {

using ckpt::Error;
using ckpt::ErrorCode;

// Empty: the folder's tensor is what the table makes.
std::string difference(const ViewedTensor& made, const ckpt::PayloadSource& payloads,
                       const ckpt::TensorEntry& found, const OpenedTraining& folder) {
  if (found.shape != made.shape) {
    return "has the shape " + ckpt::shape_text(found.shape) + ", the table gives it " +
           ckpt::shape_text(made.shape);
  }
  if (found.dtype != made.entry->dtype) {
    return "is of type " + std::string(ckpt::name(found.dtype)) + ", the checkpoint's of type " +
           std::string(ckpt::name(made.entry->dtype));
  }
  const bool is_same = ckpt::same_bytes(*made.entry, payloads, found, folder);
  return is_same ? "" : "has other values than " + ckpt::escaped(made.entry->key);
}

}  // namespace

OpenedTraining open_hugging_face(const std::filesystem::path& folder, const ckpt::Limits& limits) {
  OpenedTraining opened = open_checkpoint(folder, {std::nullopt, limits, {}});
  if (opened.catalog().format == ckpt::Format::Safetensors) return opened;
  throw Error(ErrorCode::Unsupported, {.file = opened.shown_path(), .key = {}},
              "holds no safetensors; expected a Hugging Face folder");
}

NamesCheck check_names(const std::filesystem::path& checkpoint, const std::filesystem::path& folder,
                       const ConvertOptions& given) {
  ConvertOptions options = given;
  if (!options.hugging_face) options.hugging_face.emplace();
  options.model_only = !options.hugging_face->masters;
  look_beside(checkpoint, options);
  const auto [source, repairs] = open_source(checkpoint, options);
  if (!has_training_state(source)) {
    throw Error(ErrorCode::Unsupported, {.file = source.shown_path(), .key = {}},
                "is not a training checkpoint of Megatron, whose names a table has");
  }
  const RepairedState state = read_repaired(source, options, repairs);
  const HuggingFaceExport made =
      export_model(state.state, *options.hugging_face, options.base.types, &source);
  const ckpt::PayloadSource& payloads = made.payloads ? *made.payloads : source;
  const OpenedTraining opened = open_hugging_face(folder, options.base.limits);
  std::unordered_map<std::string_view, const ViewedTensor*> views;
  for (const auto& [key, value] : made.tensors) views.emplace(key, &value);
  NamesCheck check{made.names, 0, {}};
  for (const ckpt::TensorEntry& found : opened.catalog().tensors) {
    const auto view = views.find(found.key);
    std::string problem = view == views.end() ? "the table makes no such tensor"
                                              : difference(*view->second, payloads, found, opened);
    if (view != views.end()) views.erase(view);
    if (problem.empty()) ++check.equal_count;
    if (!problem.empty()) check.differences.push_back({found.key, std::move(problem)});
  }
  for (const auto& [key, view] : views) {
    check.differences.push_back({std::string(key), "is not in the folder"});
  }
  std::ranges::sort(check.differences, {}, &NamesCheck::Difference::key);
  return check;
}

}  // namespace optim
