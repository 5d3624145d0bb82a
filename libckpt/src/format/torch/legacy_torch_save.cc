// What torch.save wrote before zip archives (torch 1.6), and still writes on request:
//
//   pickle(0x1950a86a20f9469cfc6c)  pickle(1001)
//   pickle({protocol_version: 1001, little_endian: True, type_sizes: {...}})
//   pickle(the value tree)          persistent ids as in archives, with a sixth element
//   pickle([storage key, ...])
//   for each of these keys: i64 count of elements, their bytes
//
// No length says where a pickle ends; there are no checksums.
#include <algorithm>
#include <map>

#include <ckpt/error.h>

#include "base/byte_reader.h"
#include "base/checked_math.h"
#include "codec/pickle.h"
#include "format/torch/torch_save.h"
#include "format/values/torch_values.h"

namespace ckpt {
namespace {

// The number as pickle's LONG1 (protocol 2 and later) and LONG (0 and 1) write it.
constexpr std::string_view kMagicBinary = "\x8a\x0al\xfc\x9c\x46\xf9 j\xa8P\x19";
constexpr std::string_view kMagicText = "L119547037146038801333356L\n";
constexpr std::string_view kMagicDecimal = "119547037146038801333356";
constexpr int64_t kVersion = 1001;
constexpr uint64_t kFirstReadBytes = uint64_t{1} << 20;

struct Pickles {
  ValueTree tree, keys;
  uint64_t end_bytes = 0;
};

void check_header(ByteReader& reader, const Limits& limits) {
  const ValueTree magic = pickle::read(reader, limits);
  if (magic.root().kind() != Kind::BigInt || magic.root().text() != kMagicDecimal) {
    reader.fail_at(0, "expected torch.save's magic number");
  }
  const ValueTree version = pickle::read(reader, limits);
  if (!version.root().is(Kind::Int) || version.root().as_int() != kVersion) {
    throw Error(ErrorCode::Unsupported, {reader.file(), reader.file_offset_bytes(), {}},
                "a legacy torch.save file with a protocol other than 1001");
  }
  const ValueTree system = pickle::read(reader, limits);
  const auto little_endian =
      system.root().is(Kind::Dict) ? system.root().find("little_endian") : std::nullopt;
  if (!little_endian || !little_endian->is(Kind::Bool)) {
    reader.fail("the file does not state its byte order");
  }
  if (!little_endian->as_bool()) {
    throw Error(ErrorCode::Unsupported, {reader.file(), reader.file_offset_bytes(), {}},
                "the file is not little-endian");
  }
}

// nullopt: the pickles go on behind these bytes.
std::optional<Pickles> parse(std::span<const std::byte> bytes, const std::string& name,
                             const Limits& limits) {
  ByteReader reader(bytes, name);
  try {
    check_header(reader, limits);
    Pickles pickles;
    pickles.tree = pickle::read(reader, limits);
    pickles.keys = pickle::read(reader, limits);
    pickles.end_bytes = reader.position();
    return pickles;
  } catch (const Error&) {
    if (!reader.ran_out() && !reader.at_end()) throw;
    return std::nullopt;
  }
}

Pickles read_pickles(const RandomAccess& file, const Limits& limits) {
  const uint64_t bytes_max = std::min(file.size_bytes(), limits.pickle_bytes_max);
  std::vector<std::byte> bytes;
  for (uint64_t count = std::min(kFirstReadBytes, bytes_max);;) {
    const size_t known = bytes.size();
    bytes.resize(count);
    file.read_at(known, std::span(bytes).subspan(known));
    if (auto pickles = parse(bytes, file.file_name(), limits)) return std::move(*pickles);
    if (count == file.size_bytes()) throw truncated({file.file_name(), count}, count);
    if (count == bytes_max) {
      throw Error(ErrorCode::Corrupt, {file.file_name(), count, {}},
                  "its pickles are longer than the limit, " + std::to_string(count) + " bytes");
    }
    count = std::min(count * 4, bytes_max);
  }
}

// Bytes that one element of each storage takes, as the tensors that view it say.
std::map<std::string_view, StorageId> storages_of(const ValueTree& tree) {
  std::map<std::string_view, StorageId> storages;
  for (NodeId node = 0; node < tree.node_count(); ++node) {
    const Value value = tree.value(node);
    if (!value.is(Kind::PersistentId)) continue;
    const Value id = value.persistent_id();
    const bool is_storage =
        id.is(Kind::Tuple) && id.size() > 0 && id[0].is(Kind::Str) && id[0].text() == "storage";
    if (!is_storage) continue;  // ('module', ...): the source text of a class
    const StorageId storage = as_storage_id(value);
    storages.try_emplace(storage.key, storage);
  }
  return storages;
}

// How long the file is with all of these storages behind its pickles; nullopt: beyond 64 bits.
std::optional<uint64_t> whole_bytes(uint64_t pickles_bytes,
                                    const std::map<std::string_view, StorageId>& storages) {
  std::optional<uint64_t> whole = pickles_bytes;
  for (const auto& [key, storage] : storages) {
    const uint64_t element_bytes = storage.dtype ? bytes_per_element(*storage.dtype) : 1;
    const auto bytes = checked_mul(storage.count, element_bytes);
    whole = whole && bytes ? checked_add(*whole, *bytes) : std::nullopt;
    whole = whole ? checked_add(*whole, sizeof(uint64_t)) : std::nullopt;
  }
  return whole;
}

class StorageReader {
 public:
  StorageReader(const RandomAccess& file, uint32_t file_index, uint64_t offset_bytes,
                std::optional<uint64_t> whole_bytes)
      : file_(file),
        file_index_(file_index),
        offset_bytes_(offset_bytes),
        whole_bytes_(whole_bytes) {}

  StorageRecord read(const StorageId& storage) {
    std::byte count_bytes[8];
    if (left_bytes() < sizeof count_bytes) fail_truncated();
    file_.read_at(offset_bytes_, count_bytes);
    const uint64_t count = ByteReader(count_bytes).u64();
    if (count != storage.count) {
      fail(storage, "it holds " + std::to_string(count) + " elements, but the pickle says " +
                        std::to_string(storage.count));
    }
    const auto bytes = checked_mul(count, storage.dtype ? bytes_per_element(*storage.dtype) : 1);
    if (!bytes) fail(storage, "its " + std::to_string(count) + " elements are too many");
    if (*bytes > left_bytes() - sizeof count_bytes) fail_truncated();
    const uint64_t start_bytes = offset_bytes_ + sizeof count_bytes;
    offset_bytes_ = start_bytes + *bytes;
    return {std::string(storage.key), {.file = file_index_, .bytes = {start_bytes, *bytes}}};
  }

  uint64_t left_bytes() const { return file_.size_bytes() - offset_bytes_; }

 private:
  [[noreturn]] void fail(const StorageId& storage, std::string problem) const {
    throw Error(ErrorCode::Corrupt, {file_.file_name(), offset_bytes_, {}},
                "storage '" + escaped(storage.key) + "': " + std::move(problem));
  }

  [[noreturn]] void fail_truncated() const {
    throw truncated({file_.file_name(), offset_bytes_, {}}, file_.size_bytes(), whole_bytes_);
  }

  const RandomAccess& file_;
  uint32_t file_index_;
  uint64_t offset_bytes_;
  std::optional<uint64_t> whole_bytes_;
};

}  // namespace

bool is_torch_save(std::string_view head) {
  return head.starts_with("PK\x03\x04") || is_legacy_torch_save(head);
}

bool is_legacy_torch_save(std::string_view head) {
  return head.starts_with(kMagicText) || head.substr(0, 32).find(kMagicBinary) != head.npos;
}

Document read_legacy_torch_save(const RandomAccess& file, uint32_t file_index,
                                const Limits& limits) {
  Pickles pickles = read_pickles(file, limits);
  const Where where{file.file_name(), pickles.end_bytes, {}};
  const Value keys = pickles.keys.root();
  if (!keys.is(Kind::List)) throw Error(ErrorCode::Corrupt, where, "expected a list of storages");
  refuse_storages_of_two_types(pickles.tree, where);
  auto storages = storages_of(pickles.tree);
  std::vector<StorageRecord> records;
  StorageReader reader(file, file_index, pickles.end_bytes,
                       whole_bytes(pickles.end_bytes, storages));
  for (size_t i = 0; i < keys.size(); ++i) {
    const auto known = keys[i].is(Kind::Str) ? storages.find(keys[i].text()) : storages.end();
    if (known == storages.end()) {
      throw Error(ErrorCode::Corrupt, where, "lists a storage twice, or one that no tensor uses");
    }
    records.push_back(reader.read(known->second));
    storages.erase(known);
  }
  if (reader.left_bytes() != 0) {
    throw Error(ErrorCode::Corrupt, where,
                std::to_string(reader.left_bytes()) + " bytes follow the last storage");
  }
  std::ranges::sort(records, {}, &StorageRecord::key);
  return {std::move(pickles.tree), std::move(records)};
}

}  // namespace ckpt
