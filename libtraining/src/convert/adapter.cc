// LoRA, as peft/tuners/lora merges it.
#include "convert/adapter.h"

#include <algorithm>
#include <cmath>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <utility>

#include <ckpt/cast.h>
#include <ckpt/printed.h>
#include <ckpt/rounding.h>

#include "base/wide_vectors.h"
#include "huggingface/config_args.h"
#include "state/read_range.h"
#include "state/words.h"

namespace optim {
namespace {

using nlohmann::json;

constexpr std::string_view kFront = "base_model.model.", kWeight = ".weight";
constexpr uint64_t kFactorBytesMax = uint64_t{1} << 30;  // of one, in float32

// Settings that change nothing where they have these values.
const std::map<std::string, std::set<json>>& plain_settings() {
  static const std::map<std::string, std::set<json>> settings = {
      {"peft_type", {"LORA"}},
      {"use_dora", {false, nullptr}},
      {"use_qalora", {false, nullptr}},
      {"use_bdlora", {false, nullptr}},
      {"lora_bias", {false, nullptr}},
      {"bias", {"none", "all", "lora_only", nullptr}},
      {"layer_replication", {nullptr}},
      {"megatron_config", {nullptr}},
      {"alora_invocation_tokens", {nullptr}},
      {"arrow_config", {nullptr}},
      {"trainable_token_indices", {nullptr}},
      {"target_parameters", {nullptr, json::array()}}};
  return settings;
}

std::vector<float> floats_of(const OpenedTraining& opened, const TensorEntry& tensor) {
  std::vector<std::byte> bytes(ckpt::count_bytes(tensor));
  read_range(opened, tensor, 0, bytes);
  std::vector<float> values(ckpt::element_count(tensor.shape));
  const uint64_t element_bytes = ckpt::bytes_per_element(tensor.dtype);
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = float_at(tensor.dtype, bytes.data() + i * element_bytes);
  }
  return values;
}

// A matrix of `columns` with its rows and columns exchanged.
std::vector<float> exchanged(const std::vector<float>& matrix, uint64_t columns) {
  std::vector<float> made(matrix.size());
  const uint64_t rows = matrix.size() / columns;
  for (uint64_t row = 0; row < rows; ++row) {
    for (uint64_t i = 0; i < columns; ++i) made[i * rows + row] = matrix[row * columns + i];
  }
  return made;
}

// What is added to W before it is scaled: left, [rows, rank], times right, [rank, columns].
struct Factors {
  std::vector<float> left, right;
  uint64_t rank, columns;
};

constexpr uint64_t kRows = 4, kColumns = 64;  // whose sums are kept in registers

// sums[r * stride + i] = left[r * rank] * right[i] + left[r * rank + 1] * right[columns + i] + ...,
// in that order, of `kCount` rows.
template <uint64_t kCount>
CKPT_INLINED void add_products_of(const float* left, const float* right, const Factors& factors,
                                  std::span<float> sums) {
  const uint64_t stride = sums.size() / kCount;
  uint64_t done = 0;
  for (; done + kColumns <= stride; done += kColumns) {
    float block[kCount][kColumns] = {};
    for (uint64_t k = 0; k < factors.rank; ++k) {
      const float* const from = right + k * factors.columns + done;
      for (uint64_t row = 0; row < kCount; ++row) {
        const float factor = left[row * factors.rank + k];
        for (uint64_t i = 0; i < kColumns; ++i) block[row][i] += factor * from[i];
      }
    }
    for (uint64_t row = 0; row < kCount; ++row) {
      std::copy(block[row], block[row] + kColumns, sums.data() + row * stride + done);
    }
  }
  for (; done < stride; ++done) {
    for (uint64_t row = 0; row < kCount; ++row) {
      float sum = 0;
      for (uint64_t k = 0; k < factors.rank; ++k) {
        sum += left[row * factors.rank + k] * right[k * factors.columns + done];
      }
      sums[row * stride + done] = sum;
    }
  }
}

// Of one row, or a part of it, or of kRows.
CKPT_WIDE_VECTORS void add_products(const float* left, const float* right, const Factors& factors,
                                    std::span<float> sums) {
  if (sums.size() > factors.columns) return add_products_of<kRows>(left, right, factors, sums);
  add_products_of<1>(left, right, factors, sums);
}

template <DType kType>
CKPT_INLINED void add_scaled_as(std::span<const float> sums, float scale,
                                std::byte* __restrict out) {
  constexpr size_t kBytes = kType == DType::Float32 ? 4 : 2;
  for (size_t i = 0; i < sums.size(); ++i) {
    put_float(float_at(kType, out + i * kBytes) + scale * sums[i], kType, out + i * kBytes);
  }
}

// out[i] += scale * sums[i], rounded once.
CKPT_WIDE_VECTORS void add_scaled(std::span<const float> sums, float scale, DType type,
                                  std::byte* out) {
  switch (type) {
    case DType::Float32: return add_scaled_as<DType::Float32>(sums, scale, out);
    case DType::BFloat16: return add_scaled_as<DType::BFloat16>(sums, scale, out);
    default: return add_scaled_as<DType::Float16>(sums, scale, out);
  }
}

// Rows of W + scale * B * A, or of its transpose.
class Merged {
 public:
  Merged(const OpenedTraining& base, const Adapter& adapter, const Change& change)
      : base_(base), adapter_(adapter), change_(change) {}

  void fill(uint64_t first, std::span<std::byte> out) const {
    const TensorEntry& tensor = *change_.base.entry;
    if (!change_.a) return replace(first, out);
    const uint64_t element_bytes = ckpt::bytes_per_element(tensor.dtype);
    const uint64_t columns = change_.base.shape[1], end = first + out.size() / element_bytes;
    read_range(base_, tensor, first, out);
    const auto factors = factors_of();
    std::vector<float> sums(kRows * columns);
    for (uint64_t i = first; i < end;) {
      const uint64_t row = i / columns, begin = i % columns;
      const bool is_whole = begin == 0 && end - i >= sums.size();
      const auto part =
          is_whole ? std::span(sums) : std::span(sums).first(std::min(columns - begin, end - i));
      add_products(factors->left.data() + row * factors->rank, factors->right.data() + begin,
                   *factors, part);
      add_scaled(part, change_.scale, tensor.dtype, out.data() + (i - first) * element_bytes);
      i += part.size();
    }
  }

 private:
  // Read once, as long as a thread has no other.
  std::shared_ptr<const Factors> factors_of() const {
    thread_local std::shared_ptr<const Factors> kept;
    const std::lock_guard lock(mutex_);
    std::shared_ptr<const Factors> known = known_.lock();
    if (!known) {
      auto a = floats_of(adapter_.opened(), *change_.a);
      auto b = floats_of(adapter_.opened(), *change_.b);
      const uint64_t rank = change_.a->shape[0], inner = change_.a->shape[1];
      if (change_.is_flipped) {
        auto left = exchanged(a, inner);
        a = exchanged(b, rank);
        b = std::move(left);
      }
      known = std::make_shared<const Factors>(
          Factors{std::move(b), std::move(a), rank, change_.base.shape[1]});
      known_ = known;
    }
    kept = known;
    return known;
  }

  // What was trained as a whole: modules_to_save, biases.
  void replace(uint64_t first, std::span<std::byte> out) const {
    const TensorEntry& tensor = *change_.base.entry;
    const TensorEntry& given = *change_.b;
    const uint64_t element_bytes = ckpt::bytes_per_element(tensor.dtype);
    const uint64_t given_bytes = ckpt::bytes_per_element(given.dtype);
    const uint64_t count = out.size() / element_bytes;
    std::vector<std::byte> bytes(count * given_bytes);
    read_range(adapter_.opened(), given, first, bytes);
    for (uint64_t i = 0; i < count; ++i) {
      put_float(float_at(given.dtype, bytes.data() + i * given_bytes), tensor.dtype,
                out.data() + i * element_bytes);
    }
  }

  const OpenedTraining& base_;
  const Adapter& adapter_;
  Change change_;
  mutable std::mutex mutex_;
  mutable std::weak_ptr<const Factors> known_;
};

}  // namespace

Adapter::Adapter(const std::filesystem::path& folder, const BaseTensors& base)
    : opened_(open_checkpoint(folder)),
      base_(base),
      config_(read_object(opened_.folder() / "adapter_config.json")) {
  for (const auto& [name, values] : plain_settings()) {
    const json value = config_.value(name, json());
    if (values.contains(value) || (value.is_null() && name != "peft_type")) continue;
    refuse_setting(name, value);
  }
  for (const TensorEntry& tensor : opened_.catalog().tensors) add(tensor);
  if (changes_.empty()) refuse({}, "has no tensors");
  for (auto& [key, change] : changes_) check(key, change);
}

void Adapter::refuse_setting(const std::string& name, const json& value) const {
  throw Error(ErrorCode::Unsupported,
              {.file = (opened_.folder() / "adapter_config.json").string(), .key = name},
              "is " + value.dump() +
                  ", which is not merged here; LoRA of linear layers and "
                  "embeddings is");
}

void Adapter::refuse(const std::string& key, const std::string& problem) const {
  throw Error(ErrorCode::Unsupported, {.file = opened_.shown_path(), .key = key}, problem);
}

// "base_model.model.model.layers.0.mlp.up_proj.lora_A.weight".
void Adapter::add(const TensorEntry& tensor) {
  if (!tensor.key.starts_with(kFront)) refuse(tensor.key, "is not named as PEFT names adapters");
  const std::string key = tensor.key.substr(kFront.size());
  auto shared = std::make_shared<const TensorEntry>(tensor);
  for (const bool is_embedding : {false, true}) {
    const std::string front = is_embedding ? ".lora_embedding_" : ".lora_";
    const std::string back = is_embedding ? "" : std::string(kWeight);
    for (const bool is_a : {true, false}) {
      const std::string end = front + (is_a ? "A" : "B") + back;
      if (!key.ends_with(end)) continue;
      const std::string module = key.substr(0, key.size() - end.size());
      Change& change = changes_[module + std::string(kWeight)];
      (is_a ? change.a : change.b) = std::move(shared);
      change.scale = scale_of(module);
      change.is_flipped = is_embedding || config_.value("fan_in_fan_out", json()) == true;
      return;
    }
  }
  if (key.find(".lora_") != key.npos) refuse(tensor.key, "is a part of LoRA that is not known");
  Change& change = changes_[key];
  change.b = std::move(shared);
}

// The value of the first pattern that ends a module's name, as PEFT looks for it.
json Adapter::by_pattern(const char* field, const std::string& module,
                         const json& otherwise) const {
  const json patterns = config_.value(field, json());
  std::optional<json> found;
  if (!patterns.is_object()) return otherwise;
  for (const auto& [pattern, value] : patterns.items()) {
    const std::string start = pattern.starts_with("^") ? pattern.substr(1) : pattern;
    if (start.find_first_of("\\*+?[](){}|^$") != start.npos) refuse_setting(field, patterns);
    const bool fits =
        module == start || (start.size() == pattern.size() && module.ends_with("." + start));
    if (!fits) continue;
    if (found && *found != value) refuse_setting(field, patterns);
    found = value;
  }
  return found.value_or(otherwise);
}

float Adapter::scale_of(const std::string& module) const {
  const json rank = by_pattern("rank_pattern", module, config_.value("r", json()));
  const json alpha = by_pattern("alpha_pattern", module, config_.value("lora_alpha", json()));
  if (!rank.is_number() || !alpha.is_number() || rank.get<double>() <= 0) {
    refuse_setting(rank.is_number() ? "lora_alpha" : "r", rank.is_number() ? alpha : rank);
  }
  const bool is_stabilised = config_.value("use_rslora", json()) == true;
  const double by = is_stabilised ? std::sqrt(rank.get<double>()) : rank.get<double>();
  return static_cast<float>(alpha.get<double>() / by);
}

void Adapter::check(const std::string& key, Change& change) const {
  const auto known = base_.find(key);
  const std::string shown = (change.b ? change.b : change.a)->key;
  if (known == base_.end())
    refuse(shown, "is for '" + ckpt::escaped(key) + "', which the base lacks");
  const ViewedTensor* const found = &known->second;
  if (!ckpt::can_round(found->entry->dtype)) {
    refuse(key, "is of type " + std::string(ckpt::name(found->entry->dtype)) +
                    " in the base, which nothing can be added to");
  }
  change.base = *found;
  if (!change.a && change.b && change.scale == 0) {
    if (change.b->shape != found->shape) refuse(shown, "has a different shape from the base's");
    return;
  }
  if (!change.a || !change.b) refuse(shown, "has no twin: LoRA needs A and B");
  const Extents& a = change.a->shape;
  const Extents& b = change.b->shape;
  const bool fits = a.size() == 2 && b.size() == 2 && found->shape.size() == 2 && a[0] == b[1] &&
                    found->shape == (change.is_flipped ? Extents{a[1], b[0]} : Extents{b[0], a[1]});
  if (!fits) {
    refuse(shown, "A " + ckpt::shape_text(a) + " and B " + ckpt::shape_text(b) +
                      " do not fit the base's " + ckpt::shape_text(found->shape));
  }
  for (const TensorRef& factor : {change.a, change.b}) {
    if (!ckpt::can_round(factor->dtype) ||
        ckpt::element_count(factor->shape) * sizeof(float) > kFactorBytesMax) {
      refuse(factor->key, "is too large, or not of floating point");
    }
  }
}

TensorEntry MergedTensors::add(const std::string& key, const ViewedTensor& tensor) {
  const auto change = adapter_.changes().find(key);
  ComputedTensors::Fill fill;
  if (change != adapter_.changes().end()) {
    auto merged = std::make_shared<const Merged>(base_, adapter_, change->second);
    fill = [merged](uint64_t at, std::span<std::byte> out) { merged->fill(at, out); };
  } else {
    fill = elements_of(base_, tensor.entry);
  }
  return computed_.add(key, tensor.entry->dtype, tensor.shape, std::move(fill));
}

}  // namespace optim
