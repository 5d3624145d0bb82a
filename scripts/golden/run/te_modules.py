"""Stands in for the package transformer_engine: modules that hold parameters and cannot compute.

What a checkpoint shows of TransformerEngine is kept as its releases have it: the names of the
parameters and the order in which they are registered, the attributes of tensor parallelism, and an
extra state for every module. Without fp8 it is an empty byte tensor, or, as up to release 2.3, a
stream with a pickled None; with fp8 it has bytes, those of delayed scaling here.

Nothing can be run forward. Call `install` before Megatron is imported.
"""

from __future__ import annotations

import copy
import io
import pickle
import sys
import types

import torch

VERSION = "2.12.0"


class DelayedScaling:
    """The recipe, as far as its pickled form and Megatron's constructor need it."""

    amax_history_len = 4

    def __init__(self, **fields):
        self.__dict__.update(fields)

    def delayed(self):
        return True


DelayedScaling.__module__ = "transformer_engine.common.recipe"


def no_fp8(_module) -> dict | None:
    return None


class EngineModule(torch.nn.Module):
    """What all modules share: the extra state."""

    fp8_state_of = staticmethod(no_fp8)  # of a module: what it pickles; None where fp8 is off
    streams = False  # as up to release 2.3

    def __init__(self):
        super().__init__()
        self.fp8 = self.fp8_calibration = False
        self.fp8_meta = {"fp8_checkpoint": False, "recipe": None}

    def init_fp8_metadata(self, num_gemms=1):
        self.fp8_meta["num_gemms"] = num_gemms

    def get_extra_state(self):
        state = self.fp8_state_of(self)
        if self.streams:
            return self._old_extra_state(state)
        if state is None:
            return torch.empty(0, dtype=torch.uint8)
        return torch.frombuffer(bytearray(pickle.dumps(state)), dtype=torch.uint8).clone()

    def _old_extra_state(self, state):
        stream = io.BytesIO()
        torch.save(state, stream)
        return stream

    def set_extra_state(self, state):
        self.loaded_extra_state = copy.deepcopy(state)


def _mark_split(tensor, dim):
    tensor.tensor_model_parallel = True
    tensor.partition_dim = dim
    tensor.partition_stride = 1


class _Linear(EngineModule):
    """The weight, then the bias; a split one has the part of its tensor-parallel rank."""

    def _register(self, in_features, out_features, options):
        self.parallel_mode = options.get("parallel_mode")
        self.tp_size = options.get("tp_size", 1)
        if options.get("tp_group") is not None:
            self.tp_size = torch.distributed.get_world_size(options["tp_group"])
        if self.parallel_mode == "column":
            out_features //= self.tp_size
        elif self.parallel_mode == "row":
            in_features //= self.tp_size
        self.in_features, self.out_features = in_features, out_features
        self.use_bias = options.get("bias", True)
        self.sequence_parallel = self.tp_size > 1 and options.get("sequence_parallel", False)
        self.dtype = options.get("params_dtype")

    def _add(self, name, *shape):
        parameter = torch.nn.Parameter(torch.zeros(*shape, dtype=self.dtype))
        self.register_parameter(name, parameter)
        return parameter

    def _add_linear(self, weight, bias):
        added = self._add(weight, self.out_features, self.in_features)
        _mark_split(added, 1 if self.parallel_mode == "row" else 0)
        if not self.use_bias:
            setattr(self, bias, torch.Tensor().to(self.dtype))
            return
        added = self._add(bias, self.out_features)
        if self.parallel_mode == "column":
            _mark_split(added, 0)
        elif self.parallel_mode == "row":
            added.sequence_parallel = self.sequence_parallel


class Linear(_Linear):
    def __init__(self, in_features, out_features, **options):
        super().__init__()
        self._register(in_features, out_features, options)
        self._add_linear("weight", "bias")


class LayerNormLinear(_Linear):
    """The norm's weight and bias, then the linear's."""

    def __init__(self, in_features, out_features, **options):
        super().__init__()
        self._register(in_features, out_features, options)
        self.normalization = options.get("normalization", "LayerNorm")
        self.eps = options.get("eps", 1e-5)
        self._add("layer_norm_weight", self.in_features)
        self.layer_norm_weight.sequence_parallel = self.sequence_parallel
        if self.normalization == "RMSNorm":
            self.layer_norm_bias = None
        else:
            self._add("layer_norm_bias", self.in_features)
            self.layer_norm_bias.sequence_parallel = self.sequence_parallel
        self._add_linear("weight", "bias")


class GroupedLinear(_Linear):
    """weight0, bias0, weight1, bias1, ...: one of each per expert of the rank; one extra state."""

    def __init__(self, num_gemms, in_features, out_features, **options):
        super().__init__()
        self.num_gemms = num_gemms
        self._register(in_features, out_features, options)
        for i in range(num_gemms):
            self._add_linear(f"weight{i}", f"bias{i}")


class _Norm(EngineModule):
    def __init__(self, normalized_shape=None, eps=1e-5, sequence_parallel=None, **options):
        super().__init__()
        self.eps = eps
        normalized_shape = normalized_shape or options["hidden_size"]  # as older callers say
        names = ("weight", "bias") if self.has_bias else ("weight",)
        for name in names:
            parameter = torch.nn.Parameter(
                torch.ones(normalized_shape, dtype=options.get("params_dtype"))
            )
            if sequence_parallel is not None:
                parameter.sequence_parallel = sequence_parallel
            self.register_parameter(name, parameter)


    def _old_extra_state(self, _state):
        return torch.frombuffer(bytearray(pickle.dumps({})), dtype=torch.uint8).clone()


class LayerNorm(_Norm):
    has_bias = True


class RMSNorm(_Norm):
    has_bias = False


class DotProductAttention(EngineModule):
    """No parameters; an extra state like all the others, which may be missing in what is loaded."""

    def __init__(self, **options):
        super().__init__()
        self.register_load_state_dict_post_hook(self._need_no_extra_state)

    @staticmethod
    def _need_no_extra_state(_module, incompatible):
        for key in list(incompatible.missing_keys):
            if key.endswith("_extra_state"):
                incompatible.missing_keys.remove(key)


class _Absent:
    """A name that Megatron imports and does not use without a GPU."""

    def __init__(self, *_, **__):
        pass

    def __getattr__(self, name):
        raise AttributeError(name)


class _StatesTracker(_Absent):
    pass


class _Fp8State(_Absent):
    @staticmethod
    def is_fp8_enabled():
        return False


def _absent(*names):
    return {name: type(name, (_Absent,), {}) for name in names}


def _contents() -> dict[str, dict]:
    recipes = _absent("Format", "Float8CurrentScaling", "Float8BlockScaling", "MXFP8BlockScaling",
                      "NVFP4BlockScaling")
    return {
        "": {"__version__": VERSION},
        ".common": {},
        ".common.recipe": {"DelayedScaling": DelayedScaling, **recipes},
        ".pytorch": {c.__name__: c for c in (Linear, LayerNormLinear, GroupedLinear, LayerNorm,
                                             RMSNorm, DotProductAttention)},
        ".pytorch.distributed": {"CudaRNGStatesTracker": _StatesTracker,
                                 **_absent("checkpoint", "activation_recompute_forward",
                                           "is_fp8_activation_recompute_enabled")},
        ".pytorch.fp8": {"FP8GlobalStateManager": _Fp8State, **_absent("fp8_autocast")},
        ".pytorch.module": {},
        ".pytorch.module.base": {"TransformerEngineBaseModule": EngineModule,
                                 **_absent("get_dummy_wgrad")},
        ".pytorch.ops": _absent("Sequential", "FusibleOperation"),
        ".pytorch.router": _absent("fused_topk_with_score_function",
                                   "fused_compute_score_for_moe_aux_loss", "fused_moe_aux_loss"),
        ".pytorch.cpu_offload_v1": {},
        ".pytorch.tensor": _absent("QuantizedTensor"),
    }


def install() -> None:
    modules = {}
    for suffix, contents in _contents().items():
        module = types.ModuleType("transformer_engine" + suffix)
        module.__dict__.update(contents, __path__=[])
        modules[module.__name__] = module
    for name, module in modules.items():
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(modules[parent], child, module)
    sys.modules.update(modules)
