#include <ckpt/verify.h>

#include "execute/verify_account.h"
#include "execute/verify_files.h"
#include "execute/verify_items.h"
#include "execute/verify_payload.h"
#include "execute/verify_share.h"

namespace ckpt {
namespace {

uint64_t own_bytes(const VerifyAccount& account) {
  uint64_t total_bytes = 0;
  for (const VerifiedFile& file : account.files()) total_bytes += file.own_bytes();
  return total_bytes;
}

}  // namespace

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
