#include <ckpt/verify.h>

#include "verify/verify_account.h"
#include "verify/verify_files.h"
#include "verify/verify_items.h"
#include "verify/verify_payload.h"

namespace ckpt {
namespace {

uint64_t own_bytes(const VerifyAccount& account) {
  uint64_t total_bytes = 0;
  for (const VerifiedFile& file : account.files()) total_bytes += file.own_bytes();
  return total_bytes;
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
  WorkMeter meter(options.execution, own_bytes(account));
  PayloadVerifier payloads(checkpoint, account, meter);
  const std::vector<VerifiedItem> items = list_items(checkpoint, account);
  check_items(checkpoint, items, account, payloads);
  if (!options.quick) payloads.run();
  return account.finish();
}

}  // namespace ckpt
