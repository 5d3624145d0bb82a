#pragma once

#include <string>
#include <vector>

#include <common/json.h>
#include <training/repair.h>

namespace CLI {
class App;
}

namespace tools {

class Console;

// --repair [KIND,...], --accept-loss and --like. `lists`: no kind was named.
void declare_repair(CLI::App& app, optim::RepairOptions& repair, bool& lists);

// What could be mended in a checkpoint.
void print_repairs(const std::vector<optim::RepairFinding>& found, const std::string& source,
                   Console& console);
// What was mended, in the report of a conversion.
void print_mended(const std::vector<optim::RepairFinding>& repairs, Console& console);
nlohmann::json repairs_json(const std::vector<optim::RepairFinding>& repairs);

}  // namespace tools
