#include "io/output_file.h"

#include <fcntl.h>

#include <algorithm>

#include "base/checked_math.h"
#include "io/system_calls.h"

namespace ckpt {

namespace {

constexpr uint64_t kDirectBytesMin = 1 << 20;       // shorter files cost less in the page cache
constexpr size_t kWriteBytesMax = size_t{1} << 30;  // Linux: at most 0x7FFFF000

using Use = OutputFile::Use;

bool is_written_in_blocks(uint64_t size_bytes, Use use) {
  return size_bytes >= kDirectBytesMin && use != Use::Closed;
}

FileDescriptor open_output(const Place& place, uint64_t size_bytes, Use use) {
  if (use == Use::Closed) return open_to_write(place);
  // Who makes it longer than it is would do that behind the back of who has cut it.
  if (use == Use::Shared) return create_or_open_file(place, size_bytes);
  const bool is_long = is_written_in_blocks(size_bytes, use);
  return create_file(place, is_long ? align_up(size_bytes, OutputFile::kBlockBytes) : size_bytes);
}

}  // namespace

OutputFile::OutputFile(const Place& place, uint64_t count_bytes, Use use)
    : descriptor_(open_output(place, count_bytes, use)),
      name_(place.path().string()),
      size_bytes_(count_bytes),
      is_long_(is_written_in_blocks(count_bytes, use)),
      is_too_long_(use == Use::Closed) {
  // O_DIRECT is set after the creation: open() would leave a file behind where it is refused.
  if (is_long_) is_direct_ = system_calls().set_flags(descriptor_.get(), O_DIRECT) == 0;
}

void OutputFile::write_through_the_cache() {
  if (system_calls().set_flags(descriptor_.get(), 0) != 0) {
    throw_errno(name_, "turn off direct I/O", errno);
  }
  is_direct_ = false;
}

void OutputFile::write_at(uint64_t offset_bytes, std::span<const std::byte> blocks) {
  if (offset_bytes + blocks.size() > size_bytes_) {
    is_too_long_ = is_too_long_ || is_long_;
    if (!is_long_) blocks = blocks.first(size_bytes_ - offset_bytes);
  }
  while (!blocks.empty()) {
    const bool was_direct = is_direct_;
    const ssize_t count = system_calls().pwrite(descriptor_.get(), blocks.data(),
                                                std::min(blocks.size(), kWriteBytesMax),
                                                static_cast<off_t>(offset_bytes));
    if (count < 0 && errno == EINTR) continue;
    // Larger blocks are wanted than ours, or an earlier write ended within one.
    if (count < 0 && errno == EINVAL && was_direct) {
      write_through_the_cache();
      continue;
    }
    if (count < 0) throw_errno(name_, "write", errno);
    if (count == 0) throw Error(ErrorCode::IoFailure, {name_, offset_bytes}, "wrote 0 bytes");
    offset_bytes += static_cast<uint64_t>(count);
    blocks = blocks.subspan(static_cast<size_t>(count));
  }
}

void OutputFile::finish() {
  if (!is_too_long_) return;
  const auto size = static_cast<off_t>(size_bytes_);
  if (uninterrupted([&] { return system_calls().ftruncate(descriptor_.get(), size); }) != 0) {
    throw_errno(name_, "set the file size", errno);
  }
}

}  // namespace ckpt
