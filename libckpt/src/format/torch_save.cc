#include "format/torch_save.h"

#include <algorithm>

#include <ckpt/error.h>

#include "base/byte_reader.h"
#include "base/text.h"
#include "codec/crc32.h"
#include "codec/pickle_reader.h"
#include "codec/zip.h"
#include "format/torch_types.h"

namespace ckpt {
namespace {

constexpr std::string_view kPickleName = "data.pkl";

const zip::Member* find_member(const std::vector<zip::Member>& members, std::string_view name) {
  const auto found = std::find_if(members.begin(), members.end(),
                                  [&](const zip::Member& m) { return m.name == name; });
  return found == members.end() ? nullptr : &*found;
}

std::vector<zip::Member> read_members(const RandomAccess& file, ByteRange archive,
                                      const Limits& limits) {
  try {
    return zip::read_directory(file, archive, limits);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::Unsupported || !error.hint().empty()) throw;
    throw Error(error.code(), error.where(), error.problem(),
                "torch.save compresses nothing; a TorchScript archive, which holds code, is not "
                "read");
  }
}

// As torch, which takes the first member's folder for that of all.
void refuse_other_folders(const std::vector<zip::Member>& members, const std::string& prefix,
                          const RandomAccess& file) {
  for (const zip::Member& member : members) {
    if (member.name.starts_with(prefix)) continue;
    throw Error(ErrorCode::Corrupt, {file.file_name(), member.data.offset_bytes, member.name},
                "lies outside the folder '" + escaped(prefix) + "' of the archive");
  }
}

// NAME/ of the archive: what stands before data.pkl.
std::string archive_prefix(const std::vector<zip::Member>& members, const RandomAccess& file,
                           ByteRange archive) {
  for (const zip::Member& member : members) {
    const size_t slash = member.name.find('/');
    if (slash != member.name.npos && member.name.substr(slash + 1) == kPickleName) {
      const std::string prefix = member.name.substr(0, slash + 1);
      refuse_other_folders(members, prefix, file);
      return prefix;
    }
  }
  throw Error(ErrorCode::Corrupt, {file.file_name(), archive.offset_bytes, {}},
              "a zip archive without data.pkl is not a torch.save file");
}

std::vector<std::byte> read_member(const RandomAccess& file, const zip::Member& member,
                                   uint64_t bytes_max) {
  const Where where{file.file_name(), member.data.offset_bytes, member.name};
  if (member.data.count_bytes > bytes_max) {
    throw Error(ErrorCode::Unsupported, where,
                std::to_string(member.data.count_bytes) + " bytes, the limit is " +
                    std::to_string(bytes_max));
  }
  std::vector<std::byte> bytes(member.data.count_bytes);
  file.read_at(member.data.offset_bytes, bytes);
  const uint32_t found = crc32(bytes);
  if (member.crc32 && *member.crc32 != found) {
    throw Error(ErrorCode::Corrupt, where,
                "CRC-32 is " + hex(found) + ", the archive says " + hex(*member.crc32));
  }
  return bytes;
}

void refuse_other_archives(const RandomAccess& file, const std::string& prefix,
                           const std::vector<zip::Member>& members) {
  if (find_member(members, prefix + "constants.pkl")) {
    throw Error(ErrorCode::Unsupported, {.file = file.file_name(), .key = {}},
                "a TorchScript archive, which holds code, is not read");
  }
  const zip::Member* byteorder = find_member(members, prefix + "byteorder");
  if (byteorder == nullptr) return;
  const auto text = read_member(file, *byteorder, 16);
  if (std::string_view(reinterpret_cast<const char*>(text.data()), text.size()) != "little") {
    throw Error(ErrorCode::Unsupported,
                {file.file_name(), byteorder->data.offset_bytes, byteorder->name},
                "the archive is not little-endian");
  }
}

ValueTree read_pickle(const RandomAccess& file, const zip::Member& member, const Limits& limits) {
  const auto bytes = read_member(file, member, limits.pickle_bytes_max);
  ByteReader reader(bytes, file.file_name(), member.data.offset_bytes);
  ValueTree tree = pickle::read(reader, limits);
  if (!reader.at_end()) reader.fail("bytes follow the pickle's end");
  refuse_storages_of_two_types(tree, {file.file_name(), member.data.offset_bytes, {}});
  return tree;
}

}  // namespace

Document read_torch_save(const RandomAccess& file, uint32_t file_index, ByteRange archive,
                         const Limits& limits) {
  const auto members = read_members(file, archive, limits);
  const std::string prefix = archive_prefix(members, file, archive);
  refuse_other_archives(file, prefix, members);
  const std::string pickle_name = prefix + std::string(kPickleName);
  Document document{read_pickle(file, *find_member(members, pickle_name), limits), {}};
  const std::string storage_prefix = prefix + "data/";
  for (const zip::Member& member : members) {
    if (!member.name.starts_with(storage_prefix)) continue;
    document.storages.push_back(
        {member.name.substr(storage_prefix.size()),
         {.file = file_index, .crc32 = member.crc32, .bytes = member.data}});
  }
  std::sort(document.storages.begin(), document.storages.end(),
            [](const StorageRecord& a, const StorageRecord& b) { return a.key < b.key; });
  return document;
}

TensorEntry make_tensor_entry(const Document& document, const TensorAt& tensor,
                              std::string_view file) {
  const TensorView& view = tensor.view;
  const Where where{.file = std::string(file), .key = tensor.pointer};
  const StorageRecord* storage = document.find_storage(view.storage_key);
  if (storage == nullptr) {
    throw Error(ErrorCode::Corrupt, where,
                "its storage '" + escaped(view.storage_key) + "' is not in the archive");
  }
  if (storage->region.bytes.count_bytes != view.storage_count_bytes) {
    throw Error(ErrorCode::Corrupt, where,
                "its storage holds " + std::to_string(storage->region.bytes.count_bytes) +
                    " bytes, but the pickle says " + std::to_string(view.storage_count_bytes));
  }
  Chunk chunk{whole(view.shape), storage->region};
  if (view.strides == row_major_strides(view.shape)) {
    chunk.payload_offset_bytes = view.offset * bytes_per_element(view.dtype);
  } else {
    chunk.view = std::make_shared<const StridedView>(StridedView{view.offset, view.strides});
  }
  return {std::string(file), tensor.pointer,     view.dtype,
          view.shape,        {std::move(chunk)}, tensor.key_kind};
}

}  // namespace ckpt
