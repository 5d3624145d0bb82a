// Folders and addresses that are not checkpoints: folders told by the names in them.
#include <algorithm>

#include "format/foreign/foreign.h"

namespace ckpt {
namespace {

using std::string_view;

bool is_deepspeed(string_view entry) {
  return entry == "zero_to_fp32.py" || entry.starts_with("global_step") ||
         entry.ends_with("_model_states.pt") || entry.ends_with("_optim_states.pt");
}
bool is_torch_index(string_view entry) { return entry.ends_with(".bin.index.json"); }
bool is_orbax(string_view entry) {
  return entry == "_CHECKPOINT_METADATA" || entry == "_METADATA" || entry == "manifest.ocdbt";
}
bool is_tensorflow(string_view entry) {
  return entry == "saved_model.pb" || entry.find(".data-00000-of-") != entry.npos;
}
bool is_zarr(string_view entry) {
  return entry == ".zarray" || entry == ".zgroup" || entry == "zarr.json";
}
bool is_gguf(string_view entry) { return entry.ends_with(".gguf"); }

constexpr ForeignKind kFolderKinds[] = {
    {is_deepspeed,
     {"a DeepSpeed checkpoint",
      "its mp_rank_*_model_states.pt files open one by one; DeepSpeed's zero_to_fp32.py writes one "
      "state dict, which opens and converts"}},
    {is_torch_index,
     {"a model in several torch.save files (pytorch_model.bin.index.json)",
      "its files open one by one, such as {path}/pytorch_model-00001-of-*.bin; save_pretrained of "
      "transformers writes safetensors, which open as a whole"}},
    {is_orbax,
     {"an Orbax checkpoint (JAX)",
      "load it with orbax.checkpoint and write its arrays with safetensors.numpy.save_file: that "
      "file is read"}},
    {is_tensorflow,
     {"a TensorFlow checkpoint or SavedModel",
      "load it with tf.train.load_checkpoint and write its arrays with "
      "safetensors.numpy.save_file: that file is read"}},
    {is_zarr,
     {"a Zarr store",
      "a Megatron checkpoint in this format is loaded with the Megatron-Core that wrote it, and "
      "saved again with --dist-ckpt-format torch_dist"}},
    {is_gguf,
     {"a folder of GGUF files (llama.cpp)", "open the checkpoint that they were made from"}},
};

// --- addresses -----------------------------------------------------------------------------------

struct AddressKind {
  string_view scheme;
  Foreign foreign;
};

constexpr AddressKind kAddressKinds[] = {
    {"s3", {"an S3 address", "copy it first: aws s3 cp --recursive {path} FOLDER"}},
    {"gs", {"a Google Cloud Storage address", "copy it first: gcloud storage cp -r {path} FOLDER"}},
    {"hf", {"a Hugging Face address", "download it first: hf download ORGANIZATION/MODEL"}},
    {"http", {"a web address", "download it first: curl -fLO {path}"}},
    {"https", {"a web address", "download it first: curl -fLO {path}"}},
    {"hdfs", {"an HDFS address", "copy it first: hdfs dfs -get {path} FOLDER"}},
    {"file", {"a file address", "leave out file://"}},
};
constexpr Foreign kAddress = {"an address, not a path", "copy what it names to this machine first"};

// "s3" of s3://bucket (RFC 3986, 3.1); empty where the path is not an address.
string_view scheme_of(string_view path) {
  const string_view scheme = path.substr(0, std::min(path.find("://"), path.size()));
  if (scheme.size() < 2 || scheme.size() == path.size()) return {};
  const bool is_name = std::ranges::all_of(scheme, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '+' ||
           c == '-' || c == '.';
  });
  return is_name ? scheme : string_view();
}

}  // namespace

const Foreign* foreign_folder(std::span<const std::string> entries) {
  return kind_among(kFolderKinds, entries);
}

const Foreign* foreign_address(string_view path) {
  const string_view scheme = scheme_of(path);
  if (scheme.empty()) return nullptr;
  for (const AddressKind& row : kAddressKinds) {
    if (row.scheme == scheme) return &row.foreign;
  }
  return &kAddress;
}

}  // namespace ckpt
