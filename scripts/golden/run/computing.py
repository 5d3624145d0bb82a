"""Lets what stands in for TransformerEngine and for kernels of state spaces compute, on one rank:
each function is its formula, token by token, in the type of its input.

Call `install` before Megatron is imported.
"""

from __future__ import annotations

import functools
import math

import torch
from torch.nn import functional

from golden.run import state_space, te_modules


def _norm(x, weight, module):
    """Root mean square; a gamma that is stored without the 1 of its mean is so by option."""
    offset = 1 if module.options.get("zero_centered_gamma") else 0
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + module.eps) * (weight + offset)


def _returned(module, out):
    return (out, None) if module.options.get("return_bias") else out


def _linear(self, x, **_):
    return _returned(self, functional.linear(x, self.weight))


def _norm_linear(self, x, **_):
    x = _norm(x, self.layer_norm_weight, self)
    return _returned(self, functional.linear(x, self.weight))


def _grouped(self, x, m_splits, **_):
    parts = [functional.linear(part, getattr(self, f"weight{expert}"))
             for expert, part in enumerate(x.split([int(count) for count in m_splits]))]
    return _returned(self, torch.cat(parts))


def _attention(self, query, key, value, *_, **__):
    """Causal; tokens first, then batch, heads."""
    length, batch, heads, size = query.shape
    repeated = heads // key.shape[2]
    key, value = (x.repeat_interleave(repeated, 2) for x in (key, value))
    scale = self.options.get("softmax_scale") or 1 / math.sqrt(size)
    scores = torch.einsum("sbhd,tbhd->bhst", query, key) * scale
    hidden = torch.triu(torch.ones(length, length, dtype=torch.bool), 1)
    weights = scores.masked_fill(hidden, -math.inf).softmax(-1)
    return torch.einsum("bhst,tbhd->sbhd", weights, value).reshape(length, batch, -1)


def _gated_norm(self, x, z=None):
    x = x if z is None else x * functional.silu(z)
    groups = x.unflatten(-1, (-1, self.group_size or x.shape[-1]))
    groups = groups * torch.rsqrt(groups.pow(2).mean(-1, keepdim=True) + self.eps)
    return groups.flatten(-2) * self.weight


def _convolved(x, weight, bias):
    """Of the last `width` tokens, channel by channel: x is [batch, tokens, channels]."""
    x = functional.pad(x.transpose(1, 2), (weight.shape[-1] - 1, 0))
    return functional.conv1d(x, weight.unsqueeze(1), bias, groups=len(weight)).transpose(1, 2)


def _mamba(  # noqa: PLR0913
    rows, conv_weight, conv_bias, dt_bias, a, D, headdim, ngroups, **_  # noqa: N803
):
    heads, channels = len(a), len(conv_weight)
    inner = heads * headdim
    z, xbc, dt = rows.split((inner, channels, heads), -1)
    xbc = functional.silu(_convolved(xbc, conv_weight, conv_bias))
    x, b, c = xbc.split((inner, (channels - inner) // 2, (channels - inner) // 2), -1)
    x = x.unflatten(-1, (heads, headdim))
    b, c = (part.unflatten(-1, (ngroups, -1)).repeat_interleave(heads // ngroups, 2)
            for part in (b, c))
    dt = functional.softplus(dt + dt_bias)
    state, out = torch.zeros(len(x), heads, headdim, b.shape[-1]), []
    for t in range(x.shape[1]):
        step = dt[:, t, :, None, None]
        state = state * torch.exp(step * a[:, None, None])
        state = state + step * x[:, t, :, :, None] * b[:, t, :, None, :]
        out.append((state * c[:, t, :, None, :]).sum(-1) + D[:, None] * x[:, t])
    return torch.stack(out, 1).flatten(2) * functional.silu(z)


def _delta(query, key, value, g, beta, **_):
    query, state, out = query / math.sqrt(query.shape[-1]), 0, []
    for t in range(query.shape[1]):
        state = state * g[:, t, :, None, None].exp()
        known = (state * key[:, t, :, :, None]).sum(-2)
        change = (value[:, t] - known) * beta[:, t, :, None]
        state = state + key[:, t, :, :, None] * change[:, :, None, :]
        out.append((state * query[:, t, :, :, None]).sum(-2))
    return torch.stack(out, 1), None


def _remember_options(module):
    make = module.__init__

    @functools.wraps(make)
    def with_options(self, *values, **options):
        make(self, *values, **options)
        self.options = options

    module.__init__ = with_options


def install() -> None:
    forwards = {"Linear": _linear, "LayerNormLinear": _norm_linear, "GroupedLinear": _grouped,
                "RMSNorm": lambda self, x: _norm(x, self.weight, self),
                "DotProductAttention": _attention}  # fmt: skip
    for name, forward in forwards.items():
        module = getattr(te_modules, name)
        _remember_options(module)
        module.forward = forward
    state_space.GatedNorm.forward = _gated_norm
    contents = state_space.CONTENTS
    contents["mamba_ssm.ops.triton.ssd_combined"]["mamba_split_conv1d_scan_combined"] = _mamba
    contents["fla.ops.gated_delta_rule"]["chunk_gated_delta_rule"] = _delta
    contents["fla.modules.l2norm"]["l2norm"] = lambda x: x * torch.rsqrt(
        x.pow(2).sum(-1, keepdim=True) + 1e-6)
    contents["fla.modules.convolution"]["causal_conv1d"] = lambda x, weight, bias, **_: (
        functional.silu(_convolved(x, weight, bias)), None)
