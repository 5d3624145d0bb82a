#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

struct ZSTD_CCtx_s;

namespace ckpt {

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
