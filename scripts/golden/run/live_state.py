"""The training state of all ranks as whole tensors, read from the live model and optimizers."""

from __future__ import annotations

import torch
import torch.distributed as dist

from golden.run.splits import Place, buffers_of, parameters_of


def leaf_optimizers(optimizer) -> list:
    chained = getattr(optimizer, "chained_optimizers", None)
    if chained is None:
        return [optimizer]
    return [leaf for one in chained for leaf in leaf_optimizers(one)]


def _masters(leaf) -> list[tuple]:
    """(parameter of the model, tensor that the optimizer steps), as the wrapper pairs them."""
    if not hasattr(leaf, "fp32_from_float16_groups"):
        return [(p, p) for group in leaf.optimizer.param_groups for p in group["params"]]
    pairs = []
    for halves, masters in zip(leaf.float16_groups, leaf.fp32_from_float16_groups, strict=True):
        pairs += zip(halves, masters, strict=True)
    return pairs + [(p, p) for group in leaf.fp32_from_fp32_groups for p in group]


def _position_of(inner) -> dict[int, tuple[int, int]]:
    """Group and number of each stepped tensor, by identity."""
    found, number = {}, 0
    for group_index, group in enumerate(inner.param_groups):
        for tensor in group["params"]:
            found[id(tensor)] = (group_index, number)
            number += 1
    return found


class LiveState:
    """`pieces`: (kind, place, tensor) of this rank; `owned`: which masters its optimizers hold."""

    def __init__(self, model, optimizer, args, parallel_state):
        self.pieces: list[tuple[str, Place, torch.Tensor]] = []
        self.owned: list[dict] = []
        place_of = {}
        for place, parameter in parameters_of(model, args, parallel_state):
            place_of[id(parameter)] = place
            self._add("model", place, parameter)
        for place, buffer in buffers_of(model, args, parallel_state):
            self._add("model", place, buffer)
        for index, leaf in enumerate(leaf_optimizers(optimizer)):
            inner = getattr(leaf, "optimizer", None)
            if inner is not None and not getattr(leaf, "is_stub_optimizer", False):
                self._add_optimizer(index, leaf, inner, place_of)

    def _add(self, kind, place, tensor):
        self.pieces.append((kind, place, tensor.detach().clone()))

    def _add_optimizer(self, index, leaf, inner, place_of):
        positions = _position_of(inner)
        for parameter, master in _masters(leaf):
            place = place_of[id(parameter)]
            self._add("master", place, master.float())
            group, number = positions[id(master)]
            self.owned.append({"name": place.name, "optimizer": index, "group": group,
                               "index": number})
            for name, value in inner.state.get(master, {}).items():
                if torch.is_tensor(value) and value.shape == master.shape:
                    self._add(name, place, value)


def gathered(pieces) -> tuple[dict[str, torch.Tensor], list[str]]:
    """Whole tensors by `kind.name` and what is wrong with them; on rank 0, else nothing."""
    everyone = [None] * dist.get_world_size() if dist.get_rank() == 0 else None
    dist.gather_object(pieces, everyone, dst=0)
    if everyone is None:
        return {}, []
    parts: dict[tuple, dict[int, torch.Tensor]] = {}
    places, problems = {}, []
    for rank, of_rank in enumerate(everyone):
        for kind, place, tensor in of_rank:
            key = (kind, place.name)
            places.setdefault(key, place)
            known = parts.setdefault(key, {}).setdefault(place.index, tensor)
            if not same_bits(known, tensor):
                problems.append(f"{kind}.{place.name}: rank {rank} has another replica")
    whole = {}
    for (kind, name), of_index in parts.items():
        place = places[(kind, name)]
        if len(of_index) != place.count:
            problems.append(f"{kind}.{name}: {len(of_index)} of {place.count} parts")
            continue
        whole[f"{kind}.{name}"] = place.join([of_index[i] for i in range(place.count)])
    for kind_name in [k for k in whole if k.startswith("model.")]:
        name = kind_name.removeprefix("model.")
        if f"master.{name}" not in whole and not name.endswith("expert_bias"):
            problems.append(f"master.{name}: on no rank")
    return whole, problems


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    return torch.equal(one.contiguous().reshape(-1).view(torch.uint8),
                       other.contiguous().reshape(-1).view(torch.uint8))


def differences(expected: dict, found: dict) -> list[str]:
    lines = [f"{name}: missing" for name in sorted(set(expected) - set(found))]
    lines += [f"{name}: not expected" for name in sorted(set(found) - set(expected))]
    for name in sorted(set(expected) & set(found)):
        one, other = expected[name], found[name]
        if same_bits(one, other):
            continue
        if one.shape != other.shape or one.dtype != other.dtype:
            lines.append(f"{name}: {one.dtype} {tuple(one.shape)}, found {other.dtype} "
                         f"{tuple(other.shape)}")
        else:
            lines.append(f"{name}: by {float((one.double() - other.double()).abs().max()):.3g}")
    return lines
