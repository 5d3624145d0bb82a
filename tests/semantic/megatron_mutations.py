"""Changes of a LayerWise checkpoint that have a meaning: to its trees anywhere, or to what belongs
together (a parameter's weight, master and states; one key on every rank)."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from tree_mutations import NAN, change_tree


@dataclass
class LayerWise:
    """The files of a `torch` checkpoint, loaded."""

    ranks: list[list[dict]]  # layer_wise_optimizer_R.pt
    model: dict  # model_optim_rng.pt


@dataclass
class Parameter:
    """Where the parts of a parameter are: found by content, as its master rounds to its weight."""

    name: str
    weights: dict
    state: dict[int, dict]
    index: int  # in `state`
    masters: list[torch.Tensor]
    place: int  # in `masters`

    @property
    def states(self) -> dict:
        return self.state[self.index]

    def state_names(self) -> list[str]:
        """The tensors of its size: not the step."""
        return [name for name, value in self.states.items() if value.dim()]


def parameters(checkpoint: LayerWise) -> list[Parameter]:
    found = []
    masters = {content_key(p): p for p in numbered_masters(checkpoint)}
    for name, weight in checkpoint.model["model"].items():
        if not isinstance(weight, torch.Tensor):
            continue
        owner = masters.get(weight.view(torch.int16).numpy().tobytes())
        if owner is not None:
            owner.name, owner.weights = name, checkpoint.model["model"]
            found.append(owner)
    return found


def numbered_masters(checkpoint: LayerWise) -> Iterator[Parameter]:
    for rank in checkpoint.ranks:
        for optimizer in rank:
            index = 0
            for masters in optimizer["fp32_from_fp16_params"]:
                for place in range(len(masters)):
                    state = optimizer["optimizer"]["state"]
                    yield Parameter("", {}, state, index, masters, place)
                    index += 1


def content_key(parameter: Parameter) -> bytes:
    master = parameter.masters[parameter.place].detach()
    return master.to(torch.bfloat16).view(torch.int16).numpy().tobytes()


# --- anywhere in one of the files


ARGUMENTS = (
    "parallel", "muon", "layer", "hidden", "optim", "adam", "swiglu", "bias", "norm", "untie",
    "position", "group", "ffn", "head", "moe",
)  # fmt: skip
ARGUMENT_VALUES = (None, 0, 1, 2, 3, -1, 2**40, "x", True, False, 1.5, [1], [0, 1])


def change_arguments(choice: random.Random, checkpoint: LayerWise) -> str:
    return change_args(choice, checkpoint.model["args"])


def change_args(choice: random.Random, args: object) -> str:
    names = [name for name in vars(args) if any(part in name for part in ARGUMENTS)]
    name = choice.choice(names)
    setattr(args, name, choice.choice(ARGUMENT_VALUES))
    return f"args.{name} = {getattr(args, name)!r}"


def change_a_rank(choice: random.Random, checkpoint: LayerWise) -> str:
    rank = choice.randrange(len(checkpoint.ranks))
    return change_tree(choice, checkpoint.ranks[rank], f"rank {rank}")


def change_the_model(choice: random.Random, checkpoint: LayerWise) -> str:
    return change_tree(choice, checkpoint.model["model"], "model")


def change_the_common_state(choice: random.Random, checkpoint: LayerWise) -> str:
    rest = {k: v for k, v in checkpoint.model.items() if k not in ("model", "optimizer")}
    said = change_tree(choice, rest, "common")
    checkpoint.model.update(rest)
    for key in set(checkpoint.model) - set(rest) - {"model", "optimizer"}:
        del checkpoint.model[key]
    return said


# --- what belongs together


def ranks_of(choice: random.Random, checkpoint: LayerWise) -> list[int]:
    """All, one, or all but one."""
    every = list(range(len(checkpoint.ranks)))
    one = choice.choice(every)
    return choice.choice((every, [one], [rank for rank in every if rank != one] or every))


def add_key(choice: random.Random, checkpoint: LayerWise) -> str:
    """A key of which nothing is known, equal on the ranks or not."""
    optimizer, where = choice.randrange(2), choice.choice(("inner", "outer", "group", "state"))
    ranks, equal = ranks_of(choice, checkpoint), choice.random() < 0.5
    value = choice.choice((1, "text", {}, [], {"a": {}}, torch.ones(2), None))
    for rank in ranks:
        whole = checkpoint.ranks[rank][optimizer % len(checkpoint.ranks[rank])]
        inner = whole["optimizer"]
        places = {"inner": inner, "outer": whole, "group": inner["param_groups"][-1]}
        places["state"] = next(iter(inner["state"].values()), inner)
        places[where]["zz_new"] = value if equal else [copy.deepcopy(value), rank]
    return f"{where} key zz_new on ranks {ranks}, {'equal' if equal else 'different'}"


def change_group(choice: random.Random, checkpoint: LayerWise) -> str:
    """A key of a group goes, or is another, on some ranks."""
    optimizer, ranks = choice.randrange(2), ranks_of(choice, checkpoint)
    key = choice.choice(("lr", "weight_decay", "wd_mult", "max_lr", "is_expert_parallel", "eps"))
    value = choice.choice((None, 0.5, NAN))
    for rank in ranks:
        groups = checkpoint.ranks[rank][optimizer]["optimizer"]["param_groups"]
        group = groups[choice.randrange(len(groups)) if len(ranks) == 1 else -1]
        if value is None:
            group.pop(key, None)
        else:
            group[key] = value
    return f"optimizer {optimizer}: group {key} {'removed' if value is None else value} on {ranks}"


def chosen_parameters(choice: random.Random, checkpoint: LayerWise) -> list[Parameter]:
    """One, its counterparts in all layers, or all."""
    known = parameters(checkpoint)
    one = choice.choice(known)
    tail = one.name.split(".", 3)[-1]
    alike = [p for p in known if p.name.endswith(tail)]
    return choice.choice(([one], [one], alike, known))


def change_state(choice: random.Random, checkpoint: LayerWise) -> str:
    """A state of one or many parameters goes, comes, or has another type or shape."""
    chosen = chosen_parameters(choice, checkpoint)
    change = choice.choice(("drop", "add", "double", "bf16", "flat", "swap", "attribute"))
    for parameter in chosen:
        names = parameter.state_names()
        if not names:
            continue
        states, name = parameter.states, names[-1]
        if change == "drop":
            del states[name]
        elif change == "add":
            states["zz_state"] = torch.full_like(states[name], 0.5)
        elif change == "swap":
            states[names[0]], states[name] = states[name], states[names[0]]
        elif change == "attribute":
            states[name].zz_note = 1
        else:
            states[name] = STATE_FORMS[change](states[name])
    return f"{change} the last state of {shown_names(chosen)}"


STATE_FORMS = {
    "double": lambda tensor: tensor.double(),
    "bf16": lambda tensor: tensor.to(torch.bfloat16),
    "flat": lambda tensor: tensor.reshape(-1),
}


def shown_names(chosen: list[Parameter]) -> str:
    return chosen[0].name if len(chosen) == 1 else f"{len(chosen)} parameters"


def change_weight(choice: random.Random, checkpoint: LayerWise) -> str:
    """Another type of the weights, NaN in weight and master, or a smaller parameter."""
    chosen = chosen_parameters(choice, checkpoint)
    change = choice.choice((as_half, as_float, nan_everywhere, shrink, wrap_weight, note_on_master))
    for parameter in chosen:
        change(parameter)
    return f"{change.__name__} {shown_names(chosen)}"


def as_half(parameter: Parameter) -> None:
    master = parameter.masters[parameter.place].detach()
    parameter.weights[parameter.name] = master.to(torch.float16)


def as_float(parameter: Parameter) -> None:
    parameter.weights[parameter.name] = parameter.masters[parameter.place].detach().clone()


def nan_everywhere(parameter: Parameter) -> None:
    for tensor in (parameter.weights[parameter.name], parameter.masters[parameter.place]):
        tensor.detach().view(-1)[0] = NAN


def shrink(parameter: Parameter) -> None:
    """One row less: weight, master and states alike."""
    weight = parameter.weights[parameter.name]
    parameter.weights[parameter.name] = weight[:-1].clone()
    master = parameter.masters[parameter.place]
    smaller = master.detach()[:-1].clone()
    vars(smaller).update(vars(master))
    parameter.masters[parameter.place] = smaller
    for name in parameter.state_names():
        parameter.states[name] = parameter.states[name][:-1].clone()


def wrap_weight(parameter: Parameter) -> None:
    weight = parameter.weights[parameter.name]
    parameter.weights[parameter.name] = torch.nn.Parameter(weight.clone())


def note_on_master(parameter: Parameter) -> None:
    parameter.masters[parameter.place].zz_note = 1


def drop_parameters(choice: random.Random, checkpoint: LayerWise) -> str:
    """A parameter, or all of a layer, are in no file; what comes behind moves up."""
    known = parameters(checkpoint)
    one = choice.choice(known)
    layer = ".".join(one.name.split(".")[:3]) + "."
    in_layer = [p for p in known if p.name.startswith(layer)] or [one]
    chosen = choice.choice(([one], in_layer))
    for parameter in reversed(chosen):
        del parameter.weights[parameter.name]
        del parameter.masters[parameter.place]
        drop_from_state(checkpoint, parameter)
    for gone in [k for k in checkpoint.model["model"] if len(chosen) > 1 and k.startswith(layer)]:
        del checkpoint.model["model"][gone]
    return f"no {chosen[0].name}" if len(chosen) == 1 else f"no {layer}*"


def drop_from_state(checkpoint: LayerWise, parameter: Parameter) -> None:
    for optimizer in (optimizer for rank in checkpoint.ranks for optimizer in rank):
        inner = optimizer["optimizer"]
        if inner["state"] is not parameter.state:
            continue
        del inner["state"][parameter.index]
        kept = {k - (k > parameter.index): v for k, v in inner["state"].items()}
        inner["state"].clear()
        inner["state"].update(kept)
        start = 0
        for group, masters in zip(
            inner["param_groups"], optimizer["fp32_from_fp16_params"], strict=True
        ):
            group["params"] = list(range(start, start + len(masters)))
            start += len(masters)


def set_extra_state(choice: random.Random, checkpoint: LayerWise) -> str:
    weights = checkpoint.model["model"]
    names = [name for name in weights if name.endswith("_extra_state")]
    name = choice.choice([*names, "zz._extra_state"])
    weights[name] = choice.choice((torch.ones(2), {"a": 1}, {}, b"bytes"))
    return f"{name} = {weights[name]!r}"


MEANINGFUL = (
    (change_a_rank, 30), (change_the_model, 12), (change_the_common_state, 6),
    (change_arguments, 10), (add_key, 12), (change_group, 8), (change_state, 12),
    (change_weight, 12), (drop_parameters, 5), (set_extra_state, 3),
)  # fmt: skip


def mutate(choice: random.Random, checkpoint: LayerWise) -> str:
    done = []
    for _ in range(choice.choice((1, 1, 1, 2))):
        mutations, weights = zip(*MEANINGFUL, strict=True)
        (mutation,) = choice.choices(mutations, weights)
        try:
            done.append(mutation(choice, checkpoint))
        except (KeyError, IndexError, TypeError, AttributeError, ValueError, RuntimeError):
            # What a first mutation broke, a second may not find.
            done.append(f"{mutation.__name__}: cannot")
    return "; ".join(done)
