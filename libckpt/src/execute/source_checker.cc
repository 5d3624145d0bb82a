#include "execute/source_checker.h"

#include "execute/payload_reader.h"

namespace ckpt {

std::shared_ptr<SourceChecker::Storage> SourceChecker::storage_at(const StorageRegion& located) {
  const Place place{located.file, located.bytes.offset_bytes, located.bytes.count_bytes};
  const std::scoped_lock lock(mutex_);
  auto& storage = storages_[place];
  if (!storage) storage = std::make_shared<Storage>();
  return storage;
}

void SourceChecker::check_once(const StorageRegion& located, std::span<std::byte> buffer) {
  if (!stated_crc(located)) return;
  const std::shared_ptr<Storage> storage = storage_at(located);
  const std::scoped_lock lock(storage->mutex);
  if (storage->is_sound) return;
  check_storage_crc(located, source_, buffer);
  storage->is_sound = true;
}

}  // namespace ckpt
