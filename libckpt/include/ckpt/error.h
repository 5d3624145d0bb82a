#pragma once

#include <cstdint>
#include <exception>
#include <optional>
#include <string>
#include <string_view>

#include <ckpt/export.h>

namespace ckpt {

// What went wrong, as far as a caller can act on it. The tools' exit codes follow from it (design:
// exit codes).
enum class ErrorCode : uint8_t {
  InvalidArgument,  // the request makes no sense, whatever the files hold     -> exit 2
  Corrupt,          // malformed, damaged or unsafe input                      -> exit 3
  Unsupported,      // understood but not handled, or refused by request       -> exit 4
  NotFound,         // a file, a key, an iteration that is not there           -> exit 5
  AlreadyExists,    // the destination exists                                  -> exit 5
  IoFailure,        // the operating system said no                            -> exit 5
};

// Where it went wrong. Empty members are unknown; `offset_bytes` counts from the start of `file`.
struct Where {
  std::string file;
  std::optional<uint64_t> offset_bytes = std::nullopt;
  std::string key = {};
};

// The only exception that the libraries throw on purpose. what() is one printable line:
// "FILE @OFFSET 'KEY': PROBLEM", names escaped.
class CKPT_EXPORT Error : public std::exception {
 public:
  Error(ErrorCode code, Where where, std::string problem, std::string hint = {});

  ErrorCode code() const noexcept { return code_; }
  const Where& where() const noexcept { return where_; }
  const std::string& problem() const noexcept { return problem_; }
  const std::string& hint() const noexcept { return hint_; }
  const char* what() const noexcept override { return line_.c_str(); }

  // Fills in what an outer layer knows and the thrower did not; never overwrites.
  Error& within(const Where& outer);
  // Gives a hint to an error that has none.
  Error& hinted(std::string hint);
  // Puts `folder` before the name of the file, where there is one and the folder is not there yet.
  Error& below(const std::string& folder);

  // Whether a part of a checkpoint is missing, or ends early: an incomplete copy leaves it so.
  bool is_incomplete() const noexcept { return is_incomplete_; }
  CKPT_PRIVATE Error& mark_incomplete();

 private:
  CKPT_PRIVATE void compose();

  ErrorCode code_;
  Where where_;
  std::string problem_;
  std::string hint_;
  std::string line_;
  bool is_incomplete_ = false;
};

// What `run` gives; of an error that it throws it is said where that was, as by Error::within().
template <class Run>
decltype(auto) within(const std::string& file, const std::string& key, const Run& run) {
  try {
    return run();
  } catch (Error& error) {
    throw error.within({file, std::nullopt, key});
  }
}

// A name from a file, fit for a terminal: control characters and bytes that are not UTF-8 become
// \xNN or \uNNNN; a backslash is put before quotes and backslashes.
CKPT_EXPORT std::string escaped(std::string_view name);

}  // namespace ckpt
