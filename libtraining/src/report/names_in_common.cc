#include <training/names_in_common.h>

#include <algorithm>
#include <tuple>
#include <utility>

#include <ckpt/error.h>
#include <training/layer_wise_checkpoint.h>
#include <training/logical_inventory.h>
#include <training/opened_training.h>

#include "huggingface/config_args.h"
#include "huggingface/export.h"
#include "huggingface/quantized.h"

namespace optim {
namespace {

namespace fs = std::filesystem;

// Files are named relative to their checkpoint, of which there are two here: puts `path` before
// them.
template <class Call>
auto of_side(fs::path path, Call call) {
  try {
    return call();
  } catch (const ckpt::Error& error) {
    ckpt::Where where = error.where();
    const fs::path file = where.file;
    if (!path.has_filename()) path = path.parent_path();  // "ckpt/"
    const bool is_whole = file.empty() || file == path.filename() || file == path;
    const fs::path folder = fs::is_regular_file(path) ? path.parent_path() : path;
    where.file = (is_whole ? path : folder / file).string();
    throw ckpt::Error(error.code(), where, error.problem(), error.hint());
  }
}

// What errors name files relative to.
fs::path opened_path(const OpenedTraining& checkpoint) {
  return checkpoint.was_root() ? checkpoint.folder().parent_path()
                               : fs::path(checkpoint.shown_path());
}

ckpt::Inventory canonical(const OpenedTraining& checkpoint) {
  return of_side(opened_path(checkpoint), [&] { return logical_inventory(checkpoint); });
}

FiledState state_of(const OpenedTraining& checkpoint) {
  return of_side(opened_path(checkpoint), [&] { return read_training_state(checkpoint); });
}

// A folder of safetensors that says which model it is.
bool says_its_model(const OpenedTraining& checkpoint) {
  return checkpoint.catalog().format == ckpt::Format::Safetensors && !checkpoint.was_file() &&
         checkpoint.source().has(checkpoint.folder() / "config.json");
}

// Of files that are one state, names are those of the state.
void name_no_files(ckpt::Inventory& inventory) {
  for (ckpt::TensorEntry& tensor : inventory.tensors) tensor.file.clear();
  for (ckpt::ObjectTree& object : inventory.objects) object.file.clear();
}

// What is to hold a side's products; null: tensors are as they are stored.
using SharedPayloads = std::shared_ptr<const ckpt::PayloadSource>;

ckpt::Inventory stored(const OpenedTraining& checkpoint, SharedPayloads* products) {
  return of_side(opened_path(checkpoint), [&] {
    ckpt::Inventory inventory = native_inventory(checkpoint);
    if (!checkpoint.joined_words().empty()) name_no_files(inventory);
    if (products == nullptr || !says_its_model(checkpoint)) return inventory;
    FolderTensors made = folder_tensors(checkpoint, config_of(checkpoint.folder()));
    *products = std::move(made.products);
    inventory.tensors = std::move(made.catalog.tensors);
    return inventory;
  });
}

// Whether two inventories list the same names.
bool has_same_names(const ckpt::Inventory& a, const ckpt::Inventory& b) {
  const auto same = [](const auto& x, const auto& y) { return x.key == y.key; };
  return std::equal(a.tensors.begin(), a.tensors.end(), b.tensors.begin(), b.tensors.end(), same) &&
         std::equal(a.objects.begin(), a.objects.end(), b.objects.begin(), b.objects.end(), same);
}

// Where one of two plain state dicts has all keys as text, so has the other, and that is said.
void compare_keys_as_text(const OpenedTraining& a, const OpenedTraining& b, NamedPair& pair) {
  if (has_training_state(a) || has_training_state(b)) return;
  const bool a_is_typed = has_typed_keys(a);
  if (a_is_typed == has_typed_keys(b)) return;
  const OpenedTraining &typed = a_is_typed ? a : b, &other = a_is_typed ? b : a;
  ckpt::Inventory& inventory = a_is_typed ? pair.a : pair.b;
  ckpt::Inventory as_text = plain_inventory(typed, ckpt::KeyTypes::AsText);
  join_places(as_text);
  if (has_same_names(as_text, inventory)) return;
  inventory = std::move(as_text);
  pair.warnings.push_back(opened_path(other).string() +
                          ": has all keys of mappings as text; their types are not compared");
}

// Both sides by their places, unless names tell the entries of each side apart.
NamedPair canonical_pair(const OpenedTraining& a, const OpenedTraining& b) {
  if (has_training_state(a) && has_training_state(b)) {
    const FiledState state_a = state_of(a), state_b = state_of(b);
    NamedPair pair;
    pair.names = "canonical";
    std::tie(pair.a, pair.b) = logical_inventories(state_a, state_b);
    std::tie(pair.left_out_a, pair.left_out_b) = left_out_inventories(state_a, state_b);
    return pair;
  }
  NamedPair pair{canonical(a), canonical(b), "canonical", {}};
  compare_keys_as_text(a, b, pair);
  const bool a_has_places = names_places(pair.a), b_has_places = names_places(pair.b);
  if (a_has_places == b_has_places) return pair;
  pair.warnings.push_back(opened_path(a_has_places ? a : b).string() + ": " + kHasPlaces);
  const OpenedTraining& other = a_has_places ? b : a;
  if (!has_training_state(other)) {
    const bool both_typed = has_typed_keys(a) && has_typed_keys(b);
    (a_has_places ? pair.b : pair.a) =
        plain_inventory(other, both_typed ? ckpt::KeyTypes::Kept : ckpt::KeyTypes::AsText);
  }
  return pair;
}

NamedPair stored_pair(const OpenedTraining& a, const OpenedTraining& b, bool dequantizes) {
  NamedPair pair;
  pair.a = stored(a, dequantizes ? &pair.products_a : nullptr);
  pair.b = stored(b, dequantizes ? &pair.products_b : nullptr);
  return pair;
}

// A training checkpoint as it is exported, and a Hugging Face folder.
NamedPair exported_pair(const OpenedTraining& a, const OpenedTraining& b, bool dequantizes) {
  const bool is_a_exported = has_training_state(a);
  const OpenedTraining &training = is_a_exported ? a : b, &folder = is_a_exported ? b : a;
  const HuggingFaceExport made = of_side(opened_path(training), [&] {
    return export_model(read_training_state(training, {.model_only = true}), {}, {});
  });
  NamedPair pair;
  pair.names = "huggingface";
  ckpt::Inventory &exported = is_a_exported ? pair.a : pair.b,
                  &stated = is_a_exported ? pair.b : pair.a;
  exported = inventory_of(made.tensors);
  SharedPayloads* const products = is_a_exported ? &pair.products_b : &pair.products_a;
  stated = stored(folder, dequantizes ? products : nullptr);
  name_axes(made.tensors, stated);
  pair.warnings.push_back(opened_path(training).string() +
                          ": compared as --to huggingface writes its weights (" + made.names + ")");
  for (const ckpt::NotCarried& lost : made.target.not_carried) {
    if (lost.is_changed) pair.warnings.push_back(lost.what + ": " + lost.reason);
  }
  return pair;
}

NamedPair named_pair(const OpenedTraining& a, const OpenedTraining& b, bool dequantizes) {
  if ((has_training_state(a) && says_its_model(b)) ||
      (says_its_model(a) && has_training_state(b))) {
    return exported_pair(a, b, dequantizes);
  }
  const bool is_one_format = a.catalog().format == b.catalog().format;
  if (!is_one_format) return canonical_pair(a, b);
  if (!has_training_state(a) || !has_training_state(b)) return stored_pair(a, b, dequantizes);
  try {
    return canonical_pair(a, b);
  } catch (const ckpt::Error& error) {
    if (error.code() != ckpt::ErrorCode::Unsupported) throw;
    NamedPair pair = stored_pair(a, b, false);
    pair.warnings.push_back(std::string("compared under stored names: ") + error.what());
    return pair;
  }
}

}  // namespace

OpenedTraining open_side(const fs::path& path, const ckpt::Limits& limits) {
  return of_side(path, [&] { return open_checkpoint(path, {{}, limits}); });
}

NamedPair names_in_common(const OpenedTraining& a, const OpenedTraining& b, bool dequantizes) {
  NamedPair pair = named_pair(a, b, dequantizes);
  if (!dequantizes || pair.products_a || pair.products_b) return pair;
  throw ckpt::Error(ckpt::ErrorCode::InvalidArgument, {},
                    "neither is a Hugging Face folder with tensors of fp8 or mxfp4 and their "
                    "scales, which could be multiplied");
}

}  // namespace optim
