#include "remote/range_cache.h"

#include <algorithm>
#include <cstring>
#include <iterator>

namespace ckpt {
namespace {

constexpr uint64_t kBlockBytes = 64 << 10;    // fetched at least: the next field is near
constexpr uint64_t kFetchBytesMax = 4 << 20;  // in one request
constexpr uint64_t kPartBytesMax = 32 << 20;  // of one reader at a time
// Read ahead where a file is read from front to back.
constexpr uint64_t kWindowBytesMin = 512 << 10;
constexpr uint64_t kWindowBytesMax = 8 << 20;
constexpr uint64_t kNearBytes = 1 << 20;  // headers and ends of archives are read out of order
constexpr size_t kStreamsMax = 32;
constexpr size_t kThreads = 16;

}  // namespace

struct RangeCache::Fetch {
  Source& source;
  ByteRange range;
  std::unique_ptr<std::byte[]> bytes = nullptr;
  std::exception_ptr error = nullptr;
  bool is_done = false;
  std::list<std::shared_ptr<Fetch>>::iterator kept = {};
};

RangeCache::~RangeCache() {
  {
    const std::scoped_lock lock(mutex_);
    is_stopped_ = true;
    for (const auto& fetch : kept_) fetch->source.store->stop();
  }
  is_wanted_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void RangeCache::read(Source& source, uint64_t offset_bytes, std::span<std::byte> out,
                      ReadUse use) {
  while (!out.empty()) {
    const auto part = out.first(std::min<uint64_t>(out.size(), kPartBytesMax));
    read_part(source, offset_bytes, part, use);
    offset_bytes += part.size();
    out = out.subspan(part.size());
  }
}

void RangeCache::read_part(Source& source, uint64_t offset_bytes, std::span<std::byte> out,
                           ReadUse use) {
  const ByteRange range{offset_bytes, out.size()};
  std::unique_lock lock(mutex_);
  const Fetches fetches = cover(source, range);
  if (use == ReadUse::Passing) read_ahead(source, range);
  for (const std::shared_ptr<Fetch>& fetch : fetches) {
    is_fetched_.wait(lock, [&] { return fetch->is_done; });
    if (fetch->error) std::rethrow_exception(fetch->error);
  }
  lock.unlock();
  for (const std::shared_ptr<Fetch>& fetch : fetches) {
    const uint64_t first = std::max(offset_bytes, fetch->range.offset_bytes);
    const uint64_t end = std::min(range.end_bytes(), fetch->range.end_bytes());
    std::memcpy(out.data() + (first - offset_bytes),
                fetch->bytes.get() + (first - fetch->range.offset_bytes), end - first);
  }
}

RangeCache::Fetches RangeCache::cover(Source& source, ByteRange range) {
  Fetches all;
  uint64_t at = range.offset_bytes;
  const auto behind = source.fetches.upper_bound(at);
  if (behind != source.fetches.begin()) {
    const std::shared_ptr<Fetch>& before = std::prev(behind)->second;
    if (before->range.end_bytes() > at) at = before->range.offset_bytes;
  }
  while (at < range.end_bytes()) {
    const auto found = source.fetches.lower_bound(at);
    if (found != source.fetches.end() && found->first == at) {
      all.push_back(found->second);
      kept_.splice(kept_.end(), kept_, found->second->kept);
      at = found->second->range.end_bytes();
      continue;
    }
    const uint64_t end = found == source.fetches.end() ? range.end_bytes()
                                                       : std::min(range.end_bytes(), found->first);
    fetch(source, {at, end - at}, true, all);
    at = all.back()->range.end_bytes();
  }
  return all;
}

// Rounded to whole blocks, as far as nothing else holds them, and cut for several threads.
void RangeCache::fetch(Source& source, ByteRange range, bool is_urgent, Fetches& all) {
  uint64_t first = range.offset_bytes, end = range.end_bytes();
  const auto behind = source.fetches.lower_bound(first);
  if (range.count_bytes < kBlockBytes) {
    const uint64_t free_from =
        behind == source.fetches.begin() ? 0 : std::prev(behind)->second->range.end_bytes();
    const uint64_t free_until =
        behind == source.fetches.end() ? source.object.count_bytes : behind->first;
    first = std::max(first / kBlockBytes * kBlockBytes, free_from);
    end = std::min((end + kBlockBytes - 1) / kBlockBytes * kBlockBytes, free_until);
  }
  Fetches made;
  for (uint64_t at = first; at < end; at = made.back()->range.end_bytes()) {
    made.push_back(
        std::make_shared<Fetch>(Fetch{source, {at, std::min(end - at, kFetchBytesMax)}}));
    made.back()->kept = kept_.insert(kept_.end(), made.back());
    kept_bytes_ += made.back()->range.count_bytes;
    source.fetches.emplace(at, made.back());
  }
  wanted_.insert(is_urgent ? wanted_.begin() : wanted_.end(), made.begin(), made.end());
  std::ranges::move(made, std::back_inserter(all));
  while (threads_.size() < std::min(kThreads, wanted_.size())) {
    threads_.emplace_back([this] { work(); });
  }
  is_wanted_.notify_all();
  forget_oldest();
}

void RangeCache::read_ahead(Source& source, ByteRange range) {
  const auto is_near = [&](const Source::Stream& stream) {
    return range.offset_bytes + kNearBytes >= stream.next_bytes &&
           range.offset_bytes <= stream.next_bytes + kNearBytes;
  };
  const auto found = std::ranges::find_if(source.streams, is_near);
  if (found == source.streams.end()) {
    source.streams.push_front({range.end_bytes(), range.end_bytes(), 0});
    if (source.streams.size() > kStreamsMax) source.streams.pop_back();
    return;
  }
  source.streams.splice(source.streams.begin(), source.streams, found);
  Source::Stream& stream = source.streams.front();
  stream.next_bytes = std::max(stream.next_bytes, range.end_bytes());
  stream.ahead_bytes = std::max(stream.ahead_bytes, stream.next_bytes);
  stream.window_bytes = std::clamp(2 * std::max(stream.window_bytes, range.count_bytes),
                                   kWindowBytesMin, kWindowBytesMax);
  if (stream.ahead_bytes - stream.next_bytes > stream.window_bytes / 2) return;
  const uint64_t until =
      std::min(stream.next_bytes + stream.window_bytes, source.object.count_bytes);
  Fetches none;
  while (stream.ahead_bytes < until && kept_bytes_ < kKeptBytesMax) {
    const uint64_t at = stream.ahead_bytes;
    const auto behind = source.fetches.upper_bound(at);
    if (behind != source.fetches.begin() &&
        std::prev(behind)->second->range.end_bytes() > at) {  // is there already
      stream.ahead_bytes = std::prev(behind)->second->range.end_bytes();
      continue;
    }
    const uint64_t end = behind == source.fetches.end() ? until : std::min(until, behind->first);
    fetch(source, {at, end - at}, false, none);
    stream.ahead_bytes = std::max(end, none.back()->range.end_bytes());
  }
}

void RangeCache::forget_oldest() {
  for (auto oldest = kept_.begin(); oldest != kept_.end() && kept_bytes_ > kKeptBytesMax;) {
    const std::shared_ptr<Fetch> fetch = *oldest;
    if (!fetch->is_done) {
      ++oldest;
      continue;
    }
    kept_bytes_ -= fetch->range.count_bytes;
    fetch->source.fetches.erase(fetch->range.offset_bytes);
    oldest = kept_.erase(oldest);
  }
}

void RangeCache::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    is_wanted_.wait(lock, [this] { return is_stopped_ || !wanted_.empty(); });
    if (is_stopped_) return;
    const std::shared_ptr<Fetch> fetch = std::move(wanted_.front());
    wanted_.pop_front();
    lock.unlock();
    std::exception_ptr error;
    const size_t count = fetch->range.count_bytes;
    std::unique_ptr<std::byte[]> bytes;
    try {
      bytes = std::make_unique_for_overwrite<std::byte[]>(count);
      fetch->source.store->read(fetch->source.object, fetch->range.offset_bytes,
                                {bytes.get(), count});
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    fetch->bytes = std::move(bytes);
    fetch->error = error;
    fetch->is_done = true;
    if (error) {  // who asks again gets another try
      kept_bytes_ -= fetch->range.count_bytes;
      fetch->source.fetches.erase(fetch->range.offset_bytes);
      kept_.erase(fetch->kept);
    }
    is_fetched_.notify_all();
  }
}

}  // namespace ckpt
