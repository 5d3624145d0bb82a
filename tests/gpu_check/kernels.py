"""libshardwise_gpu.so through ctypes: the kernels on tensors of torch. libshardwise_gpu_host.so has
the same functions by the kernels' CPU twins, on tensors on the CPU: for dry runs."""
import ctypes
from ctypes import (POINTER, byref, c_char_p, c_double, c_float, c_int, c_int32, c_int64, c_uint8,
                    c_uint32, c_uint64, c_void_p)

import torch

NONE, F32, BF16, F16, F8, SPLIT = range(6)
ADAM, FUSED_ADAM, SGD, LION, MUON = range(5)
DECOUPLED, INDEPENDENT, L2, PALM = range(4)
SCALE_MODES = {"spectral": 0, "unit_rms_norm": 1, "shape_scaling": 2}
BYTES = {NONE: 0, F32: 4, BF16: 2, F16: 2, F8: 1, SPLIT: 2}
DTYPES = {F32: torch.float32, BF16: torch.bfloat16, F16: torch.float16, F8: torch.uint8,
          SPLIT: torch.bfloat16}
QUINTIC = [(4.0848, -6.8946, 2.9270), (3.9505, -6.3029, 2.6377), (3.7418, -5.5913, 2.3037),
           (2.8769, -3.1427, 1.2046), (2.8366, -3.0525, 1.2012)]
NO_STATS = 0xFFFFFFFF
TILES_ALONE, TILES_IN_PAIRS = -2, -3
where = "cuda"  # or "cpu": what the library says


class Group(ctypes.Structure):
    """CGroup of c_api.cc."""
    _fields_ = [(name, c_double) for name in
                ("lr", "weight_decay", "beta1", "beta2", "eps", "extra_scale")]
    _fields_ += [("step", c_int64)]
    _fields_ += [(name, c_int32) for name in
                 ("rule", "decay", "bias_correction", "nesterov", "ns_steps", "ns_type", "tf32",
                  "scale_mode")]
    _fields_ += [("coefficients", c_float * 3 * 16)]


class Param(ctypes.Structure):
    """CParam of c_api.cc."""
    _fields_ = [("grad", c_void_p), ("main", c_void_p), ("remainder", c_void_p),
                ("state", c_void_p * 2), ("model", c_void_p), ("scale", c_void_p * 3),
                ("count", c_int64), ("rows", c_int64), ("columns", c_int64),
                ("group", c_uint32), ("stats_index", c_uint32), ("qkv_rows", c_uint32 * 3),
                ("grad_type", c_uint8), ("main_type", c_uint8), ("state_type", c_uint8 * 2),
                ("model_type", c_uint8)]


SIGNATURES = {
    "sw_problem": (c_char_p, []),
    "sw_status_text": (c_char_p, [c_int]),
    "sw_device": (c_char_p, []),
    "sw_group_bytes": (c_uint64, []),
    "sw_param_bytes": (c_uint64, []),
    "sw_new": (c_void_p, []),
    "sw_free": (None, [c_void_p]),
    "sw_add_group": (None, [c_void_p, POINTER(Group)]),
    "sw_add_param": (None, [c_void_p, POINTER(Param)]),
    "sw_make": (c_int, [c_void_p, POINTER(c_uint64)]),
    "sw_bind": (c_int, [c_void_p, c_void_p, c_void_p]),
    "sw_set_control": (c_int, [c_void_p, c_float, c_float, c_void_p]),
    "sw_stats": (c_int, [c_void_p, c_void_p]),
    "sw_update": (c_int, [c_void_p, c_void_p]),
    "sw_queue_seconds": (c_double, [c_void_p, c_void_p]),
    "sw_capture": (c_int, [c_void_p]),
    "sw_ns_new": (c_void_p, [c_int64 * 4, c_int, POINTER(c_int)]),
    "sw_ns_free": (None, [c_void_p]),
    "sw_ns_workspace_bytes": (c_uint64, []),
    "sw_ns_run": (c_int, [c_void_p, c_void_p * 5, POINTER(Group), c_void_p]),
    "sw_ns_gram": (c_int, [c_void_p, c_void_p * 5, c_void_p]),
    "sw_ns_model": (c_int, [c_void_p, c_int64, c_double * 6]),
    "sw_move_mix": (c_int, [c_int32 * 6, c_void_p * 6, c_int64, c_void_p]),
    "sw_read_only": (c_int, [c_void_p, c_int64, c_void_p, c_void_p]),
    "sw_copy": (c_int, [c_void_p * 2, c_int64, c_void_p]),
    "sw_triad": (c_int, [c_void_p * 3, c_int64, c_void_p]),
}


class Library:
    """The functions by name; a status other than 0 raises."""

    def __init__(self, path):
        self.functions = ctypes.CDLL(path)
        for name, (result, arguments) in SIGNATURES.items():
            function = getattr(self.functions, name)
            function.restype, function.argtypes = result, arguments
        if self.functions.sw_group_bytes() != ctypes.sizeof(Group) or \
                self.functions.sw_param_bytes() != ctypes.sizeof(Param):
            raise RuntimeError("kernels.py and c_api.cc describe different structures")
        global where
        where = self.functions.sw_device().decode()

    def problem(self):
        text = self.functions.sw_problem()
        return text.decode() if text else None

    def call(self, name, *arguments):
        status = getattr(self.functions, name)(*arguments)
        if status != 0:
            text = self.functions.sw_status_text(status).decode()
            raise RuntimeError(f"{name}: {text}")


def stream():
    if where == "cpu":
        return None
    return c_void_p(torch.cuda.current_stream().cuda_stream)


def pointer(tensor):
    return None if tensor is None else tensor.data_ptr()


def make_group(rule=ADAM, **fields):
    group = Group(lr=1e-3, weight_decay=0.1, beta1=0.9, beta2=0.95, eps=1e-8, extra_scale=1.0,
                  rule=rule, decay=DECOUPLED, bias_correction=1, ns_type=BF16)
    coefficients = fields.pop("coefficients", QUINTIC)
    group.ns_steps = len(coefficients)
    for i, row in enumerate(coefficients):
        group.coefficients[i] = (c_float * 3)(*row)
    for name, value in fields.items():
        setattr(group, name, value)
    return group


class Tensors:
    """The tensors of one parameter on the GPU, of random values."""

    def __init__(self, count, grad=BF16, main=F32, states=(F32, F32), model=BF16):
        self.types = (grad, main, tuple(states), model)
        self.count = count
        self.scales = torch.full((3, 2), 1e-3, device=where)
        self.scales[:, 1] = 0  # absmax_bits
        self.step_count = torch.ones((), device=where)  # of torch's AdamW
        self.grad = self.random(grad, 0.1)
        self.main = self.random(main, 1.0)
        self.remainder = torch.zeros(count, dtype=torch.int16, device=where) \
            if main == SPLIT else None
        self.states = [self.random(states[0], 0.1), self.random(states[1], 0.01, positive=True)]
        self.model = self.random(model, 1.0)

    def random(self, kind, factor, positive=False):
        if kind == NONE:
            return None
        if kind == F8:  # any positive bits but NaN
            return torch.randint(0, 0x7E, (self.count,), dtype=torch.uint8, device=where)
        tensor = torch.empty(self.count, dtype=DTYPES[kind], device=where).normal_().mul_(factor)
        return tensor.abs_() if positive else tensor

    def param(self, group=0, stats_index=0, rows=0, columns=0, qkv_rows=(0, 0, 0)):
        grad, main, states, model = self.types
        scales = [self.scales[i].data_ptr() for i in range(3)]
        return Param(grad=pointer(self.grad), main=pointer(self.main),
                     remainder=pointer(self.remainder),
                     state=(c_void_p * 2)(*map(pointer, self.states)), model=pointer(self.model),
                     scale=(c_void_p * 3)(*scales), count=self.count, rows=rows, columns=columns,
                     group=group, stats_index=stats_index, qkv_rows=(c_uint32 * 3)(*qkv_rows),
                     grad_type=grad, main_type=main, state_type=(c_uint8 * 2)(*states),
                     model_type=model)

    def bytes_moved(self):
        """Of one update: everything read once and written once."""
        grad, main, states, model = (self.types[0], self.types[1], self.types[2], self.types[3])
        twice = BYTES[main] + (2 if main == SPLIT else 0) + sum(BYTES[s] for s in states)
        return self.count * (BYTES[grad] + 2 * twice + BYTES[model])


class Step:
    """A DeviceStep over some parameters, with memory of torch's."""

    def __init__(self, library, groups, params):
        self.library = library
        self.session = c_void_p(library.functions.sw_new())
        for group in groups:
            library.functions.sw_add_group(self.session, byref(group))
        for param in params:
            library.functions.sw_add_param(self.session, byref(param))
        count = c_uint64()
        library.call("sw_make", self.session, byref(count))
        self.memory = torch.empty(count.value + 256, dtype=torch.uint8, device=where)
        place = (self.memory.data_ptr() + 255) // 256 * 256
        library.call("sw_bind", self.session, c_void_p(place), stream())

    def __del__(self):
        self.library.functions.sw_free(self.session)

    def set_control(self, inverse_scale=1.0, max_norm=0.0):
        self.library.call("sw_set_control", self.session, inverse_scale, max_norm, stream())

    def stats(self):
        self.library.call("sw_stats", self.session, stream())

    def update(self):
        self.library.call("sw_update", self.session, stream())

    def queue_ms(self):
        """Queues a whole step; the milliseconds that this takes the host."""
        seconds = self.library.functions.sw_queue_seconds(self.session, stream())
        if seconds < 0:
            raise RuntimeError("a step could not be queued")
        return 1e3 * seconds

    def capture(self):
        self.library.call("sw_capture", self.session)


class NewtonSchulz:
    """A batch of bf16 matrices of one shape. block: edge of the blocks of symmetric products, 0: in
    full, -1: what a step would take, TILES_ALONE and TILES_IN_PAIRS: by our own kernel."""

    def __init__(self, library, rows, columns, batch, block=-1):
        self.library = library
        edge = min(rows, columns)
        status = c_int()
        shape = (c_int64 * 4)(rows, columns, batch, block)
        self.session = c_void_p(library.functions.sw_ns_new(shape, BF16, byref(status)))
        if status.value != 0:
            raise RuntimeError(library.functions.sw_status_text(status.value).decode())
        new = dict(dtype=torch.bfloat16, device=where)
        self.iterate = torch.empty(batch, rows, columns, **new)
        self.next = torch.empty(batch, rows, columns, **new)
        self.squares = [torch.empty(batch, edge, edge, **new) for _ in range(2)]
        self.workspace = torch.empty(library.functions.sw_ns_workspace_bytes(),
                                     dtype=torch.uint8, device=where)
        self.group = make_group(MUON)

    def __del__(self):
        self.library.functions.sw_ns_free(self.session)

    def buffers(self):
        return (c_void_p * 5)(self.iterate.data_ptr(), self.next.data_ptr(),
                              *[square.data_ptr() for square in self.squares],
                              self.workspace.data_ptr())

    def run(self):
        """From self.iterate; five steps leave the result in self.next."""
        self.library.call("sw_ns_run", self.session, self.buffers(), byref(self.group), stream())
        return self.next

    def model(self, block):
        """By plan_symmetric()'s model, milliseconds of the first symmetric product: whole, in
        blocks of this edge, by tiles alone, by tiles in pairs; and cuBLASLt's tile."""
        numbers = (c_double * 6)()
        self.library.call("sw_ns_model", self.session, block, numbers)
        return [1e3 * seconds for seconds in numbers[:4]], [int(side) for side in numbers[4:]]

    def gram(self):
        """The first symmetric product alone."""
        self.library.call("sw_ns_gram", self.session, self.buffers(), stream())
