"""State dicts without Megatron: a torch.save file and the DCP folder that PyTorch makes of it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed
import torch.distributed.checkpoint
from torch.distributed.checkpoint.format_utils import torch_save_to_dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

from golden.objects import objects
from golden.values import normal, seed_of

DTYPES = (
    "float64 float32 float16 bfloat16 int64 int32 int16 int8 uint8 uint16 uint32 uint64 bool "
    "complex128 complex64 complex32 float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz "
    "float8_e8m0fnu"
).split()


def tensor_of(dtype: torch.dtype, shape: tuple[int, ...], name: str) -> torch.Tensor:
    """Any bytes are good values of every type but bool."""
    generator = torch.Generator().manual_seed(seed_of("plain", name))
    count = torch.Size(shape).numel()
    upper = 2 if dtype is torch.bool else 256
    raw = torch.randint(0, upper, (count * dtype.itemsize,), generator=generator)
    return raw.to(torch.uint8).view(dtype).reshape(shape)


def nested() -> dict:
    """Depth, lists, and keys that contain the separators of every notation in use."""
    return {
        "model": OrderedDict(
            [("z.weight", normal((4, 3), "z")), ("a.weight", normal((3,), "a"))]
        ),
        "optimizer": {
            "state": {0: {"exp_avg": normal((4, 3), "m"), "step": torch.tensor(7.0)}},
            "param_groups": [{"lr": 0.01, "betas": (0.9, 0.95), "params": [0]}],
        },
        "a.b": {"c/d": {"e~f": normal((2, 2), "slash")}},
        "key with spaces": {"\u00e4\u5b57\U0001f600": normal((5,), "unicode"), "new\nline": 1},
        "list": [normal((2,), "l0"), {"deep": [normal((3,), "l1"), "text"]}, 5],
        "tuple": (normal((1,), "t0"), normal((2,), "t1")),
        "empty": {"dict": {}, "list": [], "tuple": ()},
        "": normal((1,), "empty key"),
    }


def dtypes() -> dict:
    """Every element type, each with a matrix, a scalar and no element at all."""
    tensors = {}
    for name in DTYPES:
        dtype = getattr(torch, name)
        tensors[name] = {
            "matrix": tensor_of(dtype, (3, 5), name),
            "scalar": tensor_of(dtype, (), name + "0"),
            "none": tensor_of(dtype, (0, 4), name),
        }
    return tensors


def views() -> dict:
    """Tensors that share storages or do not lie in row-major order."""
    base = normal((6, 8), "base")
    shared = normal((4, 4), "shared")
    return {
        "base": base,
        "rows": base[1:4],
        "columns": base[:, 2:5],
        "steps": base[::2, ::3],
        "transposed": base.t(),
        "permuted": normal((2, 3, 4), "cube").permute(2, 0, 1),
        "expanded": normal((3, 1), "wide").expand(3, 7),
        "repeated_scalar": torch.tensor(2.5).expand(4, 4),
        "end_of_storage": base.view(-1)[-5:],
        "tied": {"embedding": shared, "output": shared},
        "strided": torch.as_strided(base, (3, 3), (9, 2), 1),
        "as_int32": normal((4,), "bits").view(torch.int32),
    }


def leaves() -> dict:
    """Values that are no tensors, and tensors that are more than that."""
    parameter = torch.nn.Parameter(normal((3, 2), "parameter"))
    return {
        "none": None,
        "true": True,
        "int": 3,
        "huge": 2**200,
        "negative": -(2**63),
        "float": [0.1, float("inf"), float("-inf"), float("nan"), -0.0],
        "text": "caf\u00e9 \u0000 end",
        "bytes": b"\x00\xff",
        "set": {1, 2, 3},
        "complex": 1 + 2j,
        "size": torch.Size([2, 3]),
        "dtype": torch.bfloat16,
        "device": torch.device("cpu"),
        "parameter": parameter,
        "frozen": torch.nn.Parameter(normal((2,), "frozen"), requires_grad=False),
        "with_grad": normal((2,), "grad").requires_grad_(),
        "class": OrderedDict,
    }


def module() -> OrderedDict:
    """A module's own state dict, whose `_metadata` is an attribute of the dictionary."""
    torch.manual_seed(seed_of("module"))
    layers = torch.nn.Sequential(
        torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 2, bias=False)
    )
    return layers.state_dict()


PLAIN_CASES: dict[str, Callable[[], dict]] = {
    "plain_nested": nested,
    "plain_dtypes": dtypes,
    "plain_views": views,
    "plain_leaves": leaves,
    "plain_module": module,
    "plain_objects": objects,
}
SHARDED_CASE = "plain_sharded"
SHARDED_WORLD = 2


def write_plain(name: str, out: Path) -> None:
    """OUT/NAME.pt and OUT/NAME_dcp."""
    path = out / f"{name}.pt"
    torch.save(PLAIN_CASES[name](), path)
    torch_save_to_dcp(path, out / f"{name}_dcp")


def whole_sharded() -> dict:
    """What the sharded case holds, before it is cut."""
    return {
        "model": {
            "even": normal((8, 6), "even"),
            "uneven": normal((7, 5), "uneven").bfloat16(),
            "columns": normal((6, 9), "columns"),
            "one_row": normal((1, 4), "one row"),
            "replicated": normal((5, 3), "replicated"),
        },
        "local": torch.arange(12).view(3, 4),
        "epoch": 3,
        "a.b": [normal((2,), "list"), (1, 2.5, None)],
    }


def write_sharded(out: Path) -> None:
    """OUT/plain_sharded_dcp by two processes, DTensors cut by rows and columns.

    Called by every process. OUT/plain_sharded.pt holds the same state whole.
    """
    whole = whole_sharded()
    mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))
    placements = {"columns": Shard(1), "replicated": Replicate()}
    cut = {
        name: distribute_tensor(tensor, mesh, [placements.get(name, Shard(0))])
        for name, tensor in whole["model"].items()
    }
    torch.distributed.checkpoint.save(
        {**whole, "model": cut}, checkpoint_id=out / f"{SHARDED_CASE}_dcp"
    )
    if torch.distributed.get_rank() == 0:
        torch.save(whole, out / f"{SHARDED_CASE}.pt")
