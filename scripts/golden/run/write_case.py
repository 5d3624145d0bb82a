"""Makes one set: a checkpoint of the real code, and what it must contain."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import torch
import torch.distributed as dist

from golden.run import set_folder, te_modules
from golden.run.command_line import RunCase
from golden.run.launch import in_ranks
from golden.run.extra_states import fp8_state
from golden.run.live_state import differences
from golden.run.training import MadeUpValues, Run


def import_tree(tree: Path, packages: list[Path], engine: bool) -> None:
    """The tree's code with its stand-ins, in this process, before it forks."""
    import sys

    sys.path[:0] = [str(tree), *map(str, packages)]
    from golden.run import devices, megatron_on_cpu, state_space

    devices.replace_devices()
    state_space.install()
    if engine:
        te_modules.install()
    import emerging_optimizers  # noqa: F401
    import megatron.training  # noqa: F401
    import megatron.training.checkpointing  # noqa: F401
    import megatron.training.training  # noqa: F401
    import gpt_builders  # noqa: F401
    import model_provider  # noqa: F401

    megatron_on_cpu.fit()


def _gather(value) -> list | None:
    everyone = [None] * dist.get_world_size() if dist.get_rank() == 0 else None
    dist.gather_object(value, everyone, dst=0)
    return everyone


def _reloaded(case: RunCase, run: Run, state: dict, next_state: dict, values) -> dict:
    """The real code loads its own checkpoint into a new model, and takes the step again."""
    run.args.load, run.args.iteration, run.args.consumed_train_samples = "ckpt", 0, 0
    run.build()
    found = {"equal": differences(state, run.state()[0])}
    run.step(values, case.family.steps)
    found["next_equal"] = differences(next_state, run.state()[0])
    return {name: wrong[:20] or True for name, wrong in found.items()}


def _write_here(case: RunCase, folder: Path) -> None:
    values = MadeUpValues(case.family)
    te_modules.EngineModule.streams = case.extra_state == "stream"
    if case.extra_state == "fp8":
        te_modules.EngineModule.fp8_state_of = staticmethod(fp8_state)
    os.chdir(folder)
    run = Run(case.command_line(), case.family.kept_in_fp32)
    run.label_modules()
    run.fill(values)
    steps = [run.step(values, number) for number in range(case.family.steps)]
    run.save(case.family.steps)
    state, owned = run.state()
    ranks = _gather(set_folder.rank_facts(run, owned))
    shapes = _gather({p.name: p.whole_shape for p, _ in run.places() + run.buffers()})
    next_step = run.step(values, case.family.steps)
    next_state, _ = run.state()
    verified = _reloaded(case, run, state, next_state, values) if case.reloads else {}
    if dist.get_rank() != 0:
        return
    set_folder.write_expected(folder / "expected", state, next_state)
    set_folder.write_json(folder / "expected/ranks.json", ranks)
    shapes = {name: shape for of_rank in shapes for name, shape in of_rank.items()}
    family = folder.parent / f"family_{case.family.name}"
    set_folder.write_family(family, case.family, values, shapes)
    sizes = case.sizes
    set_folder.write_json(folder / "expected/run.json", {
        "name": case.name, "family": case.family.name, "format": case.checkpoint_format,
        "grads": f"../../{family.name}/grads.safetensors", "torch": torch.__version__,
        "extra_state": case.extra_state, "kept_in_fp32": case.family.kept_in_fp32,
        "parallel": {"tp": sizes.tp, "pp": sizes.pp, "vpp": sizes.vpp, "cp": sizes.cp,
                     "dp": sizes.dp, "ep": sizes.ep, "etp": sizes.etp},
        "world": sizes.world, "iteration": case.family.steps, "argv": case.command_line(),
        "steps": steps, "next_step": next_step, "verify": verified})


def write_case(case: RunCase, out: Path) -> str:
    """What went wrong; the logs of the ranks stay then."""
    folder, logs = out / case.name, out / "logs" / case.name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    failed = in_ranks(case.sizes.world, lambda _rank: _write_here(case, folder), logs)
    if failed:
        return f"ranks {failed} failed, see {logs}"
    shutil.rmtree(logs)
    set_folder.write_manifest(folder, {"name": case.name})
    verified = json.loads((folder / "expected/run.json").read_text())["verify"]
    wrong = [what for what, outcome in verified.items() if outcome is not True]
    return f"loaded again, the state is not {', '.join(wrong)}" if wrong else ""
