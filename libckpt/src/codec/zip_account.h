#pragma once

#include <ckpt/verify.h>

#include <span>
#include <vector>

#include "codec/zip.h"

namespace ckpt::zip {

// A run of an archive's bytes. `member`: whose data it is, as an index; kNoMember elsewhere.
inline constexpr size_t kNoMember = SIZE_MAX;
struct AccountedRange {
  ByteRange bytes;  // in the file
  ByteLabel label = ByteLabel::Padding;
  size_t member = kNoMember;
};

// Labels every byte of an archive that read_directory() accepted, in order and without holes, and
// is stricter than any reader needs to be: extra fields must fill their place, a promised
// descriptor must be there. Throws Error(Corrupt) with the offset in the file.
std::vector<AccountedRange> account_archive(const RandomAccess& file, ByteRange archive,
                                            std::span<const Member> members);

}  // namespace ckpt::zip
