#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace tools {

struct HelpText;

struct ManualPage {
  const CLI::App* app;
  const HelpText* text;
};

// Writes what --help says as files under `folder`, which is like /usr: a manual page for each of
// `pages`, of which the program's is the first, and completions for bash and zsh, where `commands`
// are the words that may come first. Throws IoFailure.
void write_manual(const std::string& folder, const std::vector<ManualPage>& pages,
                  const std::vector<std::string>& commands);

}  // namespace tools
