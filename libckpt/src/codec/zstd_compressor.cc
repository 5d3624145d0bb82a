#include "codec/zstd_compressor.h"

#include <zstd.h>
#include <zstd_errors.h>

#include <algorithm>
#include <new>
#include <string>

#include <ckpt/error.h>

namespace ckpt {
namespace {

size_t checked(size_t result) {
  if (!ZSTD_isError(result)) return result;
  if (ZSTD_getErrorCode(result) == ZSTD_error_memory_allocation) throw std::bad_alloc();
  throw Error(ErrorCode::InvalidArgument, {},
              std::string("zstd cannot compress: ") + ZSTD_getErrorName(result));
}

}  // namespace

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
