"""Plain state dicts to every format: what the oracle reads of the result is what it reads of the
source, or listed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed.checkpoint
from safetensors.torch import load_file

from checks import check_content, check_reads, check_verifies
from listing import Listing
from losses import Aspect, Place, Step, StepKind, is_mapping, key_step
from oracles import Unreadable, content, read_dcp_nested, read_torch_save, requires_grad_in
from session import Made, Session


def convert_to(session: Session, source: Path, name: str, to: str) -> Made | None:
    return session.convert_strictly_or_not("ckpt-convert", source, name, "--to", to)


def through_torch_dist(session: Session, source: object, verified: int) -> None:
    there = convert_to(session, session.source, "dist", "torch_dist")
    if there is None:
        return
    if not is_unreadable_by_torch_itself(session, source, there):
        read = check_reads(session, there, lambda: with_requires_grad(there.path))
        if read is None:
            return
        check_content(session, there, source, read)
    check_verifies(session, there, verified)
    back = convert_to(session, there.path, "back.pt", "torch")
    if back is None:
        session.report("what we wrote converts back", session.ended[-1])
        return
    read_back = check_reads(session, back, lambda: read_torch_save(back.path))
    if read_back is not None:
        check_content(session, back, source, read_back, there)
        check_verifies(session, back, verified)


def is_unreadable_by_torch_itself(session: Session, source: object, made: Made) -> bool:
    """A list that lost an empty mapping, in the folder that PyTorch writes of this state dict, too:
    without the state dict to load into, PyTorch asks for keys that it did not write."""
    if not any("a list that contains it" in loss["reason"] for loss in made.report["not_carried"]):
        return False
    own = session.place("torchs_own")
    torch.distributed.checkpoint.save(source, checkpoint_id=own, no_dist=True)
    try:
        read_dcp_nested(own)
    except Unreadable as problem:
        return "Missing key in checkpoint state_dict" in str(problem)
    return False


def with_requires_grad(folder: Path) -> dict:
    """The state dict, each tensor with what .metadata says of it."""
    state, flags = read_dcp_nested(folder), requires_grad_in(folder)
    for place, tensor in flattened(state):
        key = ".".join(str(step.name) for step in place)
        if isinstance(tensor, torch.Tensor) and tensor.is_floating_point() and flags.get(key):
            tensor.requires_grad_()
    return state


def to_torch(session: Session, source: object, verified: int) -> None:
    made = convert_to(session, session.source, "new.pt", "torch")
    if made is None:
        return
    read = check_reads(session, made, lambda: read_torch_save(made.path))
    if read is not None:
        check_content(session, made, source, read)
        check_verifies(session, made, verified)


def to_safetensors(session: Session, source: object) -> None:
    made = session.convert("ckpt-convert", session.source, "new.safetensors", "--to", "safetensors")
    if made is None:
        return
    read = check_reads(session, made, lambda: load_file(made.path))
    if read is None:
        return
    listing = Listing(made.report)
    for place, value in flattened(source):
        key = ".".join(step.text(escape=False) for step in place)
        is_tensor = isinstance(value, torch.Tensor) and key in read
        if is_tensor and content(value) == content(read[key]):
            continue
        if not listing.names(place, Aspect.CONTENT if key in read else Aspect.MISSING):
            session.report("missing is listed", f"{key!r}\n  {listing.entries}\n  {made.outcome}")
            return


def flattened(value: object, place: Place = ()) -> Iterator[tuple[Place, object]]:
    """Places of what DCP takes for one entry each; lists are entered where they hold a tensor, a
    mapping or such a list."""
    if is_mapping(value) and value:
        for key, item in value.items():
            yield from flattened(item, (*place, key_step(key)))
    elif is_entered_list(value):
        for index, item in enumerate(value):
            yield from flattened(item, (*place, Step(StepKind.INDEX, index)))
    else:
        yield place, value


def is_entered_list(value: object) -> bool:
    return type(value) is list and any(
        isinstance(item, torch.Tensor) or is_mapping(item) or is_entered_list(item)
        for item in value
    )
