#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
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
  // Text and classes are equal when they look equal. Ordered: see base/text_map.h. Views of what
  // must outlive this.
  using TextKey = std::tuple<Kind, std::string_view, std::string_view>;
  struct TextUse {
    uint32_t uses = 0;
    std::optional<uint32_t> memo_index;
  };
  using Text = std::pair<const TextKey, TextUse>;

  explicit Emitter(int protocol) : protocol_(protocol) {}

  int protocol() const { return protocol_; }
  // From now on what is put is written.
  void start();
  std::string take() { return std::move(out_); }

  Text& text(std::string_view content) { return text_of({Kind::Str, {}, content}); }
  Text& global(std::string_view module, std::string_view name) {
    return text_of({Kind::Global, module, name});
  }
  // The first time itself, then by its place in the memo.
  void put_text(Text& text);

  // Remembers what was just put; returns its place for get().
  uint32_t remember();
  void get(uint32_t memo_index);

  void put(Op op) { put_byte(static_cast<uint8_t>(op)); }
  void put(std::initializer_list<Op> ops) {
    put_raw({reinterpret_cast<const char*>(ops.begin()), ops.size()});
  }
  void put_int(int64_t value);
  void put_big_int(std::string_view decimal);
  void put_float(double value);
  void put_bytes(std::string_view content, bool as_bytearray);
  void put_global(std::string_view module, std::string_view name);

 private:
  Text& text_of(TextKey key) { return *texts_.try_emplace(key).first; }

  void put_byte(uint8_t byte) {
    is_counting_ ? void(++count_bytes_) : out_.push_back(static_cast<char>(byte));
  }
  void put_raw(std::string_view bytes) {
    is_counting_ ? void(count_bytes_ += bytes.size()) : void(out_ += bytes);
  }
  // An opcode and so many bytes of a number, the lowest first.
  void put_little_endian(Op op, uint64_t value, size_t count_bytes) {
    char bytes[1 + sizeof(value)] = {static_cast<char>(op)};
    for (size_t i = 0; i < sizeof(value); ++i) bytes[1 + i] = static_cast<char>(value >> (8 * i));
    put_raw({bytes, 1 + count_bytes});
  }
  // An index or a length: of one byte, or of four.
  void put_number(Op small, Op large, uint64_t number) {
    number < 256 ? put_little_endian(small, number, 1) : put_little_endian(large, number, 4);
  }
  void put_unicode(std::string_view text);
  void put_encoded(std::string_view content, bool as_bytearray);

  int protocol_;
  bool is_counting_ = true;
  uint64_t count_bytes_ = 0;  // what was put before start() takes at most that
  std::string out_;
  std::map<TextKey, TextUse> texts_;
  uint32_t memo_count_ = 0;
};

}  // namespace ckpt::pickle
