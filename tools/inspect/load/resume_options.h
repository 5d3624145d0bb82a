#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <common/console.h>

#include "inspect/load/resume.h"

namespace CLI {
class App;
}

namespace tools::inspect {

// Arguments of a Megatron run that is to go on from a checkpoint.
struct ResumeOptions {
  std::string target_megatron;
  std::string launch;                  // a file
  std::vector<std::string> arguments;  // NAME=VALUE, NAME
  optim::SizeChange sizes;
  bool accepts_next_step = false;

  void declare(CLI::App& app);
  bool are_given() const;
  // Throws InvalidArgument where no release is named, or an argument is not NAME=VALUE.
  ResumeRun run(const ResumeFacts& checkpoint) const;
};

// For users: the verdict in one line, and why, in lines of its own.
std::string verdict_text(const ResumeCertificate& certificate);
std::string details_text(const ResumeCertificate& certificate);

// Prints the certificate; returns the exit code.
int print_certificate(Console& console, const ResumeCertificate& certificate,
                      bool accepts_next_step);

}  // namespace tools::inspect
