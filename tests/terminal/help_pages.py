#!/usr/bin/env python3
"""Every --help: at most 80 columns, none of CLI11's words, three examples; and every example does
what it says in a folder that has what it names.

usage: help_pages.py BIN
"""
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

from commands import GOLDEN, helps, lay_out

FOREIGN = re.compile(r"\b(TEXT|UINT|INT|FLOAT|REQUIRED|Excludes|Needs|Positionals)\b|\{")
NOT_OURS = ("torchrun",)  # programs that an example may need, and a machine may lack


def page_of(command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def examples_in(page):
    """The command lines below "Examples:", those that are continued joined."""
    section = page.split("\nExamples:\n")[1].split("\n\n")[0].replace(" \\\n", " ")
    return [" ".join(line.split()) for line in section.splitlines()]


def page_faults(page):
    for line in page.splitlines():
        if len(line) > 80:
            yield f"{len(line)} columns: {line}"
        if FOREIGN.search(line.replace("grad{k}", "")):
            yield f"a word of the parser's: {line}"
    for title in ("Usage: ", "Exit codes:", "Examples:"):
        if title not in page:
            yield f"nothing of {title}"
    if len(examples_in(page)) != 3:
        yield f"{len(examples_in(page))} examples"


def example_faults(example):
    if example.startswith(NOT_OURS):
        return
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        lay_out(folder)
        lay_out_examples(folder)
        done = subprocess.run(["bash", "-c", example], cwd=folder, capture_output=True, text=True)
    if done.returncode != 0:
        yield f"exit code {done.returncode} of: {example}\n{done.stdout}{done.stderr}"


def lay_out_examples(folder):
    """Names that the examples use and `lay_out` does not."""
    (folder / "ckpt").unlink()  # --link wants one file system
    twin = GOLDEN / "lw_muon_bf16_torch_dist_dp2/ckpt"
    shutil.copytree(twin, folder / "ckpt", copy_function=shutil.copyfile)
    shutil.copytree(twin, folder / "copy", copy_function=shutil.copyfile)
    for name in ("ckpt_a", "ckpt_b", "old", "new"):
        os.symlink(twin, folder / name)
    run = GOLDEN / "lw_muon_bf16_torch_dp2/expected"
    os.symlink(run, folder / "grads")
    os.symlink(run / "init_and_grads.safetensors", folder / "grads.safetensors")
    os.symlink(run / "state.safetensors", folder / "state.safetensors")
    os.symlink(GOLDEN / "lw_muon_bf16_torch_dp4/ckpt", folder / "other_ckpt")
    os.symlink(GOLDEN / "torch_save_zip/zip.pt", folder / "copy.pt")
    os.symlink(GOLDEN / "no_save_optim_torch_dist_dp2/ckpt", folder / "llama")
    listed = subprocess.run(["ckpt-inspect", "ls", "model.pt", "--include", "/model/*", "--json"],
                            cwd=folder, check=True, capture_output=True, text=True).stdout
    (folder / "model.json").write_text(listed)
    (folder / "weights.json").write_text(listed.replace("/model/", ""))
    args = subprocess.run(["ckpt-inspect", "show", "ckpt", "args", "--json"], cwd=folder,
                          check=True, capture_output=True, text=True).stdout
    (folder / "run.sh").write_text(args)  # --launch reads them, too
    for source, result, container in (("model.pt", "dcp", "torch_dist"),
                                      ("llama", "exported", "huggingface")):
        subprocess.run(["ckpt-convert", source, result, "--to", container], cwd=folder,
                       check=True, capture_output=True)
    lay_out_adapter(folder / "adapter", folder / "exported")


def lay_out_adapter(folder, base):
    """Of PEFT: a norm that it trained as a whole."""
    folder.mkdir()
    (folder / "adapter_config.json").write_text(
        json.dumps({"peft_type": "LORA", "r": 1, "lora_alpha": 1, "bias": "none"}))
    stored = (base / "model.safetensors").read_bytes()
    key, length = "model.norm.weight", int.from_bytes(stored[:8], "little")
    norm = json.loads(stored[8:8 + length])[key]
    begin, end = norm["data_offsets"]
    header = json.dumps({f"base_model.model.{key}": {**norm, "data_offsets": [0, end - begin]}})
    content = header.encode().ljust(-(-len(header) // 8) * 8)
    (folder / "adapter_model.safetensors").write_bytes(
        len(content).to_bytes(8, "little") + content + bytes(end - begin))


def main():
    bin_folder = pathlib.Path(sys.argv[1]).resolve()
    os.environ["PATH"] = f"{bin_folder}:{os.environ['PATH']}"
    found, examples = [], set()
    for command in helps(bin_folder):
        page = page_of(command)
        found += [f"{' '.join(command)}: {fault}" for fault in page_faults(page)]
        examples.update(examples_in(page))
    for example in sorted(examples):
        found += example_faults(example)
    print("\n".join(found), f"\n{len(examples)} examples, {len(found)} faults")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
