// A model's list of tensors beside a checkpoint's: what PyTorch 2.11 does with them.
#include "inspect/load/expected_keys.h"

#include <algorithm>
#include <climits>
#include <unordered_map>
#include <unordered_set>

#include <nlohmann/json.hpp>

#include <ckpt/error.h>
#include <ckpt/named_file.h>
#include <ckpt/printed.h>
#include <common/text.h>

namespace tools::inspect {
namespace {

using nlohmann::json;

constexpr uint64_t kListingBytesMax = uint64_t{1} << 30;

// The name that every format has: `ls` prints a torch.save file's keys as pointers.
std::string joined_key(const std::string& key) {
  if (!key.starts_with('/')) return key;
  std::string joined;
  for (size_t at = 1; at < key.size(); ++at) {
    const bool is_escape = key[at] == '~' && at + 1 < key.size();
    if (is_escape) {
      joined += key[++at] == '1' ? '/' : '~';
    } else {
      joined += key[at] == '/' ? '.' : key[at];
    }
  }
  return joined;
}

// Reads a listing; every fault names the file and the place in it.
class ListingReader {
 public:
  explicit ListingReader(std::string file) : file_(std::move(file)) {}

  std::vector<ExpectedTensor> read(const json& document) const {
    if (!document.is_object() || !document.contains("tensors") || !document["tensors"].is_array()) {
      fail({}, "is not a JSON object with a list \"tensors\"");
    }
    std::vector<ExpectedTensor> expected;
    std::unordered_set<std::string> keys;
    for (const json& row : document["tensors"]) {
      expected.push_back(tensor(row, expected.size()));
      const std::string& key = expected.back().key;
      if (!keys.insert(key).second) fail(key, "is in it twice");
    }
    return expected;
  }

 private:
  [[noreturn]] void fail(const std::string& key, const std::string& problem) const {
    throw ckpt::Error(
        ckpt::ErrorCode::Corrupt, {.file = file_, .key = key}, problem,
        "`ckpt-inspect ls --json` prints such a listing, docs/before_you_start.md has five "
        "lines of Python that write a model's");
  }

  ExpectedTensor tensor(const json& row, size_t index) const {
    const std::string place = "tensors[" + std::to_string(index) + "]";
    if (!row.is_object() || !row.contains("key") || !row["key"].is_string()) {
      fail(place, "has no \"key\"");
    }
    ExpectedTensor tensor{.key = joined_key(row["key"].get<std::string>()),
                          .shape = shape(row, place)};
    const auto type_text = row.find("dtype");
    std::string_view type;
    if (type_text != row.end() && type_text->is_string()) {
      type = type_text->get_ref<const std::string&>();
    }
    if (type.starts_with("torch.")) type.remove_prefix(6);
    const auto dtype = ckpt::dtype_named(type);
    if (!dtype) fail(tensor.key, "has no \"dtype\" that is known, such as \"bfloat16\"");
    tensor.dtype = *dtype;
    return tensor;
  }

  ckpt::Extents shape(const json& row, const std::string& place) const {
    if (!row.contains("shape") || !row["shape"].is_array()) fail(place, "has no \"shape\"");
    ckpt::Extents shape;
    for (const json& extent : row["shape"]) {
      if (!extent.is_number_unsigned()) fail(place, "has a \"shape\" that is not a list of sizes");
      shape.push_back(extent.get<uint64_t>());
    }
    return shape;
  }

  std::string file_;
};

// What numbers of a type look like. Of whole numbers only `digits` and `is_signed` count.
struct NumberKind {
  enum class Is : uint8_t { Whole, Real, Complex } is;
  int digits;                   // bits of a whole number's magnitude; of a mantissa, with its 1
  int lowest = 0, highest = 0;  // exponents of the least number above 0, and of the largest
  bool is_signed = true;
};

NumberKind kind_of(ckpt::DType dtype) {
  using enum NumberKind::Is;
  switch (dtype) {
    case ckpt::DType::Float64: return {Real, 53, -1074, 1023};
    case ckpt::DType::Float32: return {Real, 24, -149, 127};
    case ckpt::DType::Float16: return {Real, 11, -24, 15};
    case ckpt::DType::BFloat16: return {Real, 8, -133, 127};
    case ckpt::DType::Float8E4M3FN: return {Real, 4, -9, 8};
    case ckpt::DType::Float8E4M3FNUZ: return {Real, 4, -10, 7};
    case ckpt::DType::Float8E5M2: return {Real, 3, -16, 15};
    case ckpt::DType::Float8E5M2FNUZ: return {Real, 3, -17, 15};
    case ckpt::DType::Float8E8M0FNU: return {Real, 1, -127, 127, false};
    case ckpt::DType::Complex32: return {Complex, 11, -24, 15};
    case ckpt::DType::Complex64: return {Complex, 24, -149, 127};
    case ckpt::DType::Complex128: return {Complex, 53, -1074, 1023};
    case ckpt::DType::Bool: return {Whole, 1, 0, 0, false};
    case ckpt::DType::UInt8: return {Whole, 8, 0, 0, false};
    case ckpt::DType::UInt16: return {Whole, 16, 0, 0, false};
    case ckpt::DType::UInt32: return {Whole, 32, 0, 0, false};
    case ckpt::DType::UInt64: return {Whole, 64, 0, 0, false};
    case ckpt::DType::Int8: return {Whole, 7};
    case ckpt::DType::Int16: return {Whole, 15};
    case ckpt::DType::Int32: return {Whole, 31};
    case ckpt::DType::Int64: return {Whole, 63};
  }
  return {Whole, INT_MAX};
}

// float32 those of bfloat16, int64 those of bool.
bool holds_every_value(ckpt::DType to, ckpt::DType from) {
  using enum NumberKind::Is;
  const NumberKind target = kind_of(to), source = kind_of(from);
  if (to == from) return true;
  const bool has_gaps = to == ckpt::DType::Float8E8M0FNU || to == ckpt::DType::Float8E4M3FNUZ ||
                        to == ckpt::DType::Float8E5M2FNUZ;  // no 0, no infinity
  if (has_gaps) return false;
  if (source.is_signed && !target.is_signed) return false;
  if (source.is == Whole) {
    return target.digits >= source.digits &&
           (target.is == Whole || target.highest >= source.digits);
  }
  return target.is >= source.is && target.digits >= source.digits &&
         target.lowest <= source.lowest && target.highest >= source.highest;
}

std::string quoted_list(const std::vector<std::string>& keys) {
  return "\"" + joined(keys, "\", \"") + "\"";
}

std::string torch_size(const ckpt::Extents& shape) {
  return "torch.Size(" + ckpt::shape_text(shape) + ")";
}

std::vector<size_t> sorted_indices(const std::unordered_map<std::string_view, size_t>& places) {
  std::vector<size_t> indices;
  for (const auto& [key, index] : places) indices.push_back(index);
  std::ranges::sort(indices);
  return indices;
}

// The comparison, and what the loader does about it.
class Loading {
 public:
  Loading(const std::vector<ExpectedTensor>& expected, const ckpt::Inventory& stored,
          LoadRules rules)
      : expected_(expected), stored_(stored), rules_(rules) {}

  LoadFindings run() && {
    compare();
    decide();
    return std::move(findings_);
  }

 private:
  void compare() {
    std::unordered_map<std::string_view, size_t> tensors, objects;
    for (size_t i = 0; i < stored_.tensors.size(); ++i) tensors.emplace(stored_.tensors[i].key, i);
    for (size_t i = 0; i < stored_.objects.size(); ++i) objects.emplace(stored_.objects[i].key, i);
    for (size_t i = 0; i < expected_.size(); ++i) {
      const auto tensor = tensors.extract(expected_[i].key);
      const auto object = objects.extract(expected_[i].key);
      if (!tensor.empty()) {
        pair_up(i, tensor.mapped());
      } else {
        (object.empty() ? findings_.missing : findings_.objects).push_back(i);
      }
    }
    findings_.unexpected = sorted_indices(tensors);
    findings_.unexpected_objects = sorted_indices(objects);
  }

  void pair_up(size_t wanted, size_t found) {
    const ExpectedTensor& expected = expected_[wanted];
    const ckpt::TensorEntry& tensor = stored_.tensors[found];
    if (!fits(expected.shape, tensor.shape)) {
      findings_.other_shape.emplace_back(wanted, found);
      return;
    }
    ++findings_.loaded_count;
    if (expected.dtype == tensor.dtype) return;
    const bool is_wide = holds_every_value(expected.dtype, tensor.dtype);
    (is_wide ? findings_.widened : findings_.rounded).emplace_back(wanted, found);
  }

  // load_state_dict takes a list of one number for a number, as old files have it.
  bool fits(const ckpt::Extents& wanted, const ckpt::Extents& found) const {
    if (wanted == found) return true;
    return rules_.loader == Loader::Module && wanted.empty() && found == ckpt::Extents{1};
  }

  void decide() {
    if (rules_.loader == Loader::Module) {
      decide_as_module();
    } else {
      decide_as_dcp();
    }
    if (findings_.verdict != LoadVerdict::Loads) return;
    if (!findings_.missing.empty() || !findings_.objects.empty()) {
      findings_.verdict = LoadVerdict::LeavesOut;
    } else if (!findings_.rounded.empty()) {
      findings_.verdict = LoadVerdict::Rounds;
    }
  }

  void refuse(std::string message) {
    findings_.verdict = LoadVerdict::Refuses;
    findings_.message = std::move(message);
  }

  // The planner takes the keys in turn and raises at the first that does not fit. It ignores what
  // the model does not ask for, and puts an object in a tensor's place.
  void decide_as_dcp() {
    const size_t missing =
        rules_.is_strict && !findings_.missing.empty() ? findings_.missing[0] : expected_.size();
    const size_t other =
        findings_.other_shape.empty() ? expected_.size() : findings_.other_shape[0].first;
    if (missing < other) {
      refuse("Missing key in checkpoint state_dict: " + expected_[missing].key + ".");
    } else if (other < missing) {
      const auto& [wanted, found] = findings_.other_shape[0];
      refuse("Size mismatch between saved " + torch_size(stored_.tensors[found].shape) +
             " and current: " + torch_size(expected_[wanted].shape) + " for " +
             expected_[wanted].key);
    }
  }

  void decide_as_module() {
    const std::string message =
        (rules_.is_strict ? problems_of_keys() : "") + problems_of_tensors();
    if (message.empty()) return;
    if (depends_on_modules()) {
      findings_.verdict = LoadVerdict::NotKnown;
      findings_.message =
          findings_.missing.empty()
              ? "_extra_state is not a tensor: a listing does not say whether the model asks for it"
              : "num_batches_tracked is missing: load_state_dict starts it at 0 where the state "
                "dict states no version of its modules, else it refuses";
      return;
    }
    refuse("Error(s) in loading state_dict:" + message);
  }

  std::string problems_of_keys() const {
    std::vector<std::string> missing, unexpected;
    for (const size_t i : findings_.missing) missing.push_back(expected_[i].key);
    for (const size_t i : findings_.unexpected) unexpected.push_back(stored_.tensors[i].key);
    for (const size_t i : findings_.unexpected_objects) {
      unexpected.push_back(stored_.objects[i].key);
    }
    std::string text;
    if (!missing.empty()) {
      text += "\n\tMissing key(s) in state_dict: " + quoted_list(missing) + ". ";
    }
    if (!unexpected.empty()) {
      text += "\n\tUnexpected key(s) in state_dict: " + quoted_list(unexpected) + ". ";
    }
    return text;
  }

  std::string problems_of_tensors() const {
    std::string text;
    for (const size_t i : findings_.objects) {
      text += "\n\tWhile copying the parameter named \"" + expected_[i].key +
              "\", expected torch.Tensor or Tensor-like object from checkpoint";
    }
    for (const auto& [wanted, found] : findings_.other_shape) {
      text += "\n\tsize mismatch for " + expected_[wanted].key + ": copying a param with shape " +
              torch_size(stored_.tensors[found].shape) +
              " from checkpoint, the shape in current model is " +
              torch_size(expected_[wanted].shape) + ".";
    }
    return text;
  }

  // All that is wrong is what modules have rules of their own for: counters of batch normalisation,
  // which old state dicts do not have, and states that are not tensors.
  bool depends_on_modules() const {
    if (!findings_.objects.empty() || !findings_.other_shape.empty()) return false;
    const auto is_counter = [&](size_t i) {
      return expected_[i].key.ends_with("num_batches_tracked");
    };
    const auto is_extra = [&](size_t i) {
      return stored_.objects[i].key.ends_with("_extra_state");
    };
    return findings_.unexpected.empty() && std::ranges::all_of(findings_.missing, is_counter) &&
           std::ranges::all_of(findings_.unexpected_objects, is_extra);
  }

  const std::vector<ExpectedTensor>& expected_;
  const ckpt::Inventory& stored_;
  LoadRules rules_;
  LoadFindings findings_;
};

}  // namespace

std::vector<ExpectedTensor> read_expected_keys(const std::filesystem::path& path) {
  const json document = json::parse(ckpt::read_named_file(path, kListingBytesMax), nullptr, false);
  return ListingReader(path.string()).read(document);
}

std::string_view name(Loader loader) { return loader == Loader::Dcp ? "dcp" : "module"; }

std::string_view name(LoadVerdict verdict) {
  static constexpr std::string_view kNames[] = {"loads", "rounds", "leaves_out", "refuses",
                                                "not_known"};
  return kNames[static_cast<size_t>(verdict)];
}

LoadFindings can_load(const std::vector<ExpectedTensor>& expected, const ckpt::Inventory& stored,
                      LoadRules rules) {
  return Loading(expected, stored, rules).run();
}

}  // namespace tools::inspect
