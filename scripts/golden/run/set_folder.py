"""What is stored beside a checkpoint: the expected state, and what each rank held."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from safetensors.torch import save_file


def rank_facts(run, owned: list[dict]) -> dict:
    """Coordinates of a rank, its parameters in order, its masters and its groups."""
    from golden.run.live_state import leaf_optimizers

    sizes = run.parallel_state
    groups = [[{k: v for k, v in group.items() if k != "params"} | {"n_params": len(group["params"])}
               for group in leaf.optimizer.param_groups]
              for leaf in leaf_optimizers(run.optimizer) if getattr(leaf, "optimizer", None)]
    return {
        "rank": int(run.args.rank),
        "tp": sizes.get_tensor_model_parallel_rank(),
        "pp": sizes.get_pipeline_model_parallel_rank(),
        "cp": sizes.get_context_parallel_rank(),
        "dp": sizes.get_data_parallel_rank(),
        "dp_cp": sizes.get_data_parallel_rank(with_context_parallel=True),
        "ep": sizes.get_expert_model_parallel_rank(),
        "etp": sizes.get_expert_tensor_parallel_rank(),
        "edp": sizes.get_expert_data_parallel_rank(),
        "params": [{"name": p.name, "chunk": p.chunk, "local": p.local_name,
                    "shape": list(p.shape), "tp_dim": p.dim} for p, _ in run.places()],
        "owned": owned,
        "param_groups": json.loads(json.dumps(groups, default=str)),
    }


def write_expected(folder: Path, state: dict, next_state: dict | None) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    save_file(state, folder / "state.safetensors")
    if next_state is not None:
        save_file(next_state, folder / "next_state.safetensors")


def write_json(path: Path, value) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(value, list):  # one element a line
        lines = ",\n".join(json.dumps(element, separators=(",", ":")) for element in value)
        path.write_text(f"[\n{lines}\n]\n")
    else:
        path.write_text(json.dumps(value, indent=1) + "\n")


def write_family(folder: Path, family, values, shapes: dict[str, tuple]) -> None:
    """init.NAME and grad{K}.NAME, whole, for every layout of the family."""
    tensors = {}
    for name, shape in sorted(shapes.items()):
        tensors[f"init.{name}"] = values.weight(name, shape).bfloat16()
        if not name.endswith("expert_bias"):
            for step in range(family.steps + 1):
                tensors[f"grad{step}.{name}"] = values.gradient(step, name, shape)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "grads.safetensors")
    write_json(folder / "family.json", {
        "name": family.name, "seed": family.seed, "steps": family.steps, "model": family.model})


def write_manifest(folder: Path, about: dict) -> None:
    files = sorted(p for p in folder.rglob("*") if p.is_file() and p.name != "manifest.json")
    about["files"] = {
        str(path.relative_to(folder)): {
            "size": path.stat().st_size,
            "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        }
        for path in files
    }
    write_json(folder / "manifest.json", about)
