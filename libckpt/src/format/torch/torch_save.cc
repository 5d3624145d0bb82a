#include "format/torch/torch_save.h"

#include <algorithm>
#include <array>
#include <optional>

#include <ckpt/error.h>
#include <ckpt/folder_convention.h>

#include "base/byte_reader.h"
#include "base/text.h"
#include "codec/crc32.h"
#include "codec/pickle.h"
#include "codec/zip.h"
#include "format/values/nesting.h"
#include "format/values/torch_values.h"
#include "model/check_catalog.h"

namespace ckpt {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> torch_files(const Location& location) {
  if (location.only_file) return {*location.only_file};
  std::vector<std::string> names;
  for (const std::string& folder : location.source->list(location.folder)) {
    const fs::path path = location.folder / folder;
    const bool is_rank = folder.starts_with(location.convention->rank_folder_prefix);
    if (!is_rank || location.source->kind_of(path) != EntryKind::Folder) continue;
    for (const std::string& file : location.source->list(path)) {
      if (fs::path(file).extension() == ".pt") names.push_back(folder + "/" + file);
    }
  }
  std::ranges::sort(names);
  return names;
}

Document read_document(const RandomAccess& file, uint32_t index, const Limits& limits) {
  if (is_legacy_torch_save(head_of(file, 64))) return read_legacy_torch_save(file, index, limits);
  return read_torch_save(file, index, {0, file.size_bytes()}, limits);
}

void read_file(const Location& location, const std::string& name, const Limits& limits,
               Contents& contents) {
  const std::string shown = location.only_file ? "" : name;
  const TorchSaveFile file{location, name, shown};
  if (!location.only_file && !try_torch_save_file(file, limits, contents)) return;
  if (location.only_file) add_torch_save_file(file, limits, contents);
  for (RootObject& object : root_objects(contents.documents.at(name))) {
    contents.catalog.objects.push_back({shown, std::move(object.pointer), std::nullopt});
  }
}

constexpr std::string_view kPickleName = "data.pkl";
constexpr uint64_t kSmallArchiveBytes = 64 << 10;  // read at once
constexpr uint64_t kRecordBytesMax = 64;           // 40 digits of serialization_id
constexpr uint64_t kVersionMax = 10;               // kMaxSupportedFileFormatVersion of PyTorch 2.11

const zip::Member* find_member(const std::vector<zip::Member>& members, std::string_view name) {
  const auto found = std::ranges::find(members, name, &zip::Member::name);
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

// A number as torch.save writes it, maybe with a newline behind it.
std::optional<uint64_t> as_number(std::string_view text) {
  if (text.ends_with('\n')) text.remove_suffix(1);
  return number_in<uint64_t>(text);
}

void check_version(std::string_view text, const Where& where) {
  const auto version = as_number(text);
  if (!version || *version == 0) {
    throw Error(ErrorCode::Corrupt, where, "'" + escaped(text) + "' is not a valid version");
  }
  if (*version > kVersionMax) {
    throw Error(ErrorCode::Unsupported, where,
                "version " + std::to_string(*version) + " is not supported: PyTorch reads 1 to " +
                    std::to_string(kVersionMax) + " and writes 3");
  }
}

void check_byteorder(std::string_view text, const Where& where) {
  if (text != "little") {
    throw Error(ErrorCode::Unsupported, where, "the archive is not little-endian");
  }
}

void check_storage_alignment(std::string_view text, const Where& where) {
  if (!as_number(text)) {
    throw Error(ErrorCode::Corrupt, where,
                "'" + escaped(text) + "' is not a valid storage alignment in bytes");
  }
}

void check_serialization_id(std::string_view text, const Where& where) {
  if (!is_utf8(text)) throw Error(ErrorCode::Corrupt, where, "the text is not valid UTF-8");
}

// What torch.load reads before data.pkl: it refuses the archive where one of these is damaged.
struct Record {
  std::string_view name;
  void (*check)(std::string_view text, const Where& where);
};
constexpr std::array kRecords{
    Record{"byteorder", check_byteorder}, Record{"version", check_version},
    Record{".data/version", check_version},  // in place of version, where there is one
    Record{".storage_alignment", check_storage_alignment},
    Record{".data/serialization_id", check_serialization_id}};

void check_records(const RandomAccess& file, const std::string& prefix,
                   const std::vector<zip::Member>& members) {
  for (const zip::Member& member : members) {
    const std::string_view name = std::string_view(member.name).substr(prefix.size());
    const auto record = std::ranges::find(kRecords, name, &Record::name);
    if (record == kRecords.end()) continue;
    const auto bytes = read_member(file, member, kRecordBytesMax);
    record->check({reinterpret_cast<const char*>(bytes.data()), bytes.size()},
                  {file.file_name(), member.data.offset_bytes, member.name});
  }
}

void refuse_torch_script(const RandomAccess& file, const std::string& prefix,
                         const std::vector<zip::Member>& members) {
  if (find_member(members, prefix + "constants.pkl")) {
    throw Error(ErrorCode::Unsupported, {file.file_name()},
                "a TorchScript archive, which holds code, is not read");
  }
}

// All of an archive of a few pages, in which directory, records and pickle lie close together; of a
// larger one nothing.
std::vector<std::byte> small_archive(const RandomAccess& file, ByteRange archive) {
  std::vector<std::byte> bytes;
  if (archive.count_bytes > kSmallArchiveBytes ||
      !fits(archive.offset_bytes, archive.count_bytes, file.size_bytes())) {
    return bytes;
  }
  bytes.resize(archive.count_bytes);
  file.read_at(archive.offset_bytes, bytes);
  return bytes;
}

ValueTree read_pickle(const RandomAccess& file, const zip::Member& member, const Limits& limits) {
  const auto bytes = read_member(file, member, limits.pickle_bytes_max);
  ByteReader reader(bytes, file.file_name(), member.data.offset_bytes);
  ValueTree tree = pickle::read(reader, limits);
  if (!reader.at_end()) reader.fail("bytes follow the pickle's end");
  refuse_storages_of_two_types(tree, {file.file_name(), member.data.offset_bytes, {}});
  return tree;
}

void add_value(const Value& value, const std::string& pointer, Kind key_kind,
               std::vector<RootObject>& objects) {
  const auto tensor = as_tensor(value);
  if (!tensor) return objects.push_back({pointer, value.id(), key_kind});
  for (const TensorAttribute& attribute : attributes_of(value.tree(), *tensor)) {
    objects.push_back({pointer + pointer_step("@" + attribute.name), attribute.value.id()});
  }
}

}  // namespace

void add_torch_save_file(const TorchSaveFile& what, const Limits& limits, Contents& contents) {
  const auto index = static_cast<uint32_t>(contents.catalog.files.size());
  const auto file = open_source(what.location, what.name, what.name, limits);
  contents.catalog.files.push_back({what.name, file->size_bytes()});
  Document document = read_document(*file, index, limits);
  within(what.name, {}, [&] {
    for (const TensorAt& tensor : tensors_in(document)) {
      contents.catalog.tensors.push_back(make_tensor_entry(document, tensor, what.shown));
    }
  });
  contents.documents.emplace(what.name, std::move(document));
}

bool try_torch_save_file(const TorchSaveFile& what, const Limits& limits, Contents& contents) {
  const size_t index = contents.catalog.files.size();
  try {
    add_torch_save_file(what, limits, contents);
    return true;
  } catch (const Error& error) {
    if (!error.is_incomplete()) throw;
    contents.catalog.files[index].lack = error.problem();
    return false;
  }
}

bool is_torch_folder(const Folder& source, Location& location) {
  const FolderConvention* const convention = location.convention;
  if (convention == nullptr) return false;
  const std::vector<std::string> names = source.list(location.folder);
  return std::ranges::any_of(names, [&](const std::string& name) {
    return name.starts_with(convention->rank_folder_prefix) &&
           source.kind_of(location.folder / name) == EntryKind::Folder;
  });
}

bool is_torch_file(const FileHead& file, Location&) { return is_torch_save(file.bytes); }

Contents read_torch_contents(const Location& location, const Limits& limits) {
  Contents contents;
  contents.catalog.iteration = location.iteration;
  for (const std::string& name : torch_files(location)) {
    read_file(location, name, limits, contents);
  }
  return contents;
}

Document read_torch_save(const RandomAccess& stored, uint32_t file_index, ByteRange archive,
                         const Limits& limits) {
  const std::vector<std::byte> small = small_archive(stored, archive);
  const HeldBytes file(stored, archive.offset_bytes, small);
  const auto members = read_members(file, archive, limits);
  const std::string prefix = archive_prefix(members, file, archive);
  refuse_torch_script(file, prefix, members);
  check_records(file, prefix, members);
  const std::string pickle_name = prefix + std::string(kPickleName);
  Document document{read_pickle(file, *find_member(members, pickle_name), limits), {}};
  const std::string storage_prefix = prefix + "data/";
  for (const zip::Member& member : members) {
    if (!member.name.starts_with(storage_prefix)) continue;
    document.storages.push_back(
        {member.name.substr(storage_prefix.size()),
         {.file = file_index, .crc32 = member.crc32, .bytes = member.data}});
  }
  std::ranges::sort(document.storages, {}, &StorageRecord::key);
  return document;
}

std::string name_when_saved(const RandomAccess& file, std::string_view path, const Limits& limits) {
  const auto without_digits = [](std::string_view text) {
    std::string left(text);
    std::erase_if(left, [](char c) { return c >= '0' && c <= '9'; });
    return left;
  };
  const fs::path name = fs::path(path).filename();
  const auto members = zip::read_directory(file, {0, file.size_bytes()}, limits);
  const std::string first = members.empty() ? "" : members[0].name;
  const std::string inner = first.substr(0, first.find('/')), stem = name.stem().string();
  const bool is_of_other = inner != stem && without_digits(inner) == without_digits(stem);
  return is_of_other ? inner + name.extension().string() : "";
}

TensorEntry make_tensor_entry(const Document& document, const TensorAt& tensor,
                              std::string_view file) {
  const TensorView& view = tensor.view;
  const Where where{.file = std::string(file), .key = tensor.pointer};
  if (const auto parts = document.joined.find(view.storage_key); parts != document.joined.end()) {
    return {where.file, where.key, view.dtype, view.shape, parts->second};
  }
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

std::vector<RootObject> root_objects(const Document& document) {
  const Value root = document.tree.root();
  std::vector<RootObject> objects;
  if (!root.is(Kind::Dict)) {
    add_value(root, "", Kind::Str, objects);
    return objects;
  }
  for (const auto& [key, value] : items_of(root)) {
    add_value(value, pointer_step(key_text(key)), key.kind(), objects);
  }
  return objects;
}

}  // namespace ckpt
