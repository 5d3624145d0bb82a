#!/usr/bin/env python3
"""docs/tasks.md: what people want of a checkpoint, and the command and screen that answer.

usage: tasks.py [--update] BIN     runs every task of TASKS on terminals of 60, 80, 120 and 200
                                   columns: each shows the same answer, whole, and no line is
                                   wider; compares the page with what 80 columns show, or rewrites
                                   it
"""
import dataclasses
import difflib
import pathlib
import re
import sys
import tempfile

import samples
from terminal import Place

PAGE = pathlib.Path(__file__).resolve().parent.parent.parent / "docs" / "tasks.md"
WIDTHS = (60, 80, 120, 200)
LINES_SHOWN = 24

INTRODUCTION = """\
# I want to ...

Each task with its command and output. The checkpoints are samples that real programs wrote:
Megatron-Core `run_a` and `run_b` (two runs of one model), `ckpt_torch` (the state of `run_a` in
format `torch`) and `llama_run`, PyTorch `model.pt` and `torchtitan` (FSDP2), and the Trainer of
Hugging Face `hf_trainer`. `tests/first_hour/tasks.py` runs each at four widths of a terminal.

"""


@dataclasses.dataclass(frozen=True)
class Task:
    want: str
    samples: str  # names of functions in samples.py, separated by blanks
    command: str
    answers: tuple  # patterns of what a screen of any width has, with the same numbers
    exit_code: int = 0
    before: tuple = ()  # commands that were run earlier
    same_until: str = ""  # a line's start: what follows differs from processor to processor


TASKS = (
    Task("see what this folder is", "run_a", "ckpt-inspect run_a",
         (r"Megatron torch_dist, LayerWise optimizer", r"iteration 3\b", r"9\.2 K parameters",
          r"TP 1  PP 1  CP 1  EP 1  DP 2", r"343\.8 KiB")),
    Task("find a tensor", "run_a",
         "ckpt-inspect ls run_a --include '*position_emb*' --sort size",
         (r"embedding\.posi\S+ +bfloat16 +\[32, 16\] +1\.0 KiB", r"3 stored tensors, .* 5\.0 KiB")),
    Task("see the values of a tensor", "run_a",
         "ckpt-inspect show run_a decoder.final_layernorm.bias",
         (r"shape +\[16\]", r"norm +0\.\d+", r"NaN +0")),
    Task("see a part of it, every value", "run_a",
         "ckpt-inspect show run_a 'output_layer.weight[0:2, :4]' --values all",
         (r"-0\.07324219", r"0\.046142578")),
    Task("see the settings of the run", "run_a",
         "ckpt-inspect show run_a args.lr args.seed args.consumed_train_samples",
         (r"/args/@lr\n0\.01", r"/args/@seed\n1234", r"/args/@consumed_train_samples\n36")),
    Task("find the layer that blew up", "run_a",
         "ckpt-inspect show run_a --logical 'decoder.*.weight' --stats --sort norm",
         (r"decoder\.layers\.0\.mlp\.linear_fc2\.weight\s.* 6\.672",)),
    Task("find where two runs diverge", "run_a run_b",
         "ckpt-inspect diff run_a run_b --summary",
         (r"decoder\.layers\.0 .*0\.0003434", r"different: 66 of 107 logical tensors")
         , exit_code=1),
    Task("compare one state in two formats", "run_a megatron_torch",
         "ckpt-inspect diff run_a ckpt_torch", (r"equal: 107 logical tensors, 8 objects",)),
    Task("follow a run checkpoint by checkpoint", "trainers",
         "ckpt-inspect lineage hf_trainer",
         (r"checkpoint-2 +complete", r"checkpoint-6: lm_head\.weight has 256 NaN")),
    Task("list the parameters of a group of an FSDP run", "trainers",
         "ckpt-inspect groups torchtitan/step-6 --limit 3",
         (r"AdamW, group 0\.0: 7 parameters, 976 elements", r"0\.0 +\[16, 8\] +0\.weight")),
    Task("see what takes the space", "run_a", "ckpt-inspect tree run_a --depth 1",
         (r"masters +35\.8 KiB",)),
    Task("find the newest complete iteration after a crash", "crashed",
         "ckpt-inspect latest crashed", (r"crashed/iter_0000003",)),
    Task("check it for damage", "run_a", "ckpt-inspect verify run_a",
         (r"815 checksums OK", r"29 masters match their weights", r"OK: 6 files, 343\.8 KiB")),
    Task("check a copy against recorded hashes", "run_a",
         "cp -r run_a copy && ckpt-inspect hash copy -c sums",
         (r"equal: 0 of 79 recorded hashes differ",),
         before=("ckpt-inspect hash run_a > sums",)),
    Task("check a copy against the original", "run_a",
         "cp -r run_a copy && ckpt-inspect verify copy --against run_a",
         (r"OK",)),
    Task("see a parameter's learning rate and weight decay", "run_a",
         "ckpt-inspect groups run_a output_layer.weight",
         (r"AdamW, group 1\.0: 2 parameters", r"weight_decay 0\.1\b",
          r"1\.0 .*output_layer\.weight")),
    Task("make a page to send to somebody", "run_a", "ckpt-inspect report run_a -o report.html",
         (r"report\.html",)),
    Task("look into a file that torch.load refuses", "torch_save",
         "ckpt-inspect tree model.pt --depth 1", (r"model", r"dtypes")),
    Task("export only the weights, as safetensors", "run_a",
         "ckpt-convert run_a weights --to safetensors --model-only",
         (r"wrote weights",)),
    Task("export the model to Hugging Face", "llama",
         "ckpt-convert llama_run out --to huggingface",
         (r"wrote out: torch -> huggingface \(llama, LlamaForCausalLM",
          r"carried: 39 stored tensors")),
    Task("check that a Hugging Face folder is this checkpoint's model", "llama",
         "ckpt-inspect diff llama_run hf", (r"equal: 39 tensors",),
         before=("ckpt-convert llama_run hf --to huggingface --quiet",)),
    Task("find tensors with NaN, the worst first", "trainers",
         "ckpt-inspect show hf_trainer/checkpoint-6/model.safetensors --stats --sort nan",
         (r"lm_head\.weight .* 256 ", )),
    Task("see the distribution of a layer's values", "run_a",
         "ckpt-inspect show run_a --include '*layers.0.mlp*weight' --stats --quantiles",
         (r"1% +50% +99%", r"-0\.4883 +-0\.007507 +0\.4746")),
    Task("change the format", "run_a", "ckpt-convert run_a out --to torch --verify",
         (r"proven: read back", r"next training step: matches the source's, bit for bit")),
    Task("see what other parallel sizes would change", "run_a",
         "reshard run_a out --tp 2 --pp 2 --dp 1 --dry-run", (r"would write out", r"TP 2  PP 2")),
    Task("resume at other parallel sizes", "run_a", "reshard run_a out --tp 2 --pp 2 --dp 1",
         (r"wrote out", r"proven: every float32 master rounds to the weight")),
    Task("check that training continues the same", "run_a gradients",
         "step-replay run run_a --grads recorded/init_and_grads.safetensors --from-init "
         "--grad-norm recorded --expect recorded/state.safetensors",
         (r"model +29 +2[89] +passed", r"\n(identical|passed: within)"), same_until="state "),
    Task("get JSON in a script", "run_a", "ckpt-inspect latest run_a --json", (r"iter_0000003",)),
)


def whole(lines, task, width):
    """What is wrong with this screen."""
    text = "\n".join(lines)
    joined = re.sub(r"\n\s+", " ", text)  # a sentence goes on in the next line
    faults = [f"no {answer!r}" for answer in task.answers
              if not re.search(answer, text) and not re.search(answer, joined)]
    faults += [f"{len(line)} columns: {line}" for line in lines
               if len(line) > width and not line.startswith("ckpt-inspect: ")  # on stderr
               and len(line.split()) > 1]  # a name alone, which is not cut where two are alike
    return [f"{task.command}, {width} columns: {fault}" for fault in faults]


def screen(task, programs, width):
    with tempfile.TemporaryDirectory(prefix="shardwise-tasks-") as folder:
        place = Place(str(pathlib.Path(folder).resolve()), str(programs.resolve()), width)
        for name in task.samples.split():
            getattr(samples, name)(place)
        for command in task.before:
            done = place.run(command)
            assert done.exit_code == 0, done.lines
        printed = place.run(task.command)
    if printed.exit_code != task.exit_code:
        return printed.lines, [f"{task.command}: exit code {printed.exit_code}"]
    return printed.lines, whole(printed.lines, task, width)


def console(task, lines):
    cut = next((number for number, line in enumerate(lines)
                if task.same_until and line.startswith(task.same_until)), LINES_SHOWN)
    shown = lines[:cut]
    if task.same_until:
        shown.append("...")
    elif len(lines) > LINES_SHOWN:
        shown.append(f"... and {len(lines) - LINES_SHOWN} more lines")
    return "\n".join(["```console", *(f"$ {command}" for command in (*task.before, task.command)),
                      *shown, "```"])


def page(screens):
    rows = [f"- [{task.want}](#{number})" for number, (task, _) in enumerate(screens, 1)]
    text = INTRODUCTION + "\n".join(rows) + "\n"
    for number, (task, lines) in enumerate(screens, 1):
        text += f'\n## <a id="{number}"></a>{number}. {task.want}\n\n{console(task, lines)}\n'
    return text


def main(arguments):
    updating = arguments[:1] == ["--update"]
    programs = pathlib.Path(arguments[updating])
    screens, faults = [], []
    for task in TASKS:
        for width in WIDTHS:
            lines, found = screen(task, programs, width)
            faults += found
            if width == 80:
                screens.append((task, lines))
    print("\n".join(faults))
    found = page(screens)
    if updating:
        PAGE.write_text(found, encoding="utf-8")
        return 1 if faults else 0
    written = PAGE.read_text(encoding="utf-8")
    print("\n".join(difflib.unified_diff(written.splitlines(), found.splitlines(), PAGE.name,
                                         "printed", lineterm="")))
    return 0 if written == found and not faults else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
