#include "codec/zstd_stream.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include <zstd.h>
#include <zstd_errors.h>

#include <ckpt/error.h>

namespace ckpt {
namespace {

constexpr uint64_t kBlockBytes = uint64_t{1} << 20;
constexpr uint64_t kBlocksMax = ZstdStream::kWindowBytes / kBlockBytes;
constexpr size_t kInputBytes = size_t{128} << 10;

bool is_out_of_memory(size_t result) {
  return ZSTD_getErrorCode(result) == ZSTD_error_memory_allocation;
}

size_t checked(size_t result) {
  if (!ZSTD_isError(result)) return result;
  if (ZSTD_getErrorCode(result) == ZSTD_error_memory_allocation) throw std::bad_alloc();
  throw Error(ErrorCode::InvalidArgument, {},
              std::string("zstd cannot compress: ") + ZSTD_getErrorName(result));
}

}  // namespace

// Inflates the frames from their start.
class ZstdStream::Decoder {
 public:
  Decoder(const RandomAccess& file, ByteRange frames)
      : file_(file),
        frames_(frames),
        context_(ZSTD_createDCtx(), ZSTD_freeDCtx),
        input_bytes_(std::min<uint64_t>(kInputBytes, frames.count_bytes)) {
    if (!context_) throw std::bad_alloc();
  }

  uint64_t next_block_number = 0;

  // Fills `out` as far as the frames reach; returns how far that is.
  size_t read(std::span<std::byte> out) {
    ZSTD_outBuffer output{out.data(), out.size(), 0};
    while (output.pos < output.size) {
      if (input_.pos == input_.size && !refill()) {
        if (wanted_ != 0) fail("it ends in the middle of a frame");
        break;
      }
      const size_t before = output.pos;
      wanted_ = ZSTD_decompressStream(context_.get(), &output, &input_);
      if (is_out_of_memory(wanted_)) throw std::bad_alloc();
      if (ZSTD_isError(wanted_)) fail(ZSTD_getErrorName(wanted_));
      if (output.pos == before && input_.pos == input_.size && left_bytes() == 0 && wanted_ != 0) {
        fail("it ends in the middle of a frame");
      }
    }
    return output.pos;
  }

 private:
  uint64_t left_bytes() const { return frames_.count_bytes - read_bytes_; }

  bool refill() {
    const uint64_t count = std::min<uint64_t>(input_bytes_.size(), left_bytes());
    if (count == 0) return false;
    file_.read_at(frames_.offset_bytes + read_bytes_, std::span(input_bytes_).first(count));
    read_bytes_ += count;
    input_ = {input_bytes_.data(), count, 0};
    return true;
  }

  [[noreturn]] void fail(const std::string& problem) const {
    throw Error(ErrorCode::Corrupt, {file_.file_name(), frames_.offset_bytes, {}},
                "the zstd stream is damaged: " + problem);
  }

  const RandomAccess& file_;
  ByteRange frames_;
  std::unique_ptr<ZSTD_DCtx, size_t (*)(ZSTD_DCtx*)> context_;
  std::vector<std::byte> input_bytes_;
  ZSTD_inBuffer input_{nullptr, 0, 0};
  uint64_t read_bytes_ = 0;  // of the frames
  size_t wanted_ = 0;        // 0: a frame is complete
};

ZstdStream::ZstdStream(const RandomAccess& file, ByteRange frames, uint64_t count_bytes_max)
    : file_(file), frames_(frames), decoder_(std::make_unique<Decoder>(file, frames)) {
  for (;;) {
    const Block& last = next_block();
    size_bytes_ += last.bytes.size();
    if (size_bytes_ > count_bytes_max) {
      throw Error(ErrorCode::Corrupt, {file.file_name(), frames.offset_bytes, {}},
                  "the zstd stream decompresses to more than the " +
                      std::to_string(count_bytes_max) + " bytes");
    }
    if (last.bytes.size() < kBlockBytes) break;
  }
}

ZstdStream::~ZstdStream() = default;

uint64_t ZstdStream::kept_bytes() const {
  const std::scoped_lock lock(mutex_);
  return std::min<uint64_t>(size_bytes_, blocks_.size() * kBlockBytes);
}

const ZstdStream::Block& ZstdStream::next_block() const {
  Block block{decoder_->next_block_number++, {}};
  if (blocks_.size() == kBlocksMax) {
    block.bytes = std::move(blocks_.front().bytes);  // its memory is used again
    blocks_.pop_front();
  }
  block.bytes.resize(kBlockBytes);
  block.bytes.resize(decoder_->read(block.bytes));
  if (block.number == 0) block.bytes.shrink_to_fit();  // most streams are short
  return blocks_.emplace_back(std::move(block));
}

const ZstdStream::Block& ZstdStream::block(uint64_t number) const {
  if (blocks_.empty() || number < blocks_.front().number) {
    blocks_.clear();
    decoder_ = std::make_unique<Decoder>(file_, frames_);
  }
  while (blocks_.empty() || blocks_.back().number < number) next_block();
  return blocks_[number - blocks_.front().number];
}

void ZstdStream::read_at(uint64_t offset_bytes, std::span<std::byte> out) const {
  if (offset_bytes > size_bytes_ || out.size() > size_bytes_ - offset_bytes) {
    throw Error(ErrorCode::Corrupt, {file_.file_name(), frames_.offset_bytes, {}},
                "the zstd stream ends early: it holds " + std::to_string(size_bytes_) + " bytes");
  }
  const std::scoped_lock lock(mutex_);
  while (!out.empty()) {
    const uint64_t number = offset_bytes / kBlockBytes;
    const std::span<const std::byte> whole_block = block(number).bytes;
    const auto bytes = whole_block.subspan(offset_bytes % kBlockBytes);
    const size_t count = std::min(bytes.size(), out.size());
    std::memcpy(out.data(), bytes.data(), count);
    out = out.subspan(count);
    offset_bytes += count;
  }
}

ZstdCompressor::ZstdCompressor(int level, unsigned threads)
    : context_(ZSTD_createCCtx(), ZSTD_freeCCtx),
      room_bytes_(ZSTD_CStreamOutSize()),
      room_(std::make_unique_for_overwrite<std::byte[]>(room_bytes_)) {
  if (!context_) throw std::bad_alloc();
  checked(ZSTD_CCtx_setParameter(context_.get(), ZSTD_c_compressionLevel, level));
  checked(ZSTD_CCtx_setParameter(context_.get(), ZSTD_c_checksumFlag, 1));
  // A library without threads refuses any number of them. With one or more the frames are the same.
  const int workers = static_cast<int>(std::max(1U, threads));
  ZSTD_CCtx_setParameter(context_.get(), ZSTD_c_nbWorkers, workers);
}

void ZstdCompressor::start(uint64_t content_count_bytes) {
  checked(ZSTD_CCtx_reset(context_.get(), ZSTD_reset_session_only));
  checked(ZSTD_CCtx_setPledgedSrcSize(context_.get(), content_count_bytes));
}

void ZstdCompressor::add(std::span<const std::byte> content, bool last, const Sink& sink) {
  ZSTD_inBuffer input{content.data(), content.size(), 0};
  const ZSTD_EndDirective mode = last ? ZSTD_e_end : ZSTD_e_continue;
  for (;;) {
    ZSTD_outBuffer output{room_.get(), room_bytes_, 0};
    const size_t left = checked(ZSTD_compressStream2(context_.get(), &output, &input, mode));
    if (output.pos > 0) sink({room_.get(), output.pos});
    if (last ? left == 0 : input.pos == input.size) return;
  }
}

}  // namespace ckpt
