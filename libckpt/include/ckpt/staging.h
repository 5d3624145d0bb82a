#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include <ckpt/export.h>
#include <ckpt/target.h>

namespace ckpt {

struct StagingOptions {
  bool force = false;        // replace an existing destination
  bool single_file = false;  // the target is one file, not a folder
  std::string source;  // path of the source: a destination inside it, or around it, is refused
};

// A destination in the making: a folder (or file) beside it on the same file system,
// ".NAME.shardwise-partial". commit() fsyncs and renames it into place; without commit() the
// destructor removes it. A destination is absent, the old one, or complete.
class CKPT_EXPORT Staging {
 public:
  // Throws AlreadyExists, InvalidArgument (destination in source or around it), IoFailure.
  static Staging create(const std::filesystem::path& destination, StagingOptions options = {});
  Staging(Staging&&) noexcept;
  ~Staging();

  const std::filesystem::path& folder() const;  // write here (the file itself, for a single file)
  void commit();

 private:
  struct State;
  explicit Staging(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace ckpt
