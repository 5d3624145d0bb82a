#include "common/report_error.h"

#include <ckpt/error.h>
#include <common/console.h>
#include <common/json.h>

#include <unistd.h>

#include <CLI/Error.hpp>
#include <iostream>
#include <new>
#include <system_error>

namespace tools {
namespace {

struct CodeRow {
  ckpt::ErrorCode code;
  int exit_code;
  const char* name;
};
constexpr CodeRow kCodes[] = {
    {ckpt::ErrorCode::InvalidArgument, 2, "usage"},
    {ckpt::ErrorCode::Corrupt, 3, "corrupt"},
    {ckpt::ErrorCode::Unsupported, 4, "unsupported"},
    {ckpt::ErrorCode::NotFound, 5, "not_found"},
    {ckpt::ErrorCode::AlreadyExists, 5, "already_exists"},
    {ckpt::ErrorCode::IoFailure, 5, "io"},
};

// CLI11 and the standard library quote arguments as they are: keep the message on one line.
std::string one_line(std::string text) {
  for (char& character : text) {
    if (static_cast<unsigned char>(character) < 0x20 || character == 0x7F) character = ' ';
  }
  return text;
}

Failure make_failure(int exit_code, const char* code, std::string problem) {
  Failure failure;
  failure.exit_code = exit_code;
  failure.code = code;
  failure.line = failure.problem = one_line(std::move(problem));
  return failure;
}

Failure from_bad_alloc() {
  Failure failure = make_failure(5, "out_of_memory", "out of memory");
  failure.hint = "fewer threads (-j N) need less memory; limits of the process are in `ulimit -a`";
  return failure;
}

// Thrown by what starts a thread.
Failure from_system_error(const std::system_error& error) {
  if (error.code() != std::errc::resource_unavailable_try_again) {
    return make_failure(5, "io", error.what());
  }
  Failure failure = make_failure(5, "io", "cannot start a thread: " + error.code().message());
  failure.hint = "fewer threads: -j N";
  return failure;
}

Failure from_error(const ckpt::Error& error) {
  Failure failure = make_failure(70, "internal", error.what());
  for (const CodeRow& row : kCodes) {
    if (row.code != error.code()) continue;
    failure.exit_code = row.exit_code;
    failure.code = row.name;
  }
  failure.hint = one_line(error.hint());
  failure.file = error.where().file;
  failure.key = error.where().key;
  failure.problem = error.problem();
  if (error.where().offset_bytes) {
    failure.offset_bytes = static_cast<long long>(*error.where().offset_bytes);
  }
  return failure;
}

nlohmann::json to_json(const Failure& failure) {
  nlohmann::json error = {{"code", failure.code},
                          {"exit_code", failure.exit_code},
                          {"message", json_text(failure.line)},
                          {"problem", json_text(failure.problem)}};
  if (!failure.hint.empty()) error["hint"] = json_text(failure.hint);
  if (!failure.file.empty()) error["file"] = json_text(failure.file);
  if (!failure.key.empty()) error["key"] = json_text(failure.key);
  if (failure.offset_bytes >= 0) error["offset_bytes"] = failure.offset_bytes;
  nlohmann::json document = json_document();
  document["error"] = std::move(error);
  return document;
}

// CLI11 says "--limit: 1 required UINT missing".
std::string without_type(const std::string& problem) {
  const size_t found = problem.find(": 1 required ");
  return found == problem.npos ? problem : problem.substr(0, found) + " needs a value";
}

}  // namespace

Failure describe_failure(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const ckpt::Error& known) {
    return from_error(known);
  } catch (const CLI::ArgumentMismatch& usage) {
    return make_failure(2, "usage", without_type(usage.what()));
  } catch (const CLI::ParseError& usage) {
    return make_failure(2, "usage", usage.what());
  } catch (const std::bad_alloc&) {
    return from_bad_alloc();
  } catch (const std::system_error& failed) {
    return from_system_error(failed);
  } catch (const std::exception& unexpected) {
    return make_failure(70, "internal", std::string("internal error: ") + unexpected.what());
  } catch (...) {
    return make_failure(70, "internal", "internal error: an exception of unknown type");
  }
}

Failure stopped_by(int signal, Failure failure) {
  failure.exit_code = 128 + signal;
  failure.code = "interrupted";
  if (failure.line == "cancelled") failure.line = failure.problem = "interrupted";
  return failure;
}

void report_failure(const std::string& tool, const Failure& failure, bool json) {
  if (json) {
    std::cout << printable_json(to_json(failure).dump(2)) << '\n' << std::flush;
    if (std::cout) return;
  }
  const Screen screen = Screen::of(STDERR_FILENO);
  std::cerr << fitted(tool + ": error: " + failure.line, screen) << '\n';
  if (!failure.hint.empty()) std::cerr << fitted("hint: " + failure.hint, screen) << '\n';
}

}  // namespace tools
