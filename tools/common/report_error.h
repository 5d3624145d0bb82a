#pragma once

#include <exception>
#include <string>

namespace tools {

// A failed run, as the user sees it.
struct Failure {
  int exit_code = 70;
  std::string code;  // "usage", "corrupt", "unsupported", "not_found", "already_exists", "io",
                     // "out_of_memory", "internal"
  std::string line;  // the whole text on one line, without the tool's name
  std::string hint;
  std::string file;  // the parts of `line`, for --json; empty if unknown
  long long offset_bytes = -1;
  std::string key;
  std::string problem;
};

Failure describe_failure(const std::exception_ptr& error);

// What a command failed with, when this signal had asked it to stop.
Failure stopped_by(int signal, Failure failure);

// "TOOL: error: LINE" and "hint: HINT" on stderr; under `json` a document with "error" on stdout
// instead, where that can be written.
void report_failure(const std::string& tool, const Failure& failure, bool json);

}  // namespace tools
