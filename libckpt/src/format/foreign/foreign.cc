// What a path leads to where it leads to no checkpoint: a table of what other programs write, told
// by magic bytes, members of archives and names in folders, with what to do about each.
#include "format/foreign/foreign.h"

#include <algorithm>
#include <array>
#include <charconv>

#include <ckpt/error.h>

#include "base/text.h"
#include "codec/zip.h"
#include "format/torch/torch_save.h"

namespace ckpt {
namespace {

// Told by a name: of a member of an archive, of an entry of a folder.
struct ForeignKind {
  bool (*has)(std::string_view name);
  Foreign foreign;
};

using std::string_view;
using namespace std::string_view_literals;

constexpr uint64_t kHeadBytes = 512;  // a block of tar

// --- files by their first bytes ------------------------------------------------------------------

struct Row {
  string_view front;  // of the file, or of an address: its scheme
  Foreign foreign;
};

constexpr Row kSignatures[] = {
    {"GGUF",
     {"a GGUF file (llama.cpp)",
      "open the checkpoint that it was made from; gguf-dump, of the Python package gguf, lists "
      "what a GGUF file holds"}},
    {"\x93NUMPY",
     {"a NumPy array (.npy)",
      "load it with numpy.load and write it with safetensors.numpy.save_file: that file is read"}},
    {"\x89HDF\r\n\x1a\n",
     {"an HDF5 file (Keras, h5py)",
      "load it with h5py and write its arrays with safetensors.numpy.save_file: that file is "
      "read"}},
    {"\x1f\x8b",
     {"gzip-compressed data",
      "unpack it first, with tar -xzf (.tar.gz, .tgz) or gunzip, then open what was in it"}},
    {"BZh",
     {"bzip2-compressed data",
      "unpack it first, with tar -xjf (.tar.bz2) or bunzip2, then open what was in it"}},
    {"\xFD\x37zXZ\0"sv,
     {"xz-compressed data",
      "unpack it first, with tar -xJf (.tar.xz) or unxz, then open what was in it"}},
    {"\x28\xB5\x2F\xFD",
     {"zstd-compressed data",
      "unpack it first, with tar --zstd -xf (.tar.zst) or unzstd, then open what was in it"}},
    {"\x04\x22\x4D\x18",
     {"lz4-compressed data", "unpack it first, with unlz4, then open what was in it"}},
    {"7z\xBC\xAF\x27\x1C",
     {"a 7-Zip archive", "unpack it first, with 7z x, then open what was in it"}},
    {"PK\x05\x06", {"an empty zip archive", "whoever wrote it may have failed: write it again"}},
    {"global_step",
     {"the `latest` file of a DeepSpeed checkpoint", "open the folder that holds it"}},
};

constexpr Foreign kLfsPointer = {"a Git LFS pointer, not the file that it stands for",
                                 "`git lfs pull` in its repository fetches the file"};
constexpr Foreign kHtml = {
    "an HTML page, as a failed download leaves it",
    "download it again: the address may be wrong, or it needs a login or a token"};
constexpr Foreign kXml = {"an XML document, as a storage service answers with an error",
                          "download it again: the address may be wrong, or it needs credentials"};
constexpr Foreign kDcpMetadata = {
    "the .metadata file of a torch_dist (DCP) checkpoint under another name",
    "in a folder with its .distcp files it must be called .metadata; open that folder"};
constexpr Foreign kPickle = {
    "a Python pickle that torch.save did not write",
    "where you trust its origin, load it in Python and write it with torch.save: that file is "
    "read"};
constexpr Foreign kOnnx = {"an ONNX model", "open the checkpoint that the model was exported from"};
constexpr Foreign kTensorFlowLite = {"a TensorFlow Lite model",
                                     "open the checkpoint that the model was trained from"};
constexpr Foreign kTensorFlowIndex = {
    "the index of a TensorFlow checkpoint",
    "load it with tf.train.load_checkpoint and write its arrays with safetensors.numpy.save_file: "
    "that file is read"};

bool starts_with_any_case(string_view text, string_view lower) {
  const auto equal = [](char a, char b) { return (a >= 'A' && a <= 'Z' ? a + 32 : a) == b; };
  return text.size() >= lower.size() &&
         std::ranges::equal(text.substr(0, lower.size()), lower, equal);
}

// What is there in place of a file that was not fetched.
const Foreign* stand_in(string_view head) {
  if (head.starts_with("version https://git-lfs.github.com/spec/")) return &kLfsPointer;
  if (head.starts_with("\xEF\xBB\xBF")) head.remove_prefix(3);
  head.remove_prefix(std::min(head.find_first_not_of(" \t\r\n"), head.size()));
  if (starts_with_any_case(head, "<!doctype html")) return &kHtml;
  if (starts_with_any_case(head, "<html")) return &kHtml;
  return head.starts_with("<?xml") || head.starts_with("<Error>") ? &kXml : nullptr;
}

// Protocols 2 to 5 begin with PROTO; every pickle ends with STOP.
const Foreign* pickle(string_view head, string_view tail) {
  const bool is_pickle =
      head.size() > 2 && head[0] == '\x80' && head[1] >= 2 && head[1] <= 5 && tail.ends_with('.');
  if (!is_pickle) return nullptr;
  return head.find("torch.distributed.checkpoint.metadata") != head.npos ? &kDcpMetadata : &kPickle;
}

// ModelProto: ir_version (field 1, a small number), then producer_name (field 2, a short text).
bool is_onnx(string_view head) {
  if (head.size() < 5 || head[0] != 0x08 || head[1] < 1 || head[1] > 32 || head[2] != 0x12) {
    return false;
  }
  const auto name_bytes = static_cast<unsigned char>(head[3]);
  const string_view name = head.substr(4, name_bytes);
  return name_bytes > 0 && name_bytes < 64 && name.size() == name_bytes &&
         std::ranges::all_of(name, [](char c) { return c >= ' ' && c < 0x7F; });
}

// The footer of LevelDB's table format, which TensorFlow's tensor bundles use.
bool is_table(string_view tail) { return tail == "\x57\xFB\x80\x8B\x24\x75\x47\xDB"; }

std::string filled_in(string_view advice, const std::filesystem::path& path) {
  const auto folder = path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
  std::string text(advice);
  for (const auto& [place, name] :
       {std::pair("{path}"sv, path.string()), std::pair("{folder}"sv, folder.string())}) {
    const size_t at = text.find(place);
    if (at != text.npos) text.replace(at, place.size(), escaped(name));
  }
  return text;
}

// The name inside the archive's own folder, in which PyTorch puts everything: "m/version".
string_view inner_name(string_view member) {
  const size_t slash = member.find('/');
  return slash == member.npos ? member : member.substr(slash + 1);
}

bool is_code(string_view member) {
  return inner_name(member) == "constants.pkl" || inner_name(member).starts_with("code/");
}
bool is_exported(string_view member) {
  const string_view name = inner_name(member);
  return name == "archive_format" || name == "serialized_exported_program.json" ||
         member == "serialized_exported_program.json";
}
bool is_package(string_view member) { return inner_name(member) == ".data/extern_modules"; }
bool is_array(string_view member) { return member.ends_with(".npy"); }
bool is_keras(string_view member) { return member == "model.weights.h5"; }

constexpr ForeignKind kArchiveKinds[] = {
    {is_code,
     {"a TorchScript archive, which holds code",
      "torch.save(torch.jit.load('{path}').state_dict(), 'NEW.pt') writes its tensors: that file "
      "is read"}},
    {is_exported,
     {"a torch.export archive (.pt2), which holds a program",
      "torch.save(torch.export.load('{path}').state_dict, 'NEW.pt') writes its tensors: that file "
      "is read"}},
    {is_package,
     {"a torch.package archive, which holds code",
      "load it with torch.package.PackageImporter where you trust its origin, and torch.save the "
      "state dict: that file is read"}},
    {is_array,
     {"a NumPy archive (.npz)",
      "safetensors.numpy.save_file(dict(numpy.load('{path}')), 'NEW.safetensors') writes a file "
      "that is read"}},
    {is_keras,
     {"a Keras model (.keras)",
      "load it with keras and write its weights with safetensors.numpy.save_file: that file is "
      "read"}},
};
constexpr Foreign kZip = {"a zip archive that torch.save did not write",
                          "unpack it first, with unzip, then open what was in it"};

// What every archive of PyTorch has, damaged or not.
bool is_torch_member(string_view member) {
  const string_view name = inner_name(member);
  return name == "data.pkl" || name == "version" || name == "byteorder" ||
         name.starts_with("data/") || name.starts_with(".data/");
}

constexpr Foreign kNemo = {
    "a NeMo archive (.nemo, a tar file)",
    "unpack it first, with mkdir DIR && tar -xf {path} -C DIR, then open DIR/model_weights.ckpt or "
    "DIR/model_weights"};
constexpr Foreign kOldTorch = {
    "a tar archive, as torch.save wrote before torch 0.1.10",
    "where you trust its origin, torch.load it and torch.save it again: that file is read"};
constexpr Foreign kTar = {"a tar archive",
                          "unpack it first, with tar -xf, then open what was in it"};

constexpr size_t kTarBlockBytes = 512;
constexpr size_t kTarMagicAt = 257;  // POSIX ustar

// global_step100; verl writes global_step_100.
bool is_step_of_deepspeed(string_view entry) {
  constexpr string_view kPrefix = "global_step";
  return entry.starts_with(kPrefix) && entry.size() > kPrefix.size() &&
         entry[kPrefix.size()] >= '0' && entry[kPrefix.size()] <= '9';
}
bool is_deepspeed(string_view entry) {
  return entry.ends_with("_model_states.pt") || entry.ends_with("_optim_states.pt");
}
bool is_beside_deepspeed(string_view entry) {
  return entry == "zero_to_fp32.py" || is_step_of_deepspeed(entry);
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
     {"a DeepSpeed checkpoint without files of ZeRO's ranks",
      "its mp_rank_*_model_states.pt files open one by one"}},
    {is_beside_deepspeed,
     {"the root of a DeepSpeed checkpoint whose files of ranks are not read as one",
      "where the folder that `latest` names holds mp_rank_*_model_states.pt files, they open one "
      "by one"}},
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

constexpr Row kAddressKinds[] = {
    {"s3", {"an S3 address", "copy it first: aws s3 cp --recursive {path} FOLDER"}},
    {"gs",
     {"a Google Cloud Storage address",
      "read the bucket by its S3 interface: s3://BUCKET/PREFIX with an HMAC key and "
      "AWS_ENDPOINT_URL=https://storage.googleapis.com; or copy it first: gcloud storage cp -r "
      "{path} FOLDER"}},
    {"az", {"an Azure address", "copy it first (azcopy copy), or mount the container (blobfuse2)"}},
    {"msc",
     {"an address of the Multi-Storage Client",
      "give what its profile maps it to: s3://BUCKET/PREFIX, or a path"}},
    {"hf", {"a Hugging Face address", "download it first: hf download ORGANIZATION/MODEL"}},
    {"http", {"a web address", "download it first: curl -fLO {path}"}},
    {"https", {"a web address", "download it first: curl -fLO {path}"}},
    {"hdfs", {"an HDFS address", "copy it first: hdfs dfs -get {path} FOLDER"}},
    {"file", {"a file address", "leave out file://"}},
};
constexpr Foreign kAddress = {"an address, not a path", "copy what it names to this machine first"};

// The first kind that one of the names tells; nullptr: none.
const Foreign* kind_among(std::span<const ForeignKind> kinds, std::span<const std::string> names) {
  const auto found = std::ranges::find_if(
      kinds, [&](const ForeignKind& kind) { return std::ranges::any_of(names, kind.has); });
  return found != kinds.end() ? &found->foreign : nullptr;
}

bool is_tar(string_view head) {
  return head.size() > kTarMagicAt && head.substr(kTarMagicAt).starts_with("ustar");
}

// The first members of a tar archive, as far as its headers can be followed.
std::vector<std::string> tar_member_names(const RandomAccess& file) {
  constexpr size_t kMembersMax = 64, kNameBytes = 100, kSizeAt = 124, kSizeBytes = 11;
  std::vector<std::string> names;
  std::array<char, kTarBlockBytes> header = {};
  uint64_t offset_bytes = 0;
  while (names.size() < kMembersMax && offset_bytes + kTarBlockBytes <= file.size_bytes()) {
    file.read_at(offset_bytes, std::as_writable_bytes(std::span(header)));
    const string_view block(header.data(), header.size());
    if (!is_tar(block)) break;
    const string_view name = block.substr(0, kNameBytes);
    names.emplace_back(name.substr(0, name.find('\0')));
    uint64_t count_bytes = 0;
    const char* const digits = block.data() + kSizeAt;
    if (std::from_chars(digits, digits + kSizeBytes, count_bytes, 8).ec != std::errc()) break;
    const uint64_t blocks = count_bytes / kTarBlockBytes + (count_bytes % kTarBlockBytes != 0);
    if (blocks > file.size_bytes() / kTarBlockBytes) break;
    offset_bytes += (1 + blocks) * kTarBlockBytes;
  }
  return names;
}

}  // namespace

const Foreign* foreign_content(string_view head, string_view tail) {
  for (const Row& row : kSignatures) {
    if (head.starts_with(row.front)) return &row.foreign;
  }
  if (head.size() >= 8 && head.substr(4, 4) == "TFL3") return &kTensorFlowLite;
  if (is_table(tail)) return &kTensorFlowIndex;
  if (is_onnx(head)) return &kOnnx;
  if (const Foreign* const found = pickle(head, tail)) return found;
  return stand_in(head);
}

const Foreign* foreign_stand_in(const RandomAccess& file) {
  return stand_in(head_of(file, kHeadBytes));
}

const Foreign* foreign_file(const RandomAccess& file) {
  constexpr uint64_t kTailBytes = 8, kMembersMax = 10'000;
  const std::string head = head_of(file, kHeadBytes);
  if (is_legacy_torch_save(head)) return nullptr;
  if (is_tar(head)) return &foreign_tar(tar_member_names(file));
  if (head.starts_with("PK\x03\x04")) {
    try {
      return foreign_archive(zip::member_names(file, {0, file.size_bytes()}, kMembersMax));
    } catch (const Error&) {
      return nullptr;  // cut off or damaged: no directory tells what it was
    }
  }
  std::string tail(std::min<uint64_t>(file.size_bytes(), kTailBytes), '\0');
  file.read_at(file.size_bytes() - tail.size(), std::as_writable_bytes(std::span(tail)));
  return foreign_content(head, tail);
}

void refuse_foreign(const Foreign& foreign, const std::filesystem::path& named) {
  const std::filesystem::path path = named.lexically_normal();  // "file", not "./file"
  throw Error(ErrorCode::Unsupported, {path.string()},
              "is " + std::string(foreign.name) +
                  "; expected a torch.save or safetensors file, or a checkpoint folder",
              filled_in(foreign.advice, path));
}

void refuse_address(const std::filesystem::path& path, std::string hint) {
  const Foreign* const address = foreign_address(path.string());
  if (address == nullptr) return;
  throw Error(ErrorCode::Unsupported, {path.string()},
              "is " + std::string(address->name) + "; expected a path on this machine",
              hint.empty() ? filled_in(address->advice, path) : std::move(hint));
}

const Foreign* foreign_archive(std::span<const std::string> members) {
  if (const Foreign* const kind = kind_among(kArchiveKinds, members)) return kind;
  return std::ranges::any_of(members, is_torch_member) ? nullptr : &kZip;
}

const Foreign& foreign_tar(std::span<const std::string> members) {
  const auto has = [&](string_view name) {
    return std::ranges::any_of(members, [&](string_view member) {
      if (member.starts_with("./")) member.remove_prefix(2);
      return member == name;
    });
  };
  if (has("model_config.yaml")) return kNemo;
  return has("sys_info") || has("pickle") ? kOldTorch : kTar;
}

const Foreign* foreign_folder(std::span<const std::string> entries) {
  return kind_among(kFolderKinds, entries);
}

bool is_root_of_deepspeed(std::span<const std::string> entries) {
  return std::ranges::none_of(entries, is_deepspeed) &&
         std::ranges::any_of(entries, is_beside_deepspeed);
}

const Foreign* foreign_address(string_view path) {
  const string_view scheme = scheme_of(path);
  if (scheme.empty()) return nullptr;
  for (const Row& row : kAddressKinds) {
    if (row.front == scheme) return &row.foreign;
  }
  return &kAddress;
}

}  // namespace ckpt
