// Archives that are not checkpoints, told by the names of their members.
#include <algorithm>
#include <array>
#include <charconv>

#include "format/foreign/foreign.h"

namespace ckpt {
namespace {

using std::string_view;

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

}  // namespace

bool is_tar(string_view head) {
  return head.size() > kTarMagicAt && head.substr(kTarMagicAt).starts_with("ustar");
}

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

}  // namespace ckpt
