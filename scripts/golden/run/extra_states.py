"""Bytes for the extra states of TransformerEngine's modules, and what a load made of them."""

from __future__ import annotations

import io
import pickle

import torch

from golden.run import te_modules
from golden.run.splits import bare


def fp8_state(module) -> dict | None:
    """Delayed scaling's state of a linear module: other numbers in every module; of a projection
    in every tensor-parallel rank, too. Other modules have none."""
    name = getattr(module, "sample_name", "")
    if ".linear_" not in name:
        return None
    recipe = te_modules.DelayedScaling()
    count = getattr(module, "num_gemms", 1)
    module.fp8_meta.update(fp8_checkpoint=True, recipe=recipe)
    seed = sum(name.encode())
    if name.endswith("linear_proj"):
        from megatron.core import parallel_state

        seed += 1000 * parallel_state.get_tensor_model_parallel_rank()
    rows = torch.arange(recipe.amax_history_len, dtype=torch.float32)[:, None]
    forward, backward = torch.arange(3.0 * count), torch.arange(2.0 * count)
    return {
        "recipe": recipe,
        "scale_fwd": forward + seed, "amax_history_fwd": rows + forward + seed,
        "scale_bwd": backward + seed, "amax_history_bwd": rows + backward + seed,
        "extra_fp8_variables": {"fp8_checkpoint": True, "num_gemms": count},
    }


def _opened(stored) -> dict | None:
    """What a module was given to load: pickled bytes, a stream, or none."""
    if isinstance(stored, io.BytesIO):
        return torch.load(io.BytesIO(stored.getvalue()), weights_only=False)
    if stored is None or stored.numel() == 0:
        return None
    return pickle.loads(bytes(stored.tolist()))


def _same(expected: dict, found: dict | None) -> bool:
    if found is None or found["extra_fp8_variables"] != expected["extra_fp8_variables"]:
        return False
    return all(torch.equal(value.reshape(-1), found[name].reshape(-1))
               for name, value in expected.items() if name.startswith(("scale", "amax")))


def compare_loaded(model) -> dict[str, list[str]]:
    """Names of this rank's modules whose loaded extra state is `equal` to the recorded one, `other`
    or `absent`. Modules must be labelled."""
    found = {"equal": [], "other": [], "absent": []}
    for chunk in model:
        for module in bare(chunk).modules():
            if not isinstance(module, te_modules.EngineModule):
                continue
            expected, loaded = fp8_state(module), getattr(module, "loaded_extra_state", None)
            if expected is not None:
                stored = _opened(loaded)
                kind = "absent" if stored is None else (
                    "equal" if _same(expected, stored) else "other")
                found[kind].append(module.sample_name)
    return found
