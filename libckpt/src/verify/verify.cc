#include <ckpt/verify.h>

#include <algorithm>
#include <array>

#include <ckpt/error.h>

#include "base/byte_reader.h"
#include "codec/crc32.h"
#include "codec/zip.h"
#include "codec/zstd_stream.h"
#include "format/torch/torch_save.h"
#include "read/inflated_entries.h"
#include "verify/verify_account.h"
#include "verify/verify_files.h"
#include "work/workers.h"

namespace ckpt {
namespace {

// One part of a file: a torch.save archive, or bytes without structure.
struct VerifiedItem {
  size_t file = 0;  // into VerifyAccount::files()
  ByteRange bytes = {};
  Wrapping wrapping = Wrapping::TorchSave;  // None: bytes without structure
  bool is_entry = false;                    // of a .distcp file
  const TensorEntry* tensor = nullptr;  // what .metadata says that the entry holds: a chunk of it,
  const Chunk* chunk = nullptr;
  const ObjectEntry* object = nullptr;  // or an object
};

constexpr uint64_t kBatchBytes = uint64_t{1} << 20;
constexpr uint64_t kInflatedPieceBytes = uint64_t{1} << 20;
constexpr size_t kSmallMemberBytes = size_t{64} << 10;  // read where its archive is looked at

const std::string* key_of(const VerifiedItem& item) {
  if (item.tensor != nullptr) return &item.tensor->key;
  return item.object != nullptr ? &item.object->key : nullptr;
}

class ItemChecker {
 public:
  ItemChecker(const Checkpoint& checkpoint, VerifyAccount& account, PayloadVerifier& payloads)
      : checkpoint_(checkpoint), account_(account), payloads_(payloads) {}

  void check(const VerifiedItem& item, const HeldBytes& file) {
    try {
      const auto members = zip::read_directory(file, item.bytes, checkpoint_.limits());
      const auto ranges = zip::account_archive(file, item.bytes, members);
      account_.label(item.file, ranges);
      if (!account_.options().quick) {
        for (const zip::AccountedRange& range : ranges) {
          if (range.member == zip::kNoMember || !is_own(item, range.bytes)) continue;
          check_member(item, members[range.member], file);
        }
      }
    } catch (Error& error) {
      // What is wrong with a directory every process with a piece of the archive sees: one says it.
      const bool is_alone = error.code() == ErrorCode::IoFailure;
      if (is_alone || account_.owns(item.file, item.bytes.offset_bytes)) find(error, item);
      return account_.label(item.file, item.bytes, ByteLabel::Unclaimed);
    }
    if (item.is_entry) check_entry_of(item, file, item.bytes);
  }

  // A compressed entry. Its bytes are protected by what they inflate to.
  void check_inflated(const VerifiedItem& item, const RandomAccess& file) {
    try {
      const ZstdStream stream(file, item.bytes,
                              inflated_bytes_max(item.tensor, item.chunk, checkpoint_.limits()));
      const ByteRange all{0, stream.size_bytes()};
      const auto members = zip::read_directory(stream, all, checkpoint_.limits());
      bool has_checksums = true;
      for (const zip::AccountedRange& range : zip::account_archive(stream, all, members)) {
        has_checksums = has_checksums && range.label != ByteLabel::Unprotected;
        if (range.member == zip::kNoMember) continue;
        check_inflated_member(item, members[range.member], stream);
      }
      check_entry_of(item, stream, all);
      account_.label(item.file, item.bytes,
                     has_checksums ? ByteLabel::Checksummed : ByteLabel::Unprotected);
    } catch (Error& error) {
      find(error, item);
      account_.label(item.file, item.bytes, ByteLabel::Unclaimed);
    }
    payloads_.passed(item.bytes.count_bytes);
  }

 private:
  void check_inflated_member(const VerifiedItem& item, const zip::Member& member,
                             const ZstdStream& stream) {
    VerifiedPayload payload = payload_of(item, member);
    std::vector<std::byte> buffer(std::min(kInflatedPieceBytes, member.data.count_bytes));
    uint32_t crc = 0;
    for (uint64_t offset = 0; offset < member.data.count_bytes; offset += buffer.size()) {
      const uint64_t left_bytes = member.data.count_bytes - offset;
      const auto piece = std::span(buffer).first(std::min<uint64_t>(buffer.size(), left_bytes));
      stream.read_at(member.data.offset_bytes + offset, piece);
      payloads_.watch(payload, offset, piece);
      crc = crc32(piece, crc);
    }
    payload.bytes.offset_bytes = item.bytes.offset_bytes;  // for errors: in the file
    if (payload.crc32) payloads_.compare(payload, crc);
  }

  // Of an archive that is cut every share reads the directory.
  bool is_own(const VerifiedItem& item, ByteRange bytes) const {
    return item.is_entry || account_.owns(item.file, bytes.offset_bytes);
  }

  void find(Error& error, const VerifiedItem& item) {
    const std::string* key = key_of(item);
    account_.find(error.within({.file = {}, .key = key ? *key : std::string()}),
                  CheckKind::Structure);
  }

  // What the entry holds is what .metadata says. Objects may hold tensors, too.
  void check_entry_of(const VerifiedItem& item, const RandomAccess& file, ByteRange archive) {
    const VerifiedFile& shown = account_.files()[item.file];
    try {
      const Document document =
          read_torch_save(file, shown.index.value_or(0), archive, checkpoint_.limits());
      for (const TensorAt& tensor : tensors_in(document)) {
        make_tensor_entry(document, tensor, shown.shown);
      }
      if (item.tensor == nullptr) return;
      const Where where{shown.shown, item.bytes.offset_bytes, item.tensor->key};
      const auto view = as_tensor(document.tree.root());
      if (!view) throw Error(ErrorCode::Corrupt, where, "the entry does not hold a tensor");
      check_entry(*view, *item.tensor, *item.chunk, where);
    } catch (Error& error) {
      if (error.code() == ErrorCode::Unsupported) return note_unread(error, item);
      find(error, item);
    }
  }

  // Its bytes are what torch wrote; what they stand for is not known here.
  void note_unread(const Error& error, const VerifiedItem& item) {
    const std::string* const key = key_of(item);
    account_.find_if_own({CheckKind::Structure,
                          Severity::Note,
                          {account_.files()[item.file].shown, item.bytes.offset_bytes,
                           key != nullptr ? *key : std::string()},
                          error.problem() + "; not read"});
  }

  void check_member(const VerifiedItem& item, const zip::Member& member, const HeldBytes& file) {
    VerifiedPayload payload = payload_of(item, member);
    if (const auto held = file.held_at(member.data)) return payloads_.check(payload, *held);
    if (member.data.count_bytes > kSmallMemberBytes) return payloads_.add(std::move(payload));
    std::array<std::byte, kSmallMemberBytes> buffer;
    const auto bytes = std::span(buffer).first(member.data.count_bytes);
    file.read_at(member.data.offset_bytes, bytes);
    payloads_.check(payload, bytes);
    payloads_.passed(bytes.size());
  }

  static VerifiedPayload payload_of(const VerifiedItem& item, const zip::Member& member) {
    VerifiedPayload payload{item.file, member.data, member.crc32};
    if (is_storage(member)) payload.region = item.is_entry ? item.bytes : member.data;
    payload.key = key_of(item) ? *key_of(item) : is_storage(member) ? "" : member.name;
    return payload;
  }

  // NAME/data/KEY.
  static bool is_storage(const zip::Member& member) {
    const size_t slash = member.name.find('/');
    return slash != member.name.npos &&
           std::string_view(member.name).substr(slash + 1).starts_with("data/");
  }

  const Checkpoint& checkpoint_;
  VerifyAccount& account_;
  PayloadVerifier& payloads_;
};

// Consecutive small items of one file, or one item.
struct Batch {
  size_t first = 0;
  size_t count = 0;
  ByteRange bytes;
};

std::vector<Batch> make_batches(std::span<const VerifiedItem> items) {
  std::vector<Batch> batches;
  for (size_t i = 0; i < items.size(); ++i) {
    const ByteRange& bytes = items[i].bytes;
    if (!batches.empty()) {
      Batch& last = batches.back();
      const uint64_t span_bytes = bytes.end_bytes() - last.bytes.offset_bytes;
      const bool joins = items[last.first].file == items[i].file &&
                         last.bytes.count_bytes <= kBatchBytes && span_bytes <= kBatchBytes &&
                         bytes.offset_bytes >= last.bytes.offset_bytes;
      if (joins) {
        ++last.count;
        last.bytes.count_bytes = std::max(last.bytes.count_bytes, span_bytes);
        continue;
      }
    }
    batches.push_back({i, 1, bytes});
  }
  return batches;
}

// The parts of the share's files, in their order; bytes that belong to none are labelled and found.
class ItemLister {
 public:
  ItemLister(const Checkpoint& checkpoint, VerifyAccount& account)
      : checkpoint_(checkpoint),
        catalog_(checkpoint.catalog()),
        account_(account),
        by_file_(catalog_.files.size()) {
    for (const TensorEntry& tensor : catalog_.tensors) {
      for (const Chunk& chunk : tensor.chunks) {
        if (tensor.file.empty()) add({.tensor = &tensor, .chunk = &chunk}, chunk.region);
      }
    }
    for (const ObjectEntry& object : catalog_.objects) {
      if (object.region) add({.object = &object}, *object.region);
    }
  }

  std::vector<VerifiedItem> run() {
    for (size_t file = 0; file < account_.files().size(); ++file) {
      if (!account_.files()[file].own.empty()) list(file);
    }
    return std::move(items_);
  }

 private:
  void add(VerifiedItem item, const StorageRegion& region) {
    item.bytes = region.bytes;
    item.wrapping = region.wrapping;
    item.is_entry = true;
    by_file_[region.file].push_back(item);
  }

  void list(size_t file) {
    const VerifiedFile& what = account_.files()[file];
    const ByteRange all{0, what.count_bytes};
    switch (what.role) {
      case FileRole::Archive: items_.push_back({file, all}); break;
      case FileRole::Entries: list_entries(file); break;
      case FileRole::Safetensors:  // the header's length agrees with the file's, or it is refused
        account_.label(file, ByteRange{0, 8}, ByteLabel::Repeated);
        for (const ByteRange& piece : what.own) {
          const uint64_t start = std::max<uint64_t>(piece.offset_bytes, 8);
          account_.label(file, ByteRange{start, piece.end_bytes() - start}, ByteLabel::Unprotected);
        }
        list_blob(file);
        break;
      case FileRole::Manifest: account_.label(file, all, ByteLabel::Repeated); break;
      case FileRole::Plain:
      case FileRole::Beside:
      case FileRole::Tracker:
        account_.label(file, all, ByteLabel::Unprotected);
        items_.push_back({file, all, Wrapping::None});
        break;
      case FileRole::Cut: account_.label(file, all, ByteLabel::Unprotected); break;
      case FileRole::Stray: account_.label(file, all, ByteLabel::Unclaimed); break;
    }
  }

  // The tensors of a safetensors file, and what lies between them.
  void list_blob(size_t file) {
    auto& tensors = by_file_[*account_.files()[file].index];
    std::ranges::stable_sort(tensors, {},
                             [](const VerifiedItem& item) { return item.bytes.offset_bytes; });
    for (const ByteRange& piece : account_.files()[file].own) {
      uint64_t position = piece.offset_bytes;
      const auto pass_until = [&](uint64_t end) {
        if (end > position) items_.push_back({file, {position, end - position}, Wrapping::None});
        position = std::max(position, end);
      };
      for (VerifiedItem& item : tensors) {
        const ByteRange& bytes = item.bytes;
        if (bytes.offset_bytes < position || bytes.end_bytes() > piece.end_bytes()) continue;
        if (bytes.count_bytes == 0) continue;
        pass_until(bytes.offset_bytes);
        item.file = file;
        items_.push_back(item);
        position = bytes.end_bytes();
      }
      pass_until(piece.end_bytes());
    }
    tensors = {};
  }

  void list_entries(size_t file) {
    auto& entries = by_file_[*account_.files()[file].index];
    std::ranges::stable_sort(entries, {},
                             [](const VerifiedItem& item) { return item.bytes.offset_bytes; });
    const bool has_blob = std::ranges::any_of(
        entries, [](const VerifiedItem& item) { return item.wrapping == Wrapping::None; });
    uint64_t position = 0;
    for (VerifiedItem& item : entries) {
      item.file = file;
      const bool is_own = account_.owns(file, item.bytes.offset_bytes);
      claim(file, {position, std::max(item.bytes.offset_bytes, position) - position}, has_blob);
      position = std::max(position, item.bytes.end_bytes());
      const bool is_looked_into = item.wrapping == Wrapping::TorchSave ||
                                  (item.wrapping != Wrapping::None && !account_.options().quick);
      if (!is_looked_into) account_.label(file, item.bytes, ByteLabel::Unprotected);
      if (is_own) items_.push_back(item);
    }
    claim(file, {position, account_.files()[file].count_bytes - position}, has_blob);
    entries = {};
  }

  // `has_blob`: the file holds tensors without wrapping, as a safetensors blob does.
  void claim(size_t file, ByteRange hole, bool has_blob) {
    if (hole.count_bytes == 0) return;
    if (has_blob && is_safetensors_header(file, hole)) {
      account_.label(file, ByteRange{hole.offset_bytes, 8}, ByteLabel::Repeated);
      return account_.label(file, ByteRange{hole.offset_bytes + 8, hole.count_bytes - 8},
                            ByteLabel::Unprotected);
    }
    account_.label(file, hole, ByteLabel::Unclaimed);
    // Ranks that save alone store replicas, of which one is read.
    const auto metadata = std::ranges::find(account_.files(), ".metadata", &VerifiedFile::path);
    const bool has_replicas = metadata == account_.files().end();
    account_.find_if_own({CheckKind::Structure,
                          has_replicas ? Severity::Note : Severity::Damage,
                          {account_.files()[file].shown, hole.offset_bytes, {}},
                          std::to_string(hole.count_bytes) +
                              " bytes that .metadata assigns to no tensor or object"});
  }

  // In front of the tensors of a file that DCP wrote as safetensors.
  bool is_safetensors_header(size_t file, ByteRange hole) const {
    const VerifiedFile& what = account_.files()[file];
    const auto content = open_verified(checkpoint_, what);
    std::array<std::byte, 9> head = {};
    if (hole.count_bytes <= head.size()) return false;
    content->read_at(hole.offset_bytes, head);
    return ByteReader(head).u64() == hole.count_bytes - 8 && head[8] == std::byte{'{'};
  }

  const Checkpoint& checkpoint_;
  const Catalog& catalog_;
  VerifyAccount& account_;
  std::vector<std::vector<VerifiedItem>> by_file_;  // entries
  std::vector<VerifiedItem> items_;
};

// Checks archives, inflated where they are compressed: headers against directory, entry against
// .metadata, small members' checksums. Large members are left to `payloads`. Small archives that
// lie together are read together.
void check_items(const Checkpoint& checkpoint, std::span<const VerifiedItem> items,
                 VerifyAccount& account, PayloadVerifier& payloads) {
  const std::vector<Batch> batches = make_batches(items);
  ItemChecker checker(checkpoint, account, payloads);
  const auto check_batch = [&](size_t number, std::span<std::byte> slab) {
    const Batch& batch = batches[number];
    const VerifiedFile& name = account.files()[items[batch.first].file];
    const auto file = open_verified(checkpoint, name);
    const uint64_t held_bytes_max = std::min<uint64_t>(kBatchBytes, slab.size());
    const bool is_held = !account.options().quick && batch.bytes.count_bytes <= held_bytes_max &&
                         batch.bytes.end_bytes() <= file->size_bytes();
    const auto held = is_held ? slab.first(batch.bytes.count_bytes) : std::span<std::byte>();
    file->read_at(batch.bytes.offset_bytes, held);
    payloads.passed(held.size());
    const HeldBytes bytes(*file, batch.bytes.offset_bytes, held);
    for (const VerifiedItem& item : items.subspan(batch.first, batch.count)) {
      if (item.wrapping == Wrapping::TorchSave) {
        checker.check(item, bytes);
      } else if (account.options().quick) {
        continue;
      } else if (item.wrapping == Wrapping::None) {
        VerifiedPayload payload{item.file, item.bytes};
        if (item.tensor != nullptr) payload.region = item.bytes;
        payloads.add(std::move(payload));
      } else {
        checker.check_inflated(item, bytes);
      }
    }
  };
  run_with_slabs(batches.size(), account.options().execution, check_batch);
}

}  // namespace

SelectedRegions::SelectedRegions(const Catalog& catalog, const KeySelection& selection) {
  if (selection.is_everything()) return;
  starts_.emplace();
  const auto add = [this](const StorageRegion& region) {
    starts_->emplace(region.file, region.bytes.offset_bytes);
  };
  for (const TensorEntry& tensor : catalog.tensors) {
    if (!selection.accepts(tensor.file, tensor.key)) continue;
    for (const Chunk& chunk : tensor.chunks) add(chunk.region);
  }
  for (const ObjectEntry& object : catalog.objects) {
    if (object.region && selection.accepts(object.file, object.key)) add(*object.region);
  }
}

bool SelectedRegions::contains(uint32_t file, const ByteRange& region) const {
  return !starts_ || starts_->contains({file, region.offset_bytes});
}

std::vector<KeyName> names_in(const Catalog& catalog) {
  std::vector<KeyName> names;
  for (const TensorEntry& tensor : catalog.tensors) names.push_back({tensor.file, tensor.key});
  for (const ObjectEntry& object : catalog.objects) names.push_back({object.file, object.key});
  return names;
}

Findings verify(const Checkpoint& checkpoint, const VerifyOptions& options) {
  std::vector<Finding> of_files;
  std::vector<VerifiedFile> files = list_files(checkpoint, of_files);
  deal_files(files, checkpoint.catalog(), options.share);
  VerifyAccount account(std::move(files), options);
  for (Finding& finding : of_files) account.find_if_own(std::move(finding));
  if (options.quick && options.files_only) return account.finish();
  uint64_t total_bytes = 0;
  for (const VerifiedFile& file : account.files()) total_bytes += file.own_bytes();
  WorkMeter meter(options.execution, total_bytes);
  PayloadVerifier payloads(checkpoint, account, meter);
  const std::vector<VerifiedItem> items = ItemLister(checkpoint, account).run();
  check_items(checkpoint, items, account, payloads);
  if (!options.quick) payloads.run();
  return account.finish();
}

}  // namespace ckpt
