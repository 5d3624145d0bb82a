"""Megatron-Core as the client of checkpoint folders: run as a program, in Gloo processes.

    megatron_client.py JOBS.json RESULTS.json

JOBS is a list of {"name", "kind", "world", ...}; RESULTS maps each name to a list of problems,
empty if all is well. Jobs of one world size share its processes, so that a whole test run starts
a handful of groups. Kinds:

  load      dist_checkpointing.load of every key of `folder`, tensors and objects, in two ways: each
            process asks for its shards, and each asks for all with its rank as replica_id. Values
            must equal those that an independent reader finds in `expected`.
  strict    strict="raise_all" must accept all keys, and raise for an unexpected and a missing one.
  restore   Megatron's own model and LayerWiseDistributedOptimizer of `case` load `folder`, in
            format `format`; every weight, master, moment and step must be the case's.
"""

from __future__ import annotations

import copy
import json
import logging
import sys
import traceback
import warnings
from pathlib import Path

import torch
import torch.distributed

sys.path[:0] = [
    str(Path(__file__).resolve().parent),
    str(Path(__file__).resolve().parents[2] / "scripts"),
]

from megatron.core import dist_checkpointing, parallel_state  # noqa: E402
from megatron.core.dist_checkpointing import ShardedTensor  # noqa: E402
from megatron.core.dist_checkpointing.core import CheckpointingException  # noqa: E402
from megatron.core.dist_checkpointing.mapping import ShardedObject  # noqa: E402

from comparing import bytes_of, differences  # noqa: E402
from golden.cases import ALL_CASES, Case  # noqa: E402
from golden.model import build_model  # noqa: E402
from golden.optimizer import build_optimizer, build_scheduler  # noqa: E402
from golden.processes import in_processes  # noqa: E402
from golden.values import master_of, state_of  # noqa: E402
from golden.write import content_metadata  # noqa: E402
from reading import DcpFolder, rank_file  # noqa: E402


def sharded_tensor(key: str, part: torch.Tensor, whole: tuple, offset: tuple, replica: int):
    """A request for the box of `part`'s shape at `offset`; the grid must be regular."""
    axes = [
        (axis, offset[axis] // size, whole[axis] // size)
        for axis, size in enumerate(part.shape)
        if size != whole[axis]
    ]
    return ShardedTensor.from_rank_offsets(key, part, *axes, replica_id=replica)


def object_request(key: str, replica: int) -> ShardedObject:
    request = ShardedObject.empty_from_unique_key(key)
    request.replica_id = replica
    return request


def requests_for_shards(folder: DcpFolder, rank: int, size: int) -> dict:
    """This rank's share of all chunks and objects, dealt round robin: each is asked for once."""
    requests, turn = {}, 0
    for key, entry in folder.tensors().items():
        for chunk in sorted(entry.chunks, key=lambda chunk: tuple(chunk.offsets)):
            turn += 1
            if turn % size == rank:
                part = torch.empty(chunk.sizes, dtype=entry.properties.dtype)
                requests[f"{key}@{tuple(chunk.offsets)}"] = sharded_tensor(
                    key, part, tuple(entry.size), tuple(chunk.offsets), 0
                )
    for key in folder.objects():
        turn += 1
        if turn % size == rank:
            requests[key] = object_request(key, 0)
    return requests


def requests_for_all(folder: DcpFolder, rank: int) -> dict:
    """Every whole tensor and object, of which this rank is the replica of its number."""
    tensors = {
        key: sharded_tensor(
            key,
            torch.empty(entry.size, dtype=entry.properties.dtype),
            tuple(entry.size),
            (0,) * len(entry.size),
            rank,
        )
        for key, entry in folder.tensors().items()
    }
    return tensors | {key: object_request(key, rank) for key in folder.objects()}


def loaded_differences(loaded: dict, requests: dict, expected: DcpFolder) -> list[str]:
    """What was asked for and is not what the independent reader finds."""
    found = []
    for name, request in requests.items():
        value = loaded[name]
        if isinstance(request, ShardedObject):
            # The folder stores a list of one; Megatron hands out its element.
            found += differences([value], expected.object(request.unique_key), path=name)
            continue
        whole = expected.tensor(request.key)
        box = tuple(
            slice(offset, offset + size)
            for offset, size in zip(request.global_offset, request.local_shape, strict=True)
        )
        if bytes_of(value) != bytes_of(whole[box]) or value.dtype != whole.dtype:
            found.append(f"{name}: values differ")
    return found


def load_every_key(job: dict) -> list[str]:
    folder, expected = DcpFolder(Path(job["folder"])), DcpFolder(Path(job["expected"]))
    if folder.metadata.state_dict_metadata.keys() != expected.metadata.state_dict_metadata.keys():
        return ["the keys are not those expected"]
    rank, size = torch.distributed.get_rank(), torch.distributed.get_world_size()
    found = []
    for requests in (requests_for_shards(folder, rank, size), requests_for_all(folder, rank)):
        asked = dict(requests)
        loaded = dist_checkpointing.load(
            requests, job["folder"], validate_access_integrity=True, strict="raise_all"
        )
        found += loaded_differences(loaded, asked, expected)
        common = {key: value for key, value in loaded.items() if key not in asked}
        found += differences(common, expected.common, frozenset(job["ignored"]))
    return found


def must_raise(what: str, requests: dict, folder: str) -> list[str]:
    try:
        dist_checkpointing.load(requests, folder, strict="raise_all")
    except CheckpointingException as error:
        return [] if what in str(error) else [f"not about {what!r}: {error}"]
    return [f"did not raise for {what!r}"]


def load_strictly(job: dict) -> list[str]:
    """Strict loading sees exactly the keys that are there (both directions)."""
    folder = DcpFolder(Path(job["folder"]))
    rank = torch.distributed.get_rank()
    extra = requests_for_all(folder, rank)
    extra["not.in.the.folder"] = sharded_tensor(
        "not.in.the.folder", torch.empty(2), (2,), (0,), rank
    )
    left_out = requests_for_all(folder, rank)
    some_key = next(iter(folder.tensors()))
    del left_out[some_key]
    return must_raise("not.in.the.folder", extra, job["folder"]) + must_raise(
        some_key, left_out, job["folder"]
    )


def emptied(case: Case):
    """Megatron's model and optimizer for the case, with other values than the case's."""
    model = build_model(case)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(7.0)
    return model, build_optimizer(model, case)


def load_torch_state(root: Path, model, optimizer, case: Case) -> dict:
    """As Megatron's load_checkpoint does for --ckpt-format torch."""
    rank = torch.distributed.get_rank()
    folder = rank_file(root, rank).parent
    state = torch.load(folder / "model_optim_rng.pt", weights_only=False)
    model.load_state_dict(state["model"], strict=True)
    optimizer.load_state_dict_from_file(str(rank_file(root, rank)))
    return state


def load_torch_dist_state(root: Path, model, optimizer, case: Case) -> dict:
    """As Megatron's load_checkpoint does for --ckpt-format torch_dist."""
    folder = root / f"iter_{int((root / 'latest_checkpointed_iteration.txt').read_text()):07d}"
    content = content_metadata(case)
    model_state = model.sharded_state_dict(metadata=content)
    requests = {
        "model": model_state,
        "optimizer": optimizer.sharded_state_dict(
            model_state, is_loading=True, metadata=content
        ),
        "rng_state": ShardedObject(
            "rng_state", None, (1, 1), (0, 0), replica_id=torch.distributed.get_rank()
        ),
    }
    state = dist_checkpointing.load(requests, str(folder), strict="raise_all")
    # A copy: loading into the optimizer consumes parts of what it is given.
    optimizer.load_state_dict(copy.deepcopy(state["optimizer"]))
    model.load_state_dict(state["model"], strict=True)
    return state


def same_bits(left: torch.Tensor, right: torch.Tensor) -> bool:
    return left.dtype == right.dtype and bytes_of(left) == bytes_of(right)


def restored_differences(model, optimizer, case: Case) -> list[str]:
    found = []
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    for name, parameter in model.named_parameters():
        expected = master_of(case.name, name, tuple(parameter.shape), case.fresh).bfloat16()
        if not same_bits(parameter, expected):
            found.append(f"{name}: weight")
    for wrapped in optimizer.chained_optimizers:
        groups = zip(wrapped.optimizer.param_groups, wrapped.float16_groups, strict=True)
        for group, weights in groups:
            if group.get("step", case.iteration) != case.iteration:
                found.append(f"step of a group: {group['step']}")
            for master, weight in zip(group["params"], weights, strict=True):
                state = wrapped.optimizer.state[master]
                found += owned_differences(names[id(weight)], master, state, case)
    return found


def owned_differences(name: str, master: torch.Tensor, state: dict, case: Case) -> list[str]:
    """Master and state of a parameter that this rank owns, against the values of its name."""
    shape, found = tuple(master.shape), []
    if not same_bits(master, master_of(case.name, name, shape, case.fresh)):
        found.append(f"{name}: master")
    if not state:
        found.append(f"{name}: no state")
    for kind, values in state.items():
        if kind == "step":
            same = float(values) == case.iteration
        else:
            same = same_bits(values, state_of(case.name, name, shape, kind))
        if not same:
            found.append(f"{name}: {kind}")
    return found


def restore(job: dict) -> list[str]:
    case = next(case for case in ALL_CASES if case.name == job["case"])
    model, optimizer = emptied(case)
    scheduler = build_scheduler(optimizer, case)
    expected_groups = [
        {key: value for key, value in group.items() if key != "params"}
        for group in optimizer.param_groups
    ]
    load = {"torch": load_torch_state, "torch_dist": load_torch_dist_state}[job["format"]]
    state = load(Path(job["folder"]), model, optimizer, case)
    found = restored_differences(model, optimizer, case)
    found += differences(state["opt_param_scheduler"], scheduler.state_dict(), path="scheduler")
    for group, expected in zip(optimizer.param_groups, expected_groups, strict=True):
        kept = {key: group[key] for key in expected if key != "step"}
        expected.pop("step", None)
        found += differences(kept, expected, path="group")
    return found


KINDS = {"load": load_every_key, "strict": load_strictly, "restore": restore}


def run_jobs(jobs: list[dict], results: Path) -> None:
    """Called by every process of a world; problems of all ranks are gathered on rank 0."""
    rank, size = torch.distributed.get_rank(), torch.distributed.get_world_size()
    parallel_state.initialize_model_parallel()
    outcome = {}
    for job in jobs:
        try:
            problems = KINDS[job["kind"]](job)
        except Exception:  # a broken folder must not end the other jobs
            problems = [traceback.format_exc()]
        gathered = [None] * size
        torch.distributed.all_gather_object(gathered, problems)
        outcome[job["name"]] = [
            f"rank {index}: {problem}" for index, some in enumerate(gathered) for problem in some
        ]
    if rank == 0:
        results.write_text(json.dumps(outcome))


def main() -> None:
    warnings.filterwarnings("ignore")
    logging.disable(logging.ERROR)
    jobs = json.loads(Path(sys.argv[1]).read_text())
    results = Path(sys.argv[2])
    outcome = {}
    for size in sorted({job["world"] for job in jobs}):
        part = results.with_suffix(f".{size}")
        in_processes(size, run_jobs, [job for job in jobs if job["world"] == size], part)
        outcome |= json.loads(part.read_text())
    results.write_text(json.dumps(outcome))


if __name__ == "__main__":
    main()
