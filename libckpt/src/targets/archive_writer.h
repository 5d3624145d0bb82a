#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <tuple>

#include <ckpt/archive_builder.h>
#include <ckpt/target.h>

#include "codec/zip.h"

namespace ckpt {

inline constexpr int kArchivePickleProtocol = 2;  // torch.save's default

// A torch.save archive as torch 2.11 writes it, but for the payloads: every byte that does not come
// from a record, and the place of those that do.
//
//   NAME/data.pkl  NAME/.format_version  NAME/.storage_alignment  NAME/byteorder
//   NAME/data/0 ... NAME/data/n-1  NAME/version  NAME/.data/serialization_id
//
// A file that is no archive (RawHeader) has the same members: data.pkl is the header, the others
// but the records are empty, and there is nothing between and behind them.
//
// Pure, immutable, safe to share between threads. Throws as archive_layout() does.
class ArchiveImage {
 public:
  explicit ArchiveImage(const TargetArchive& archive);
  // `pickle`: data.pkl as it is; `record_bytes`: sizes of the storages.
  ArchiveImage(const std::string& name, std::string pickle, std::span<const uint64_t> record_bytes);

  const zip::Layout& layout() const { return layout_; }
  size_t member_count() const { return layout_.places().size(); }
  const zip::Place& place(size_t member) const { return layout_.places()[member]; }

  size_t record_count() const { return member_count() - kFixedMemberCount; }
  bool is_record(size_t member) const {
    return member >= kFirstRecord && member - kFirstRecord < record_count();
  }
  static size_t record_of(size_t member) { return member - kFirstRecord; }
  static size_t member_of(size_t record) { return record + kFirstRecord; }

  // The last member. Its content is known only once all others are: it is made from their
  // checksums.
  size_t id_member() const { return member_count() - 1; }
  // 40 digits, made from names, sizes and checksums, so that equal content gives equal archives.
  // `crcs`: of all members before it.
  std::string serialization_id(std::span<const uint32_t> crcs) const;
  // As ArchiveLayout has it.
  uint64_t closing_offset_bytes() const;

  // The content of a member that is neither a record nor the serialization id.
  std::string_view fixed_content(size_t member) const;

 private:
  void lay_out_archive(const std::string& name, std::span<const uint64_t> record_bytes);

  static constexpr size_t kFirstRecord = 4;
  static constexpr size_t kFixedMemberCount = 6;

  std::string pickle_;
  zip::Layout layout_;
};

// Layouts of many archives, made once for those that are alike: 10^6 chunks have few shapes, and
// modules without a state share one tree.
class ArchiveLayouts {
 public:
  // Valid until the next call. Throws as archive_layout() does.
  const ArchiveLayout& of(const TargetArchive& archive);

 private:
  const ArchiveLayout& of_tree(const TargetArchive& archive);

  using BareKey = std::tuple<uint64_t, DType, Extents, std::string>;  // sizes differ most
  std::map<BareKey, ArchiveLayout> of_bare_tensors_;
  ArchiveLayout other_;
  const ValueTree* tree_of_other_ =
      nullptr;  // where it has no records, and so depends on nothing else
  std::string name_of_other_;
};

}  // namespace ckpt
