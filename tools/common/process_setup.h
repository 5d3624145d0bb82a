#pragma once

namespace tools {

// What every tool does before anything else, so that limits of the process end it with an error and
// nothing half is left, and no file takes the place of a closed stdin, stdout or stderr.
void set_up_process();

// Throws IoFailure where stdout is closed, or open for reading alone.
void refuse_closed_stdout();

}  // namespace tools
