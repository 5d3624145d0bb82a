// ckpt-inspect: what a checkpoint holds. One file per subcommand in inspect/.
#include <inspect/commands.h>
#include <programs.h>

#include <utility>

tools::Program tools::inspect_program() {
  using namespace tools::inspect;
  tools::ToolInfo tool = {
      .name = "ckpt-inspect",
      .description =
          "Shows what a checkpoint holds, without PyTorch and without executing any code in it.",
      .examples = {"ckpt-inspect ckpt/",
                   "ckpt-inspect ls ckpt/iter_0000003 --include '*linear_fc1*' --sort size",
                   "ckpt-inspect diff ckpt_a/ ckpt_b/ --json"},
      .exit_1 = "different, or damaged",
      .has_progress = true};
  return {std::move(tool),
          {make_summary_command(), make_ls_command(), make_show_command(), make_tree_command(),
           make_verify_command(), make_hash_command(), make_diff_command(), make_groups_command(),
           make_latest_command(), make_lineage_command(), make_report_command(),
           make_can_load_command(), make_prune_command()}};
}
