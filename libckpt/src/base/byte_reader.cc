#include "base/byte_reader.h"

#include <bit>
#include <cstring>
#include <utility>

namespace ckpt {
namespace {

constexpr size_t kWindowBytes = size_t{1} << 20;

}  // namespace

ForwardReader::ForwardReader(const RandomAccess& file)
    : file_(file),
      window_bytes_(static_cast<size_t>(std::min<uint64_t>(kWindowBytes, file.size_bytes()))),
      window_(window_bytes_ + kPaddingBytes),
      left_bytes_(file.size_bytes()) {}

bool ForwardReader::fill(size_t count) {
  if (count > window_bytes_ || count > left_bytes()) return false;
  std::memmove(window_.data(), window_.data() + at_, end_ - at_);
  end_ -= at_;
  at_ = 0;
  const auto more = static_cast<size_t>(std::min<uint64_t>(window_bytes_ - end_, left_bytes_));
  file_.read_at(file_.size_bytes() - left_bytes_, {window_.data() + end_, more});
  end_ += more;
  left_bytes_ -= more;
  std::memset(window_.data() + end_, 0, kPaddingBytes);
  return true;
}

double ByteReader::f64_be() { return std::bit_cast<double>(__builtin_bswap64(u64())); }

std::string_view ByteReader::text(uint64_t count) {
  const auto content = bytes(count);
  return {reinterpret_cast<const char*>(content.data()), content.size()};
}

std::string_view ByteReader::line() {
  const void* start = bytes_.data() + position_;
  const void* end = left_bytes() == 0 ? nullptr : std::memchr(start, '\n', left_bytes());
  if (end == nullptr) {
    ran_out_ = true;
    fail("expected a line that ends in a newline");
  }
  const auto count = static_cast<const std::byte*>(end) - static_cast<const std::byte*>(start);
  const std::string_view content = text(static_cast<uint64_t>(count));
  ++position_;
  return content;
}

uint64_t ByteReader::count_of(uint64_t count, uint64_t item_bytes) const {
  if (item_bytes != 0 && count > left_bytes() / item_bytes) {
    fail("the count " + std::to_string(count) + " is too large: only " +
         std::to_string(left_bytes()) + " bytes are left");
  }
  return count;
}

void ByteReader::seek(size_t position) {
  if (position > bytes_.size()) fail("the offset lies beyond the end of the data");
  position_ = position;
}

void ByteReader::fail_at(size_t position, std::string problem) const {
  throw Error(ErrorCode::Corrupt, {std::string(file_), base_offset_bytes_ + position},
              std::move(problem));
}

void ByteReader::fail_short(uint64_t count) const {
  ran_out_ = true;
  fail("ends early: expected " + std::to_string(count) + " more bytes, found " +
       std::to_string(left_bytes()));
}

std::string truncated_text(uint64_t found_bytes, std::optional<uint64_t> expected_bytes) {
  const std::string found = std::to_string(found_bytes);
  if (!expected_bytes) return "truncated after " + found + " bytes; copy it again";
  return "truncated: " + found + " of " + std::to_string(*expected_bytes) + " bytes; copy it again";
}

Error truncated(Where where, uint64_t found_bytes, std::optional<uint64_t> expected_bytes) {
  Error error(ErrorCode::Corrupt, std::move(where), truncated_text(found_bytes, expected_bytes));
  error.mark_incomplete();
  return error;
}

}  // namespace ckpt
