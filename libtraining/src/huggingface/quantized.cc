// Scales as transformers 5 reads them: integrations/finegrained_fp8.py, integrations/mxfp4.py.
#include "huggingface/quantized.h"

#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include <ckpt/cast.h>

#include "state/computed_tensors.h"
#include "state/words.h"

namespace optim {
namespace {

using nlohmann::json;

using Shared = std::shared_ptr<const TensorEntry>;

constexpr std::string_view kWeight = ".weight", kScale = "_scale_inv", kBlocks = "_blocks",
                           kScales = "_scales";
constexpr uint64_t kPerScale = 32;  // numbers of mxfp4

[[noreturn]] void refuse(const OpenedTraining& folder, const char* key, const std::string& what) {
  throw Error(ErrorCode::Unsupported,
              {.file = (folder.folder() / "config.json").string(), .key = key}, what);
}

DType type_of_products(const OpenedTraining& folder, const json& config) {
  for (const char* const field : {"dtype", "torch_dtype"}) {
    const json stated = config.value(field, json());
    if (stated.is_null()) continue;
    const auto type =
        stated.is_string() ? ckpt::dtype_named(stated.get<std::string>()) : std::nullopt;
    if (type && ckpt::can_round(*type)) return *type;
    refuse(folder, field, "is " + stated.dump() + ", which weights cannot be read in");
  }
  return DType::BFloat16;
}

Shared find(const OpenedTraining& folder, const std::string& key) {
  const TensorEntry* const found = folder.catalog().find_tensor(key);
  return found == nullptr ? nullptr : std::make_shared<const TensorEntry>(*found);
}

uint64_t blocks_in(uint64_t count, uint64_t block) { return (count + block - 1) / block; }

// Rows and columns of a block: those that config.json says where the scales are as many, else
// equal parts.
std::pair<uint64_t, uint64_t> block_of(const TensorEntry& values, const TensorEntry& scales,
                                       const json& stated) {
  const uint64_t rows = values.shape.end()[-2], columns = values.shape.end()[-1];
  const bool is_grid = scales.shape.size() >= 2;
  const uint64_t down = is_grid ? scales.shape.end()[-2] : 1;
  const uint64_t across = is_grid ? scales.shape.end()[-1] : 1;
  if (stated.is_array() && stated.size() == 2 && stated[0].is_number_unsigned() &&
      stated[1].is_number_unsigned() && stated[0] > 0 && stated[1] > 0) {
    const uint64_t block_rows = stated[0], block_columns = stated[1];
    if (blocks_in(rows, block_rows) == down && blocks_in(columns, block_columns) == across) {
      return {block_rows, block_columns};
    }
  }
  if (down != 0 && across != 0 && rows % down == 0 && columns % across == 0) {
    return {rows / down, columns / across};
  }
  throw Error(ErrorCode::Corrupt, {.file = {}, .key = scales.key},
              "does not divide the rows and columns of " + ckpt::escaped(values.key));
}

// What one tensor of the folder becomes.
struct Found {
  std::string key;
  ckpt::Scaled scaled;
  bool is_transposed = false;
};

std::optional<Found> find_pair(const OpenedTraining& folder, const TensorEntry& tensor,
                               const json& block) {
  const std::string& key = tensor.key;
  if (Shared scales = find(folder, key + std::string(kScale)); scales && tensor.shape.size() >= 2) {
    const auto [rows, columns] = block_of(tensor, *scales, block);
    return Found{
        key, {std::make_shared<const TensorEntry>(tensor), scales, tensor.shape, rows, columns}};
  }
  if (!key.ends_with(kBlocks) || tensor.shape.size() != 4) return std::nullopt;
  const std::string stem = key.substr(0, key.size() - kBlocks.size());
  Shared scales = find(folder, stem + std::string(kScales));
  if (!scales) return std::nullopt;
  const Extents& shape = tensor.shape;
  return Found{stem,
               {std::make_shared<const TensorEntry>(tensor),
                scales,
                {shape[0], shape[1], shape[2] * shape[3] * 2},
                1,
                kPerScale},
               true};
}

// The last two dimensions exchanged, as views.
TensorEntry transposed(TensorEntry entry) {
  const uint64_t rows = entry.shape[1], columns = entry.shape[2];
  std::swap(entry.shape[1], entry.shape[2]);
  entry.chunks[0].box = ckpt::whole(entry.shape);
  entry.chunks[0].view =
      std::make_shared<const ckpt::StridedView>(ckpt::StridedView{0, {rows * columns, 1, columns}});
  return entry;
}

json quantization_of(const OpenedTraining& folder, const json& config) {
  json stated = config.value("quantization_config", json());
  if (!stated.is_object()) return json::object();
  const json method = stated.value("quant_method", json());
  if (method != "fp8" && method != "mxfp4") {
    refuse(folder, "quantization_config", "is of " + method.dump() + ", expected fp8 or mxfp4");
  }
  return stated;
}

}  // namespace

FolderTensors folder_tensors(const OpenedTraining& folder, const json& config) {
  const json block = quantization_of(folder, config).value("weight_block_size", json());
  FolderTensors made;
  made.catalog.format = folder.catalog().format;
  made.catalog.files = folder.catalog().files;
  const auto first_file = static_cast<uint32_t>(made.catalog.files.size());
  std::vector<ckpt::Scaled> products;
  std::map<std::string, uint64_t> counts;  // by what became of them
  for (const TensorEntry& tensor : folder.catalog().tensors) {
    auto pair = find_pair(folder, tensor, block);
    if (!pair) {
      made.catalog.tensors.push_back(tensor);
      continue;
    }
    pair->scaled.type = type_of_products(folder, config);
    TensorEntry entry = ckpt::product_entry(pair->scaled, pair->key,
                                            first_file + static_cast<uint32_t>(products.size()));
    made.catalog.tensors.push_back(pair->is_transposed ? transposed(std::move(entry))
                                                       : std::move(entry));
    ++counts[(pair->is_transposed ? "mxfp4" : std::string(ckpt::name(tensor.dtype))) + " -> " +
             std::string(ckpt::name(pair->scaled.type))];
    products.push_back(std::move(pair->scaled));
  }
  std::set<std::string_view> scales;
  for (const ckpt::Scaled& scaled : products) scales.insert(scaled.scales->key);
  std::erase_if(made.catalog.tensors,
                [&](const TensorEntry& tensor) { return scales.contains(tensor.key); });
  for (const auto& [types, count] : counts) {
    made.changed.push_back(
        {std::to_string(count) + " tensors", types + ", times their scales", {}, true});
  }
  if (!products.empty()) {
    made.products = ckpt::with_products(folder, first_file, std::move(products));
  }
  made.catalog.index();
  return made;
}

bool take_fp8_blocks(std::vector<ckpt::TypeRule>& types) {
  const auto is_fp8 = [](const ckpt::TypeRule& rule) { return rule.type == DType::Float8E4M3FN; };
  for (const ckpt::TypeRule& rule : types) {
    if (!is_fp8(rule) || rule.keys.empty()) continue;
    throw Error(ErrorCode::InvalidArgument, {.file = {}, .key = rule.keys},
                "cannot be fp8-block128 alone, which is of all linear layers");
  }
  return std::erase_if(types, is_fp8) > 0;
}

void quantize(const ckpt::Checkpoint* given, HuggingFaceExport& made) {
  if (given == nullptr) {
    throw Error(ErrorCode::Unsupported, {},
                "state that is repaired while it is read cannot be quantised in the same run",
                "convert the repaired checkpoint");
  }
  const ckpt::Checkpoint& source = *given;
  ComputedTensors computed(source);
  std::vector<HuggingFaceExport::Tensor> tensors;
  nlohmann::json kept = nlohmann::json::array();
  const auto add = [&](const std::string& key, DType type, const Extents& shape,
                       ckpt::ComputedTensor tensor) {
    TensorEntry entry = computed.add(key, type, shape, std::move(tensor.fill));
    tensors.push_back({key, {std::make_shared<const TensorEntry>(std::move(entry)), shape}});
  };
  for (auto& [key, value] : made.tensors) {
    const DType type = value.entry->dtype;
    if (made.linears.contains(key) && value.shape.size() > 2) {
      throw Error(ErrorCode::Unsupported, {.file = {}, .key = key},
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
    ckpt::BlockQuantized blocks = ckpt::quantized(
        {ckpt::bytes_per_element(type), elements_of(source, value.entry)}, type, value.shape, key);
    add(key, DType::Float8E4M3FN, value.shape, std::move(blocks.values));
    add(key + std::string(kScale), DType::Float32, blocks.scales_shape, std::move(blocks.scales));
  }
  made.tensors = std::move(tensors);
  made.payloads = computed.payloads();
  made.quantization = {{"quant_method", "fp8"},
                       {"fmt", "e4m3"},
                       {"activation_scheme", "dynamic"},
                       {"weight_block_size", {ckpt::kScaledBlock, ckpt::kScaledBlock}},
                       {"modules_to_not_convert", std::move(kept)}};
}

}  // namespace optim
