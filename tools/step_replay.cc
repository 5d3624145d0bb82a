// step-replay: optimizer steps from recorded gradients. One file per subcommand in step_replay/.
#include <step_replay/commands.h>

int main(int argc, char** argv) {
  using namespace tools::step_replay;
  const tools::ToolInfo tool = {
      .name = "step-replay",
      .description = "Replays optimizer steps from recorded gradients and compares the outcome.",
      .examples = {"step-replay run ckpt/ --grads grads/ --from-init --expect other_ckpt/",
                   "step-replay run ckpt/ --grads grads.safetensors --dp 4 --spawn 2 -o stepped/",
                   "step-replay check traces/muon_split_qkv.json --json"},
      .exit_1 = "the outcome differs"};
  return tools::run_commands(
      tool, argc, argv,
      {make_run_command({argv, argv + argc}), make_check_command(), make_record_command()});
}
