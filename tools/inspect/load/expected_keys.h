#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ckpt/dtype.h>
#include <ckpt/extents.h>
#include <ckpt/inventory.h>

// Whether a model can take its values from a checkpoint, by the rules of PyTorch's loaders.
namespace tools::inspect {

// A tensor that a model asks for. `shape` of a DTensor is the global one.
struct ExpectedTensor {
  std::string key;
  ckpt::DType dtype = ckpt::DType::Float32;
  ckpt::Extents shape;
};

// Reads {"tensors": [{"key": "...", "dtype": "bfloat16", "shape": [8, 4]}, ...]}, which
// `ckpt-inspect ls --json` prints, too; a key that is a pointer is joined by dots, "torch." in
// front of a type is left out. Throws NotFound; Corrupt for what is no such document, names a key
// twice or an unknown type.
std::vector<ExpectedTensor> read_expected_keys(const std::filesystem::path& path);

enum class Loader : uint8_t {
  Dcp,     // torch.distributed.checkpoint.load
  Module,  // torch.nn.Module.load_state_dict
};
std::string_view name(Loader loader);  // "dcp", "module"

struct LoadRules {
  Loader loader = Loader::Dcp;
  bool is_strict =
      true;  // else load_state_dict(strict=False), DefaultLoadPlanner's allow_partial_load
};

enum class LoadVerdict : uint8_t {
  Loads,      // every tensor of the model gets its values, as they are stored
  Rounds,     // the same, some in a type that does not hold every value of the stored one
  LeavesOut,  // loads without a word, and some tensors keep what the model was made with
  Refuses,    // the loader raises
  NotKnown,   // it depends on what a listing of keys does not say
};
std::string_view name(LoadVerdict verdict);  // "loads", "rounds", "leaves_out", ...

// A tensor of the model, and the checkpoint's of the same name: indices into the two lists.
using LoadedPair = std::pair<size_t, size_t>;

// What differs; indices into the expected tensors and the inventory's tensors, in their order.
struct LoadFindings {
  LoadVerdict verdict = LoadVerdict::Loads;
  std::string message;  // what PyTorch says or what is not known; empty where there is nothing
  std::vector<size_t> missing, unexpected;
  std::vector<size_t> objects;             // expected, and no tensor in the checkpoint
  std::vector<size_t> unexpected_objects;  // indices into the inventory's objects
  std::vector<LoadedPair> other_shape;
  std::vector<LoadedPair> widened, rounded;  // in another type, all values of which it holds or not
  uint64_t loaded_count = 0;                 // tensors that get their values
};

// Pure. The keys of `stored` are what the training code hands to the loader.
LoadFindings can_load(const std::vector<ExpectedTensor>& expected, const ckpt::Inventory& stored,
                      LoadRules rules);

}  // namespace tools::inspect
