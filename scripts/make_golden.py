#!/usr/bin/env python3
"""Writes checkpoints with PyTorch and Megatron-Core alone, for programs that must read them.

Megatron cases: names, shapes and order from megatron-core's GPTModel, owners from its
LayerWiseDistributedOptimizer, files from torch.save and dist_checkpointing.save. Every folder of a
case holds the same state, in another format or for another number of data-parallel ranks:

    OUT/<case>_torch_dp<N>/        OUT/<case>_torch_dist_dp<N>/

Plain cases: a torch.save file and the DCP folder that PyTorch makes of it:

    OUT/<case>.pt                  OUT/<case>_dcp/

The same arguments give the same tensors. Needs torch, megatron-core 0.16.1 and numpy; no GPU.

Precision-aware cases, with --precision-aware alone: of a DistributedOptimizer, whose FusedAdam is
replaced by a stand-in that holds the same state:

    OUT/<case>_{torch,dp_reshardable,fully_reshardable}_dp<N>/{ckpt, expected}

Run cases, with --tree alone: checkpoints of real runs at parallel sizes above 1, made by the code
of a Megatron-LM tree (0.18-dev, commit 5b512b45d1) with devices and TransformerEngine replaced:

    OUT/<family>_<format>_<sizes>/{ckpt, expected, manifest.json}     OUT/family_<family>/

Logit cases, with --tree and --logits: models of the families that leave for Hugging Face, trained
by such a tree (core_v0.19.0), and their logits in float32:

    OUT/<family>_<form>_<sizes>/{ckpt, state.safetensors, logits.safetensors}
"""

from __future__ import annotations

import argparse
import logging
import shutil
import sys
import warnings
from pathlib import Path

from golden.cases import ALL_CASES, Case
from golden.run.case_table import ENGINE, RUN_CASES
from golden.run.logit_cases import FORMS, LOGIT_CASES

PLAIN_ABOUT = {
    "plain_nested": "nested dictionaries and lists; keys with dots, slashes, spaces, other letters",
    "plain_dtypes": "every element type: matrix, scalar, empty",
    "plain_views": "tied, sliced, transposed, expanded tensors",
    "plain_leaves": "values that are no tensors; parameters",
    "plain_module": "the state dict of a torch.nn.Module",
    "plain_objects": "instances of classes that a reader does not know",
    "plain_sharded": "DTensors saved by two processes (OUT/<case>.pt is the same state, whole)",
}


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, help="folder to write into; made if absent")
    parser.add_argument("--case", action="append", metavar="NAME", help="only this one; repeatable")
    parser.add_argument("--precision-aware", action="store_true",
                        help="write those of a precision-aware optimizer")
    parser.add_argument("--tree", type=Path, help="a Megatron-LM tree: write the run cases with it")
    parser.add_argument("--logits", choices=FORMS, metavar="FORM",
                        help=f"write the logit cases instead, filed as one of {', '.join(FORMS)}")
    parser.add_argument("--packages", type=Path, action="append", default=[], metavar="DIR",
                        help="where the tree's imports are (emerging_optimizers ...); repeatable")
    parser.add_argument("--list", action="store_true", help="names of the cases, and exit")
    arguments = parser.parse_args()
    known = [case.name for case in (*ALL_CASES, *RUN_CASES)] + list(PLAIN_ABOUT)
    known += [case.family.name for case in LOGIT_CASES]
    for name in arguments.case or ():
        if name not in known:
            parser.error(f"no case is called {name!r}; --list shows them")
    if not arguments.list and arguments.out is None:
        parser.error("--out is needed")
    return arguments


def list_cases() -> None:
    for case in ALL_CASES:
        sizes = ", ".join(map(str, case.dp_sizes))
        print(f"{case.name:20} {' '.join(case.formats):18} dp {sizes:20} {case.about}")
    for name, about in PLAIN_ABOUT.items():
        print(f"{name:20} {about}")
    for case in RUN_CASES:
        print(f"{case.name:44} run, {case.sizes.world} ranks")


def write_megatron_world(cases: list[Case], dp_size: int, out: Path) -> None:
    """All folders of one data-parallel size; called by every process of that world."""
    from megatron.core import parallel_state

    from golden.write import write_case

    parallel_state.initialize_model_parallel()
    for case in cases:
        for checkpoint_format in case.formats:
            write_case(case, checkpoint_format, out / case.folder(checkpoint_format, dp_size))
    parallel_state.destroy_model_parallel()


def write_megatron(cases: list[Case], out: Path) -> None:
    import golden.write  # noqa: F401  (before the fork: the children share the imports)
    from golden.processes import in_processes

    for case in cases:  # of an earlier run, perhaps with other ranks
        for checkpoint_format in case.formats:
            for dp_size in case.dp_sizes:
                shutil.rmtree(out / case.folder(checkpoint_format, dp_size), ignore_errors=True)
    for dp_size in sorted({size for case in cases for size in case.dp_sizes}):
        of_this_size = [case for case in cases if dp_size in case.dp_sizes]
        in_processes(dp_size, write_megatron_world, of_this_size, dp_size, out)


def write_plain(names: list[str], out: Path) -> None:
    from golden import plain
    from golden.processes import in_processes

    for name in names:
        shutil.rmtree(out / f"{name}_dcp", ignore_errors=True)
        if name == plain.SHARDED_CASE:
            in_processes(plain.SHARDED_WORLD, plain.write_sharded, out)
        else:
            plain.write_plain(name, out)


def write_runs(arguments: argparse.Namespace, out: Path) -> int:
    """Not beside the other cases: the names of devices mean the CPU from here on."""
    from golden.run.write_case import import_tree, write_case

    cases = [case for case in RUN_CASES if case.name in (arguments.case or [case.name])]
    needs_engine = any(ENGINE in case.family.model for case in cases)
    packages = [folder.resolve() for folder in arguments.packages]
    import_tree(arguments.tree.resolve(), packages, needs_engine)
    code = 0
    for case in cases:
        problem = write_case(case, out)
        print(f"{case.name}: {problem or 'written'}", flush=True)
        code |= bool(problem)
    return code


def write_all_logits(arguments: argparse.Namespace, out: Path) -> int:
    from golden.run.logits import Tree, write_logits

    packages = [folder.resolve() for folder in arguments.packages]
    tree, code = Tree(arguments.tree.resolve(), packages), 0
    for case in LOGIT_CASES:
        if case.family.name not in (arguments.case or [case.family.name]):
            continue
        problem = write_logits(case, arguments.logits, tree, out)
        print(f"{case.family.name}: {problem or 'written'}", flush=True)
        code |= bool(problem)
    return code


def main() -> int:
    arguments = parse_arguments()
    if arguments.list:
        list_cases()
        return 0
    warnings.filterwarnings("ignore")  # of a machine without CUDA and TransformerEngine
    logging.disable(logging.WARNING)
    out = arguments.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    if arguments.logits:
        return write_all_logits(arguments, out)
    if arguments.tree is not None:
        return write_runs(arguments, out)
    if arguments.precision_aware:  # not beside the others, either
        from golden import zero1

        zero1.write_all(zero1.CASES, out)
        return 0
    wanted = set(arguments.case or [case.name for case in ALL_CASES] + list(PLAIN_ABOUT))
    write_plain([name for name in PLAIN_ABOUT if name in wanted], out)
    write_megatron([case for case in ALL_CASES if case.name in wanted], out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
