#pragma once

#include <common/run_tool.h>

namespace tools::inspect {

Command make_summary_command();  // the one without a word
Command make_ls_command();
Command make_show_command();
Command make_tree_command();
Command make_verify_command();
Command make_hash_command();
Command make_diff_command();
Command make_groups_command();
Command make_latest_command();
Command make_lineage_command();
Command make_report_command();
Command make_can_load_command();
Command make_prune_command();

}  // namespace tools::inspect
