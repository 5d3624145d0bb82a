#include "huggingface/fp8_blocks.h"

#include <utility>

#include <ckpt/cast.h>
#include <ckpt/error.h>

#include "state/read_range.h"

namespace optim {
namespace {

constexpr std::string_view kScale = "_scale_inv", kWeight = ".weight";

ViewedTensor computed_tensor(const std::string& key, ckpt::DType type, ckpt::Extents shape,
                             uint32_t file) {
  auto entry = std::make_shared<ckpt::TensorEntry>(
      ckpt::TensorEntry{.file = {}, .key = key, .dtype = type, .shape = shape, .chunks = {}});
  entry->chunks = {ckpt::chunk_of_computed(*entry, file)};
  return {std::move(entry), std::move(shape)};
}

}  // namespace

bool take_fp8_blocks(std::vector<ckpt::TypeRule>& types) {
  const auto is_fp8 = [](const ckpt::TypeRule& rule) {
    return rule.type == ckpt::DType::Float8E4M3FN;
  };
  for (const ckpt::TypeRule& rule : types) {
    if (!is_fp8(rule) || rule.keys.empty()) continue;
    throw ckpt::Error(ckpt::ErrorCode::InvalidArgument, {.file = {}, .key = rule.keys},
                      "cannot be fp8-block128 alone, which is of all linear layers");
  }
  return std::erase_if(types, is_fp8) > 0;
}

void quantize(const ckpt::Checkpoint* given, HuggingFaceExport& made) {
  if (given == nullptr) {
    throw ckpt::Error(ckpt::ErrorCode::Unsupported, {},
                      "state that is repaired while it is read cannot be quantised in the same run",
                      "convert the repaired checkpoint");
  }
  const ckpt::Checkpoint& source = *given;
  const auto first_file = static_cast<uint32_t>(source.catalog().files.size());
  std::vector<ckpt::ComputedTensor> computed;
  std::vector<HuggingFaceExport::Tensor> tensors;
  nlohmann::json kept = nlohmann::json::array();
  const auto add = [&](const std::string& key, ckpt::DType type, ckpt::Extents shape,
                       ckpt::ComputedTensor tensor) {
    const auto file = first_file + static_cast<uint32_t>(computed.size());
    tensors.push_back({key, computed_tensor(key, type, std::move(shape), file)});
    computed.push_back(std::move(tensor));
  };
  for (auto& [key, value] : made.tensors) {
    const ckpt::DType type = value.entry->dtype;
    if (made.linears.contains(key) && value.shape.size() > 2) {
      throw ckpt::Error(ckpt::ErrorCode::Unsupported, {.file = {}, .key = key},
                        "has the experts of a layer in one tensor, of which blocks of fp8 are not "
                        "written",
                        "--dtype bfloat16 leaves it as it is");
    }
    const bool is_matrix = value.shape.size() == 2 && key.ends_with(kWeight);
    if (!is_matrix || !made.linears.contains(key) || !ckpt::can_round(type)) {
      const std::string module = key.substr(0, key.size() - kWeight.size());
      if (is_matrix && module.find("embed") == module.npos) kept.push_back(module);
      tensors.push_back({std::move(key), std::move(value)});
      continue;
    }
    ckpt::BlockQuantized blocks =
        ckpt::quantized({ckpt::bytes_per_element(type),
                         [&source, entry = value.entry](uint64_t first, std::span<std::byte> out) {
                           read_range(source, *entry, first, out);
                         }},
                        type, value.shape, key);
    add(key, ckpt::DType::Float8E4M3FN, value.shape, std::move(blocks.values));
    add(key + std::string(kScale), ckpt::DType::Float32, blocks.scales_shape,
        std::move(blocks.scales));
  }
  made.tensors = std::move(tensors);
  made.payloads = ckpt::with_computed(source, first_file, std::move(computed), source.shown_path());
  made.quantization = {{"quant_method", "fp8"},
                       {"fmt", "e4m3"},
                       {"activation_scheme", "dynamic"},
                       {"weight_block_size", {ckpt::kScaledBlock, ckpt::kScaledBlock}},
                       {"modules_to_not_convert", std::move(kept)}};
}

}  // namespace optim
