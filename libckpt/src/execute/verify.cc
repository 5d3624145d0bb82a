#include <ckpt/verify.h>

#include <filesystem>

#include "execute/verify_account.h"
#include "execute/verify_files.h"
#include "execute/verify_items.h"
#include "execute/verify_payload.h"
#include "format/integrity.h"
#include "io/directory.h"
#include "io/file.h"

namespace ckpt {
namespace {

namespace fs = std::filesystem;

void read_manifest(const Checkpoint& checkpoint, VerifyAccount& account) {
  const fs::path path = checkpoint.folder() / kIntegrityName;
  if (!checkpoint.is_megatron() || kind_behind(path) != EntryKind::File) return;
  const std::string shown = checkpoint.shown_name(kIntegrityName);
  try {
    const File file = open_verified(checkpoint, {kIntegrityName, shown});
    account.take_manifest(read_integrity(file, checkpoint.limits()), shown);
  } catch (const Error& error) {
    if (error.code() == ErrorCode::IoFailure) throw;
    account.find_if_own(
        {CheckKind::Content, Severity::Damage, error.where(), error.problem(), error.hint()});
  }
}

uint64_t own_bytes(const VerifyAccount& account) {
  uint64_t total_bytes = 0;
  for (const VerifiedFile& file : account.files()) {
    if (file.is_own) total_bytes += file.count_bytes;
  }
  return total_bytes;
}

}  // namespace

Findings verify(const Checkpoint& checkpoint, const VerifyOptions& options) {
  std::vector<Finding> strays;
  VerifyAccount account(list_files(checkpoint, options.share, strays), options);
  for (Finding& finding : strays) account.find_if_own(std::move(finding));
  read_manifest(checkpoint, account);
  account.open_accounts();
  WorkMeter meter(options.execution, own_bytes(account));
  PayloadVerifier payloads(checkpoint, account, meter);
  const std::vector<VerifiedItem> items = list_items(checkpoint, account);
  check_items(checkpoint, items, account, payloads);
  if (!options.quick) payloads.run();
  return account.finish();
}

}  // namespace ckpt
