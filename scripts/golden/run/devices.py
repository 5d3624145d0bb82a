"""Lets code that was written for GPUs run on a CPU: 'cuda' names the CPU from here on.

What only CUDA has does nothing. Values, names and the order of calls are those of the real code; a
generator state of CUDA is the 16 bytes (seed, offset) that the real one has.

Import this before Megatron.
"""

from __future__ import annotations

import contextlib
import functools
import os
import types

os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "1")
os.environ.setdefault("TORCH_COMPILE_DISABLE", "1")

import torch  # noqa: E402

CPU = torch.device("cpu")
FACTORIES = (
    "arange as_tensor empty empty_like full full_like linspace ones ones_like rand randint randn "
    "tensor zeros zeros_like"
).split()


def on_cpu(device):
    """The CPU where a GPU is meant; anything else as it is."""
    if isinstance(device, int) and not isinstance(device, bool):
        return CPU
    if isinstance(device, (str, torch.device)) and str(device).startswith("cuda"):
        return CPU
    return device


def _factory(make):
    @functools.wraps(make)
    def on_this_device(*values, **options):
        if "device" in options:
            options["device"] = on_cpu(options["device"])
        options.pop("pin_memory", None)
        return make(*values, **options)

    return on_this_device


class Inert:
    """A stream, an event: every method does nothing."""

    def __init__(self, *_, **__):
        pass

    def __getattr__(self, _name):
        return lambda *_, **__: None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return False


class _Generator:
    """The state of the CUDA generator, which nothing here draws from."""

    def __init__(self):
        self.seed(1234)

    def seed(self, seed):
        self.state = torch.frombuffer(
            bytearray(int(seed).to_bytes(8, "little") + bytes(8)), dtype=torch.uint8
        ).clone()

    def get(self, *_, **__):
        return self.state.clone()

    def set(self, state, *_, **__):
        self.state = state.clone()


def _replace_tensor_methods():
    move, type_name = torch.Tensor.to, torch.Tensor.type

    def to(self, *values, **options):
        values = [on_cpu(v) if isinstance(v, (str, torch.device)) else v for v in values]
        if "device" in options:
            options["device"] = on_cpu(options["device"])
        return move(self, *values, **options)

    def cuda_type(self, *values, **options):
        if values or options:
            values = [v.replace("torch.cuda.", "torch.") if isinstance(v, str) else v
                      for v in values]
            return type_name(self, *values, **options)
        return type_name(self).replace("torch.", "torch.cuda.", 1)

    torch.Tensor.to = to
    torch.Tensor.type = cuda_type
    torch.Tensor.cuda = lambda self, *_, **__: self
    torch.Tensor.pin_memory = lambda self, *_, **__: self
    torch.nn.Module.cuda = lambda self, *_, **__: self


def _replace_cuda():
    cuda, generator = torch.cuda, _Generator()
    properties = types.SimpleNamespace(
        name="cpu", total_memory=1 << 37, major=9, minor=0, multi_processor_count=1
    )
    for name in ("synchronize", "empty_cache", "set_device"):
        setattr(cuda, name, lambda *_, **__: None)
    for name in ("memory_allocated", "max_memory_allocated", "memory_reserved",
                 "max_memory_reserved"):
        setattr(cuda, name, lambda *_, **__: 0)
    cuda.current_device = lambda: CPU
    cuda.Stream = cuda.Event = Inert
    cuda.current_stream = lambda *_, **__: Inert()
    cuda.stream = lambda *_, **__: contextlib.nullcontext()
    cuda.get_device_capability = lambda *_, **__: (9, 0)
    cuda.get_device_properties = lambda *_, **__: properties
    cuda.mem_get_info = lambda *_, **__: (1 << 36, 1 << 37)
    cuda.get_rng_state = cuda.random.get_rng_state = generator.get
    cuda.set_rng_state = cuda.random.set_rng_state = generator.set
    cuda.manual_seed = cuda.manual_seed_all = generator.seed


def replace_devices() -> None:
    for name in FACTORIES:
        setattr(torch, name, _factory(getattr(torch, name)))
    _replace_tensor_methods()
    _replace_cuda()
