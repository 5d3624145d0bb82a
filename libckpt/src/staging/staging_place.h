#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "io/place.h"

namespace ckpt {

// A destination NAME, and .NAME.shardwise-partial beside it, where it is made (staging_holder.h).
class StagingPlace {
 public:
  // Opens nothing. Throws InvalidArgument for what names nothing.
  explicit StagingPlace(const std::filesystem::path& destination);

  // As the caller wrote it, for errors; absolute; and the folder beside it.
  const std::string& shown() const { return shown_; }
  const std::filesystem::path& path() const { return path_; }
  const std::filesystem::path& holder_path() const { return holder_path_; }

  // The folder of both, held open from the first call on. Throws NotFound, IoFailure.
  const Place& parent() const;
  Place destination() const { return parent() / path_.filename(); }
  Place holder() const { return parent() / holder_path_.filename(); }

  // Throws InvalidArgument where the destination is in `source`, around it, or it.
  void refuse_overlap(const std::filesystem::path& source) const;
  // The same where the destination is one of a source's files, or holds one: they may be several of
  // a folder, and some may lie elsewhere, behind links.
  void refuse_files(const std::vector<std::filesystem::path>& files) const;

 private:
  std::string shown_;
  std::filesystem::path path_, holder_path_;
  mutable std::optional<Place> parent_;
};

}  // namespace ckpt
