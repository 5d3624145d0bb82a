"""Stands in for the packages mamba_ssm, causal_conv1d and fla, whose kernels need a GPU: what
Megatron imports of them to build layers of Mamba and GatedDeltaNet. Nothing can be run forward.

Call `install` before Megatron is imported.
"""

from __future__ import annotations

import importlib.machinery
import sys
import types

import torch


class GatedNorm(torch.nn.Module):
    """Mamba's RMSNorm with a gate: one weight for each of its rank's channels."""

    def __init__(self, hidden_size, eps=1e-5, bias=None, group_size=None, norm_before_gate=True,
                 device=None, dtype=None):
        super().__init__()
        self.eps, self.group_size, self.norm_before_gate = eps, group_size, norm_before_gate
        self.weight = torch.nn.Parameter(torch.ones(hidden_size, dtype=dtype))
        self.register_parameter("bias", None)


def _no_kernel(*_, **__):
    raise NotImplementedError("needs a GPU")


CONTENTS = {
    "mamba_ssm": {}, "mamba_ssm.ops": {}, "mamba_ssm.ops.triton": {},
    "mamba_ssm.ops.triton.layernorm_gated": {"RMSNorm": GatedNorm},
    "mamba_ssm.ops.triton.ssd_combined": dict.fromkeys(
        ("mamba_chunk_scan_combined", "mamba_split_conv1d_scan_combined"), _no_kernel),
    "mamba_ssm.ops.triton.selective_state_update": {"selective_state_update": _no_kernel},
    "causal_conv1d": dict.fromkeys(("causal_conv1d_fn", "causal_conv1d_update"), _no_kernel),
    "causal_conv1d.causal_conv1d_varlen": {"causal_conv1d_varlen_states": _no_kernel},
    "causal_conv1d.cpp_functions": dict.fromkeys(
        (f"causal_conv1d_{kind}_function" for kind in ("fwd", "bwd", "update")), _no_kernel),
    "fla": {}, "fla.modules": {}, "fla.modules.l2norm": {"l2norm": _no_kernel},
    "fla.modules.convolution": {"causal_conv1d": _no_kernel},
    "fla.ops": {}, "fla.ops.gated_delta_rule": {"chunk_gated_delta_rule": _no_kernel},
    "fla.ops.kda": {"chunk_kda": _no_kernel},
}


def install() -> None:
    for name, contents in CONTENTS.items():
        module = types.ModuleType(name)
        module.__dict__.update(contents, __path__=[], __version__="2.3.0",
                               __spec__=importlib.machinery.ModuleSpec(name, None))
        sys.modules[name] = module
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], child, module)
