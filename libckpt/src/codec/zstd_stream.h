#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include <ckpt/catalog.h>
#include <ckpt/folder.h>

struct ZSTD_CCtx_s;

namespace ckpt {

// What one or more zstd frames (RFC 8878) back to back inflate to, readable at any place: a decoder
// runs forward, the last blocks are kept, and what lies before them is inflated again. Memory: at
// most kWindowBytes, and what the decoder needs. Safe to use from many threads.
class ZstdStream final : public RandomAccess {
 public:
  static constexpr uint64_t kWindowBytes = uint64_t{32} << 20;

  // Inflates once, to know the size. `file` must outlive it. Throws Corrupt where the frames are
  // damaged or cut, are followed by something else, or inflate to more than `count_bytes_max`.
  ZstdStream(const RandomAccess& file, ByteRange frames, uint64_t count_bytes_max);
  ~ZstdStream() override;

  uint64_t size_bytes() const override { return size_bytes_; }
  void read_at(uint64_t offset_bytes, std::span<std::byte> out) const override;
  const std::string& file_name() const override { return file_.file_name(); }
  uint64_t kept_bytes() const;  // memory that the kept blocks take

 private:
  class Decoder;
  struct Block {
    uint64_t number;
    std::vector<std::byte> bytes;
  };

  const Block& block(uint64_t number) const;  // mutex_ is held
  const Block& next_block() const;

  const RandomAccess& file_;
  ByteRange frames_;
  uint64_t size_bytes_ = 0;
  mutable std::mutex mutex_;
  mutable std::unique_ptr<Decoder> decoder_;
  mutable std::deque<Block> blocks_;  // the last ones, in order
};

// Makes zstd frames (RFC 8878), each with its content's size and checksum. What a frame holds
// depends on content and level alone, not on the number of threads. For one thread at a time.
class ZstdCompressor {
 public:
  static constexpr int kLevelMin = 1, kLevelMax = 19;  // higher ones need 128 MiB to inflate

  ZstdCompressor(int level, unsigned threads);

  using Sink = std::function<void(std::span<const std::byte>)>;
  void start(uint64_t content_count_bytes);
  // `last`: the content ends here, and so does the frame.
  void add(std::span<const std::byte> content, bool last, const Sink& sink);

 private:
  std::unique_ptr<ZSTD_CCtx_s, size_t (*)(ZSTD_CCtx_s*)> context_;
  size_t room_bytes_;
  std::unique_ptr<std::byte[]> room_;
};

}  // namespace ckpt
