#include "base/forward_reader.h"

#include <algorithm>
#include <cstring>

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

}  // namespace ckpt
