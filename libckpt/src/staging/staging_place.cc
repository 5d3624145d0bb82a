#include "staging/staging_place.h"

#include <ckpt/error.h>

#include <algorithm>

#include "base/text.h"
#include "codec/crc32.h"
#include "io/directory.h"

namespace ckpt {

namespace fs = std::filesystem;

namespace {

constexpr size_t kNameBytesMax = 200;  // of 255, so that there is room for what we add

fs::path checked_destination(const fs::path& destination) {
  fs::path absolute = fs::absolute(destination);
  if (!absolute.has_filename()) absolute = absolute.parent_path();  // "DST/"
  if (!absolute.has_filename() || absolute.filename() == "." || absolute.filename() == "..") {
    throw Error(ErrorCode::InvalidArgument, {destination.string()}, "is not a valid destination");
  }
  return absolute;
}

// NAME, or the start of a long one with a checksum of all of it.
std::string short_name(const std::string& name) {
  if (name.size() <= kNameBytesMax) return name;
  return name.substr(0, kNameBytesMax) + "-" + hex(crc32(std::as_bytes(std::span(name))));
}

// Without links, also where the last name is not there.
fs::path resolved_place(const fs::path& path) {
  if (entry_behind(path).kind != EntryKind::Absent) return resolved(path);
  return resolved(path.parent_path()) / path.filename();
}

bool is_in(const fs::path& inner, const fs::path& outer) {
  return std::ranges::mismatch(outer, inner).in1 == outer.end();
}

}  // namespace

StagingPlace::StagingPlace(const fs::path& given)
    : shown_(given.string()), path_(checked_destination(given)) {
  const std::string name = short_name(path_.filename().string());
  holder_path_ = path_.parent_path() / ("." + name + ".shardwise-partial");
}

const Place& StagingPlace::parent() const {
  if (!parent_) parent_ = Place::held(path_.parent_path());
  return *parent_;
}

void StagingPlace::refuse_overlap(const fs::path& source) const {
  if (source.empty()) return;
  const fs::path to = resolved_place(path_);
  const fs::path from = resolved(source);
  if (are_same(path_, source)) {
    throw Error(ErrorCode::InvalidArgument, {shown_}, "the destination is the source");
  }
  if (is_in(to, from)) {
    throw Error(ErrorCode::InvalidArgument, {shown_}, "the destination lies inside the source");
  }
  if (is_in(from, to)) {
    throw Error(ErrorCode::InvalidArgument, {shown_}, "the destination contains the source");
  }
}

void StagingPlace::refuse_files(const std::vector<fs::path>& files) const {
  if (entry_behind(path_).kind == EntryKind::Absent) return;
  const fs::path to = resolved(path_);
  for (const fs::path& file : files) {
    if (!is_in(resolved(file), to) && !are_same(path_, file)) continue;
    throw Error(ErrorCode::InvalidArgument, {shown_},
                "the destination is or contains a file of the source: " + escaped(file.string()));
  }
}

}  // namespace ckpt
