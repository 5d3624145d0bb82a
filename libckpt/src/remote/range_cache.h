// Ranges of objects, fetched by many threads at once, each once, and kept for a while: who reads a
// file from its beginning finds what comes next there already.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "remote/object_store.h"

namespace ckpt {

// Whether the bytes beside those that are read will be read, too.
enum class ReadUse : uint8_t { ThisRange, Passing };

// Safe to use from many threads.
class RangeCache {
 public:
  struct Fetch;
  // An object that is read. One for all who read it.
  struct Source {
    Source(std::shared_ptr<ObjectStore> of, RemoteObject what)
        : store(std::move(of)), object(std::move(what)) {}
    const std::shared_ptr<ObjectStore> store;
    const RemoteObject object;

   private:
    friend class RangeCache;
    struct Stream {  // somebody who passes over the file
      uint64_t next_bytes = 0, ahead_bytes = 0, window_bytes = 0;
    };
    std::map<uint64_t, std::shared_ptr<Fetch>> fetches;  // by offset; they do not overlap
    std::list<Stream> streams;                           // the last one that read comes first
  };

  RangeCache() = default;
  ~RangeCache();

  // Throws what ObjectStore::read() does.
  void read(Source& source, uint64_t offset_bytes, std::span<std::byte> out, ReadUse use);

  static constexpr uint64_t kKeptBytesMax = uint64_t{96} << 20;

 private:
  using Fetches = std::vector<std::shared_ptr<Fetch>>;

  void read_part(Source& source, uint64_t offset_bytes, std::span<std::byte> out, ReadUse use);
  // All of these hold the mutex.
  Fetches cover(Source& source, ByteRange range);
  void fetch(Source& source, ByteRange range, bool is_urgent, Fetches& all);
  void read_ahead(Source& source, ByteRange range);
  void forget_oldest();

  void work();

  std::mutex mutex_;
  std::condition_variable is_wanted_, is_fetched_;
  std::deque<std::shared_ptr<Fetch>> wanted_;
  std::list<std::shared_ptr<Fetch>> kept_;  // those that were used last come last
  uint64_t kept_bytes_ = 0;
  bool is_stopped_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace ckpt
