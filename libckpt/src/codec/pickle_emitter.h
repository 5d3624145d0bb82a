#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>

#include <ckpt/value.h>

#include "codec/pickle_opcodes.h"

namespace ckpt::pickle {

inline constexpr size_t kBatchItems = 1000;  // as Python: bounds the reader's stack

// The opcodes of one pickle, in the order in which they are put, and what of it is remembered.
// What is used again must be remembered when it is first put, so text and classes are put once
// more, before start(): that only counts. Everything else may be put before it, too, which tells
// how many bytes there will be.
class Emitter {
 public:
  // Text and classes are equal when they look equal. Ordered: see base/text.h. Views of what
  // must outlive this.
  using TextKey = std::tuple<Kind, std::string_view, std::string_view>;
  struct TextUse {
    uint32_t uses = 0;
    std::optional<uint32_t> memo_index;
  };
  using Text = std::pair<const TextKey, TextUse>;

  explicit Emitter(int protocol) : protocol_(protocol) {}
  Emitter(const Emitter&) = delete;  // pointers lead into its own block
  Emitter& operator=(const Emitter&) = delete;

  int protocol() const { return protocol_; }
  // From now on what is put is written.
  void start();
  std::string take();

  Text& text(std::string_view content) { return text_of({Kind::Str, {}, content}); }
  Text& global(std::string_view module, std::string_view name) {
    return text_of({Kind::Global, module, name});
  }
  // The first time itself, then by its place in the memo.
  void put_text(Text& text);

  // Remembers what was just put; returns its place for get().
  uint32_t remember();
  void get(uint32_t memo_index);

  void put(std::same_as<Op> auto... ops) {
    char* at = room(sizeof...(ops));
    ((*at++ = static_cast<char>(ops)), ...);
  }
  void put_int(int64_t value);
  void put_big_int(std::string_view decimal);
  void put_float(double value);
  void put_bytes(std::string_view content, bool as_bytearray);
  void put_global(std::string_view module, std::string_view name);

 private:
  Text& text_of(TextKey key) { return *texts_.try_emplace(key).first; }

  // Where the next bytes go, so many.
  char* room(size_t count_bytes) {
    if (static_cast<size_t>(end_ - next_) < count_bytes) make_room(count_bytes);
    return std::exchange(next_, next_ + count_bytes);
  }
  void make_room(size_t count_bytes);
  uint64_t count_in_block() const { return static_cast<uint64_t>(next_ - block_.data()); }

  void put_byte(uint8_t byte) { *room(1) = static_cast<char>(byte); }
  void put_raw(std::string_view bytes) { bytes.copy(room(bytes.size()), bytes.size()); }
  // An opcode and the lowest `kBytes` bytes of a number, the lowest first.
  template <size_t kBytes>
  void put_little_endian(Op op, uint64_t value) {
    char* const bytes = room(1 + kBytes);
    bytes[0] = static_cast<char>(op);
    for (size_t i = 0; i < kBytes; ++i) bytes[1 + i] = static_cast<char>(value >> (8 * i));
  }
  // An index or a length: of one byte, or of four.
  void put_number(Op small, Op large, uint64_t number) {
    number < 256 ? put_little_endian<1>(small, number) : put_little_endian<4>(large, number);
  }
  void put_unicode(std::string_view text);
  void put_encoded(std::string_view content, bool as_bytearray);

  int protocol_;
  bool is_counting_ = true;
  // While it counts, a block that is filled again and again; then what will be returned.
  std::string block_;
  char *next_ = block_.data(), *end_ = next_;
  uint64_t count_bytes_ = 0;  // of what was counted in earlier blocks
  std::map<TextKey, TextUse> texts_;
  uint32_t memo_count_ = 0;
};

}  // namespace ckpt::pickle
