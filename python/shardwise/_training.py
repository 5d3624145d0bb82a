"""The training state of a checkpoint: parameters, what the optimizer keeps of them, ranks."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Optional

from . import _core
from ._errors import InvalidArgumentError, UnsupportedError
from ._tensor import Tensor, _Dim

Group = dict[str, Any]


@dataclass(frozen=True)
class Param:
    """A parameter of the model, joined from all ranks: the same in every layout.

    weight: the model's tensor. master: the optimizer's float32 copy, or None.
    states: of the optimizer by name, such as "exp_avg" and "momentum_buffer".
    group: the parameter group that it is in, a dict as in `Optimizer.groups`; None where no groups
        are stored.
    """

    name: str
    weight: Tensor
    master: Optional[Tensor]
    states: dict[str, Tensor]
    group: Optional[Group]

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the whole parameter, in elements."""
        return self.weight.shape


@dataclass(frozen=True)
class Optimizer:
    """The optimizers of a run.

    groups: of each parameter group a dict: its settings as they are stored ("lr", "betas",
        "weight_decay", ...), and "rule" ("AdamW", "Muon", ...), "optimizer" and "group" (its place
        in the chain and in that optimizer), "file", and "params", the names of its parameters where
        they are known, else an empty list.
    """

    groups: list[Group]


@dataclass(frozen=True)
class Rank:
    """One rank of the run, by its place in the grid. Made by `Checkpoint.rank`."""

    _training: _core.Training
    _place: dict[str, int]
    _chunk: Optional[int]

    def state_dict(self, framework: str = "torch") -> dict[str, Any]:
        """What Megatron has on this rank, as its format ``torch`` of core 0.18-dev files it.

        "model" ("model0", "model1", ... of a stage of several chunks), "optimizer" with the state
        that this rank owns, "args", "iteration", ...; "distrib_optim" where optimizer state lies in
        flat buffers: those of all ranks that share them.
        framework: what tensors become: "torch", "numpy", or "lazy" for `Tensor`.

        Raises UnsupportedError for models of which Megatron's order of parameters is not known.
        """
        made = self._training.rank(self._place, maker(framework))
        state: dict[str, Any] = made.pop("model_optim_rng")
        if self._chunk is not None:
            name = f"model{self._chunk}"
            if name not in state and not (self._chunk == 0 and "model" in state):
                raise InvalidArgumentError(f"vpp={self._chunk}: this rank has no such model chunk")
            for key in [key for key in state if key.startswith("model")]:
                if key not in (name, "model"):
                    del state[key]
        return {**state, **made}


def maker(framework: str) -> Callable[..., Any]:
    """What makes a framework's tensor of the core's, or of a part of it."""
    kinds: dict[str, Callable[[Tensor], Any]] = {
        "torch": Tensor.torch, "numpy": Tensor.numpy, "lazy": lambda tensor: tensor}
    if framework not in kinds:
        raise InvalidArgumentError(f"framework={framework!r} is not torch, numpy or lazy")
    if framework == "torch":
        try:
            import torch  # noqa: F401
        except ImportError:
            raise UnsupportedError("torch is not installed",
                                   hint='framework="numpy" or "lazy" needs none') from None

    def make(core: Any, offsets: tuple[int, ...] | None = None,
             sizes: tuple[int, ...] = ()) -> Any:
        dims = tuple(_Dim(start, 1, size) for start, size in zip(offsets or (), sizes))
        return kinds[framework](Tensor(core, dims=dims or None))
    return make


def params_of(training: _core.Training, groups: list[Group]) -> dict[str, Param]:
    """The parameters by name, in the model's order; notes their names in the groups."""
    by_place = {(group["optimizer"], group["group"]): group for group in groups}
    params = {}
    for name, weight, master, states, optimizer, index in training.params:
        group = by_place.get((optimizer, index)) if master is not None or states else None
        if group is not None:
            group["params"].append(name)
        params[name] = Param(name, Tensor(weight, name),
                             None if master is None else Tensor(master),
                             {key: Tensor(value) for key, value in states.items()}, group)
    return params
