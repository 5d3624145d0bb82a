#include "execute/record_reader.h"

#include <cstring>
#include <optional>
#include <variant>

#include <ckpt/error.h>

#include "codec/crc32.h"

namespace ckpt {
namespace {

// The checksum of a buffer that is filled from its start on, as far as it was.
struct FilledPart {
  size_t count_bytes = 0;
  uint32_t crc = 0;

  void append(std::span<const std::byte> bytes, std::optional<uint32_t> known_crc) {
    crc = crc32_of_both(crc, known_crc ? *known_crc : crc32(bytes), bytes.size());
    count_bytes += bytes.size();
  }
};

}  // namespace

uint32_t RecordReader::read(const TargetRecord& record, const RecordPlan& plan,
                            uint64_t offset_bytes, std::span<std::byte> out) {
  if (const auto* bytes = std::get_if<std::string>(&record.source)) {
    return read_text(*bytes, offset_bytes, out);
  }
  if (const auto* tensor = std::get_if<TensorSource>(&record.source)) {
    return read_tensor(*tensor, plan, offset_bytes, out);
  }
  return read_storage(record, offset_bytes, out);
}

uint32_t RecordReader::read_text(const std::string& bytes, uint64_t offset_bytes,
                                 std::span<std::byte> out) {
  std::memcpy(out.data(), bytes.data() + offset_bytes, out.size());
  return crc32(out);
}

uint32_t RecordReader::read_storage(const TargetRecord& record, uint64_t offset_bytes,
                                    std::span<std::byte> out) {
  const StorageRegion storage = source_.locate(std::get<StorageSource>(record.source).region);
  if (storage.bytes.count_bytes != record.count_bytes) {
    throw Error(ErrorCode::Corrupt, {source_.file_name(storage.file), storage.bytes.offset_bytes},
                "a storage of " + std::to_string(storage.bytes.count_bytes) +
                    " bytes where one of " + std::to_string(record.count_bytes) + " was expected");
  }
  FilledPart filled;
  const AfterRead note = [&](const StorageRegion& located, uint64_t offset,
                             std::span<const std::byte> bytes) {
    filled.append(bytes, checker_.note(located, offset, bytes, {}));
  };
  read_in_slices({source_, note}, storage, offset_bytes, out);
  return filled.crc;
}

uint32_t RecordReader::read_tensor(const TensorSource& tensor, const RecordPlan& plan,
                                   uint64_t offset_bytes, std::span<std::byte> out) {
  const std::string& key = tensor.tensor->key;
  FilledPart filled;  // all of it, where bytes come as they are and in order
  const auto note = [&](const StorageRegion& located, uint64_t offset,
                        std::span<const std::byte> bytes) {
    const std::optional<uint32_t> crc = checker_.note(located, offset, bytes, key);
    if (bytes.data() == out.data() + filled.count_bytes) filled.append(bytes, crc);
  };
  try {
    const auto index = indices_.index_of(plan);
    BoxReader reader(*tensor.tensor, tensor.box, source_,
                     {plan.copies, index.get(), &scratch_, note});
    reader.read_at(offset_bytes, out);
  } catch (Error& error) {
    throw error.within({.file = {}, .key = key});
  }
  return filled.count_bytes == out.size() ? filled.crc : crc32(out);
}

}  // namespace ckpt
