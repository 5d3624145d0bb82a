#include "execute/member_composer.h"

#include <cstring>

#include <ckpt/error.h>

#include "codec/crc32.h"

namespace ckpt {

namespace {

void copy_text(std::string_view text, std::span<std::byte> out) {
  if (!text.empty()) std::memcpy(out.data(), text.data(), text.size());
}

std::string_view part_of(std::string_view text, uint64_t offset_bytes, size_t count_bytes) {
  return text.substr(static_cast<size_t>(offset_bytes), count_bytes);
}

}  // namespace

void check_sole_source(const SoleSource& sole, uint32_t crc, const PayloadSource& source) {
  const auto stated = stated_crc(sole.storage);
  if (!stated || *stated == crc) return;
  try {
    throw_crc_mismatch(sole.storage, crc, source);
  } catch (Error& error) {
    throw error.within({.file = {}, .key = sole.key});
  }
}

std::optional<SoleSource> MemberComposer::read_data(size_t member, uint64_t offset_bytes,
                                                    std::span<std::byte> out) const {
  if (!target_.image.is_record(member)) {
    copy_text(part_of(target_.image.fixed_content(member), offset_bytes, out.size()), out);
    return std::nullopt;
  }
  const size_t record = ArchiveImage::record_of(member);
  const RecordSource& source = target_.archive.records[record].source;
  if (const auto* bytes = std::get_if<std::string>(&source)) {
    copy_text(part_of(*bytes, offset_bytes, out.size()), out);
    return std::nullopt;
  }
  if (std::holds_alternative<StorageSource>(source)) return read_storage(record, offset_bytes, out);
  return read_tensor(record, offset_bytes, out);
}

SoleSource MemberComposer::read_storage(size_t record, uint64_t offset_bytes,
                                        std::span<std::byte> out) const {
  const TargetRecord& target = target_.archive.records[record];
  const StorageRegion storage =
      context_.source.locate(std::get<StorageSource>(target.source).region);
  if (storage.bytes.count_bytes != target.count_bytes) {
    throw Error(ErrorCode::Corrupt,
                {context_.source.file_name(storage.file), storage.bytes.offset_bytes},
                "a storage of " + std::to_string(storage.bytes.count_bytes) +
                    " bytes where one of " + std::to_string(target.count_bytes) + " was expected");
  }
  if (!out.empty()) context_.source.read_bytes(storage, offset_bytes, out);
  return {storage, {}};
}

std::optional<SoleSource> MemberComposer::read_tensor(size_t record, uint64_t offset_bytes,
                                                      std::span<std::byte> out) const {
  const auto& source = std::get<TensorSource>(target_.archive.records[record].source);
  const std::string& key = source.tensor->key;
  const auto check = [&](const StorageRegion& located) {
    context_.checker.check_once(located, context_.scratch.bytes());
  };
  try {
    BoxReader reader(*source.tensor, source.box, context_.source,
                     {.copies = target_.records[record].copies,
                      .scratch = &context_.scratch,
                      .before_read = check});
    const std::optional<StorageRegion> sole = reader.sole_storage();
    reader.seek(offset_bytes);
    reader.read(out);
    if (!sole) return std::nullopt;
    return SoleSource{*sole, key};
  } catch (Error& error) {
    throw error.within({.file = {}, .key = key});
  }
}

uint32_t MemberComposer::compose(size_t member, std::span<const uint32_t> crcs,
                                 std::span<std::byte> out) const {
  const zip::Layout& layout = target_.image.layout();
  const zip::Place& place = target_.image.place(member);
  const std::string header = layout.local_header(member);
  copy_text(header, out);
  const auto data = out.subspan(header.size(), static_cast<size_t>(place.count_bytes));
  std::optional<SoleSource> sole;
  if (member == target_.image.id_member()) {
    copy_text(target_.image.serialization_id(crcs), data);
  } else {
    sole = read_data(member, 0, data);
  }
  const uint32_t crc = crc32(data);
  if (sole) check_sole_source(*sole, crc, context_.source);
  copy_text(layout.descriptor(member, crc), out.subspan(header.size() + data.size()));
  return crc;
}

}  // namespace ckpt
