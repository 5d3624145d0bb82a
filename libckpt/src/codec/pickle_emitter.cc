// Opcodes of protocols 2 and 4, and the memo.
#include "codec/pickle_emitter.h"

#include <algorithm>
#include <bit>

#include <ckpt/error.h>

#include "codec/python_text.h"

namespace ckpt::pickle {
namespace {

constexpr uint32_t kMemoIndexMax = ~uint32_t{0};
constexpr char kMostRemembered[5] = {};  // an opcode and an index
constexpr uint64_t kStartBytes = 2;
constexpr size_t kBlockBytes = 4 << 10, kWrittenBytes = 64 << 10;

}  // namespace

void Emitter::start() {
  const uint64_t counted_bytes = count_bytes_ + count_in_block();
  is_counting_ = false;
  memo_count_ = 0;
  block_.clear();
  block_.reserve(counted_bytes + kStartBytes);
  next_ = end_ = block_.data();
  put(Op::Proto);
  put_byte(static_cast<uint8_t>(protocol_));
}

std::string Emitter::take() {
  block_.resize(count_in_block());
  return std::move(block_);
}

// What was counted is more than there will be, so that memory is touched as it is written.
void Emitter::make_room(size_t count_bytes) {
  const uint64_t kept_bytes = is_counting_ ? 0 : count_in_block();
  if (is_counting_) count_bytes_ += count_in_block();
  const uint64_t needed_bytes = kept_bytes + count_bytes;
  const uint64_t wanted_bytes =
      is_counting_ ? kBlockBytes : std::min(kept_bytes + kWrittenBytes, block_.capacity());
  block_.resize(std::max({block_.size(), needed_bytes, wanted_bytes}));
  next_ = block_.data() + kept_bytes;
  end_ = block_.data() + block_.size();
}

void Emitter::put_text(Text& text) {
  auto& [uses, memo_index] = text.second;
  if (is_counting_ && ++uses > 1) return get(kMemoIndexMax);
  if (memo_index) return get(*memo_index);
  const auto& [kind, module, name] = text.first;
  kind == Kind::Str ? put_unicode(name) : put_global(module, name);
  if (is_counting_) return put_raw({kMostRemembered, sizeof(kMostRemembered)});
  if (uses >= 2) memo_index = remember();
}

uint32_t Emitter::remember() {
  const uint32_t index = memo_count_++;
  if (protocol_ >= 4) {
    put(Op::Memoize);
  } else {
    put_number(Op::BinPut, Op::LongBinPut, index);
  }
  return index;
}

void Emitter::get(uint32_t memo_index) { put_number(Op::BinGet, Op::LongBinGet, memo_index); }

void Emitter::put_int(int64_t value) {
  const auto bits = static_cast<uint64_t>(value);
  if (value >= 0 && value < 256) return put_little_endian<1>(Op::BinInt1, bits);
  if (value >= 0 && value < 65536) return put_little_endian<2>(Op::BinInt2, bits);
  if (value >= INT32_MIN && value <= INT32_MAX) return put_little_endian<4>(Op::BinInt, bits);
  uint64_t bytes = 8;  // as few as hold it with its sign
  const auto sign_behind = [&] { return value >> (8 * bytes - 9); };
  while (sign_behind() == 0 || sign_behind() == -1) --bytes;
  put_little_endian<1>(Op::Long1, bytes);
  for (uint64_t i = 0; i < bytes; ++i) put_byte(static_cast<uint8_t>(bits >> (8 * i)));
}

void Emitter::put_big_int(std::string_view decimal) {
  const std::string little_endian = little_endian_bytes(decimal);
  put_number(Op::Long1, Op::Long4, little_endian.size());
  put_raw(little_endian);
}

void Emitter::put_float(double value) {
  put(Op::BinFloat);
  const auto bits = std::bit_cast<uint64_t>(value);
  for (int shift = 56; shift >= 0; shift -= 8) put_byte(static_cast<uint8_t>(bits >> shift));
}

void Emitter::put_unicode(std::string_view text) {
  if (protocol_ >= 4) {
    put_number(Op::ShortBinUnicode, Op::BinUnicode, text.size());
  } else {
    put_little_endian<4>(Op::BinUnicode, text.size());
  }
  put_raw(text);
}

void Emitter::put_global(std::string_view module, std::string_view name) {
  if (protocol_ >= 4) {
    put_unicode(module);
    put_unicode(name);
    return put(Op::StackGlobal);
  }
  if (name.find_first_of(".\n") != name.npos || module.find('\n') != module.npos) {
    throw Error(ErrorCode::Unsupported, {.file = {}, .key = std::string(name)},
                "pickle protocol 2 has no such class name");
  }
  put(Op::Global);
  put_raw(module);
  put_raw("\n");
  put_raw(name);
  put_raw("\n");
}

// Protocol 2 has no bytes: Python writes _codecs.encode(latin-1 text, 'latin1').
void Emitter::put_bytes(std::string_view content, bool as_bytearray) {
  if (protocol_ < 4 || as_bytearray) return put_encoded(content, as_bytearray);
  put_number(Op::ShortBinBytes, Op::BinBytes, content.size());
  put_raw(content);
}

void Emitter::put_encoded(std::string_view content, bool as_bytearray) {
  std::string latin1;
  for (const char c : content) append_utf8(latin1, static_cast<uint8_t>(c));
  if (as_bytearray) put_global(protocol_ >= 4 ? "builtins" : "__builtin__", "bytearray");
  put_global("_codecs", "encode");
  put_unicode(latin1);
  put_unicode("latin1");
  put(Op::Tuple2);
  put(Op::Reduce);
  if (as_bytearray) {
    put(Op::Tuple1);
    put(Op::Reduce);
  }
}

}  // namespace ckpt::pickle
