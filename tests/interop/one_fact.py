"""Mutators of one fact of a checkpoint: tensors exchanged, states gone, ranks of another
iteration, arguments, counts. Each gives what it changed, or None where there is no such fact."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterator

import torch

from opened_checkpoint import MASTERS, MOMENTS, Opened, Slot

Mutator = Callable[[Opened, random.Random], str | None]
MUTATORS: dict[str, Mutator] = {}


def mutator(function: Mutator) -> Mutator:
    MUTATORS[function.__name__] = function
    return function


# --- tensors of equal shape ---


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.shape == other.shape and torch.equal(one, other)


def exchange(a: Slot, b: Slot) -> str | None:
    one, other = a.tensor.detach().clone(), b.tensor.detach().clone()
    if same(one, other):  # both moments of a parameter without gradients
        return None
    for slot, value in ((a, other), (b, one)):
        held = slot.tensor
        if slot.kind == "fp32_param" and hasattr(held, "__dict__"):
            value.__dict__.update(vars(held))
        slot.put(value)
    return f"{a.owner} {a.kind} | {b.owner} {b.kind}"


def exchange_two(opened: Opened, choice: random.Random, kinds: tuple[str, ...]) -> str | None:
    """Of one kind, of one shape, in one file, and not equal."""
    alike = defaultdict(list)
    for slot in opened.slots():
        if slot.kind in kinds and slot.tensor.numel() > 1:
            alike[slot.kind, slot.file, slot.tensor.shape, slot.tensor.dtype].append(slot)
    pairs = [(a, b) for slots in alike.values() for a, b in zip(slots, slots[1:], strict=False)
             if not same(a.tensor, b.tensor)]
    return exchange(*choice.choice(pairs)) if pairs else None


@mutator
def two_weights_exchanged(opened, choice):
    return exchange_two(opened, choice, ("weight",))


@mutator
def two_masters_exchanged(opened, choice):
    return exchange_two(opened, choice, MASTERS)


@mutator
def two_moments_exchanged(opened, choice):
    return exchange_two(opened, choice, MOMENTS)


def moments_of_one(opened: Opened, choice: random.Random) -> dict[str, Slot] | None:
    owners = defaultdict(dict)
    for slot in opened.slots():
        owners[slot.owner][slot.kind] = slot
    both = [one for one in owners.values() if {"exp_avg", "exp_avg_sq"} <= one.keys()]
    return choice.choice(both) if both else None


@mutator
def first_and_second_moment_exchanged(opened, choice):
    if one := moments_of_one(opened, choice):
        return exchange(one["exp_avg"], one["exp_avg_sq"])


@mutator
def master_and_moment_exchanged(opened, choice):
    if (one := moments_of_one(opened, choice)) and (kind := next(iter(one.keys() & MASTERS), "")):
        return exchange(one[kind], one["exp_avg"])


# --- states that are gone ---


@mutator
def one_moment_gone(opened, choice):
    slots = [slot for slot in opened.slots() if slot.kind in MOMENTS]
    if not slots:
        return None
    slot = choice.choice(slots)
    if slot.holder is opened.entries:
        opened.gone = {index for index in opened.entries if index.fqn == slot.key.fqn}
    else:
        del slot.holder[slot.key]
    return f"{slot.owner} {slot.kind}"


# --- ranks of another iteration ---


def on_one_rank(
    opened: Opened, choice: random.Random, change: Callable[[dict], None]
) -> str | None:
    """Of rank folders; where there is one place for all, there is nothing to do."""
    commons = opened.commons()
    if len(commons) < 2:
        return None
    number = choice.randrange(len(commons))
    change(commons[number])
    return f"common state {number}"


@mutator
def iteration_of_one_rank(opened, choice):
    return on_one_rank(opened, choice, lambda c: c.update(iteration=c["iteration"] + 1))


@mutator
def samples_of_one_rank(opened, choice):
    return on_one_rank(opened, choice, lambda c: add(vars(c["args"]), "consumed_train_samples", 8))


@mutator
def schedule_of_one_rank(opened, choice):
    return on_one_rank(opened, choice, lambda c: add(c["opt_param_scheduler"], "num_steps", 8))


@mutator
def operations_of_one_rank(opened, choice):
    key = "num_floating_point_operations_so_far"
    return on_one_rank(opened, choice, lambda c: c.update({key: 7.5}))


@mutator
def steps_of_one_place(opened, choice):
    """A file, or the object of a rank; where all are in one, it is an optimizer of the chain."""
    places = defaultdict(list)
    for name, one in opened.optimizers():
        steps = [group for group in one["param_groups"] if "step" in group]
        steps += [state for state in one.get("state", {}).values()
                  if isinstance(state, dict) and "step" in state]
        if steps:
            places[name if len(opened.trees) > 1 else id(one)] += steps
    if len(places) < 2:
        return None
    for one in places[choice.choice(list(places))]:
        one["step"] = one["step"] + 1
    return "steps"


@mutator
def masters_of_one_place(opened, choice):
    files = sorted({slot.file for slot in opened.slots() if slot.kind in MASTERS})
    if not files:
        return None
    file = choice.choice(files)
    slots = [slot for slot in opened.slots() if slot.kind in MASTERS and slot.file == file]
    for slot in slots if file else slots[:1]:
        slot.tensor.data.mul_(1.01)
    return file


# --- one changed fact of the common state ---


def add(mapping: dict, key: str, what: float) -> None:
    mapping[key] = mapping[key] + what


def everywhere(opened: Opened, change: Callable[[dict], None]) -> str | None:
    for common in opened.commons():
        change(common)
    return "everywhere" if opened.commons() else None


@mutator
def iteration_everywhere(opened, choice):
    return everywhere(opened, lambda c: c.update(iteration=c["iteration"] + 1))


@mutator
def version_everywhere(opened, choice):
    return everywhere(opened, lambda c: c.update(checkpoint_version=2.0))


@mutator
def schedule_everywhere(opened, choice):
    return everywhere(opened, lambda c: add(c["opt_param_scheduler"], "num_steps", 8))


@mutator
def no_schedule(opened, choice):
    return everywhere(opened, lambda c: c.pop("opt_param_scheduler"))


@mutator
def one_arg_everywhere(opened, choice):
    """One that decides no tensor: what it is must arrive."""
    names = ("consumed_train_samples", "train_iters", "seed", "global_batch_size", "lr",
             "adam_beta2", "clip_grad")
    args = [vars(common["args"]) for common in opened.commons()]
    names = [name for name in names if args and isinstance(args[0].get(name), (int, float))]
    if not names:
        return None
    name = choice.choice(names)
    for one in args:
        add(one, name, 1)
    return name


@mutator
def number_of_layers(opened, choice):
    return everywhere(opened, lambda c: add(vars(c["args"]), "num_layers", 1))


# --- groups and counts ---


def one_list(opened: Opened, choice: random.Random) -> dict | None:
    optimizers = [one for _, one in opened.optimizers() if one["param_groups"]]
    return choice.choice(optimizers) if optimizers else None


@mutator
def step_of_one_group(opened, choice):
    groups = [group for _, one in opened.optimizers() for group in one["param_groups"]
              if "step" in group]
    if len(groups) < 2:
        return None
    add(choice.choice(groups), "step", 5)
    return "step"


@mutator
def group_gone(opened, choice):
    if one := one_list(opened, choice):
        return f"{one['param_groups'].pop(choice.randrange(len(one['param_groups'])))['wd_mult']}"


@mutator
def group_twice(opened, choice):
    if one := one_list(opened, choice):
        one["param_groups"].append(dict(one["param_groups"][-1]))
        return "the last"


@mutator
def groups_reversed(opened, choice):
    one = one_list(opened, choice)
    if one and len(one["param_groups"]) > 1:
        one["param_groups"].reverse()
        return "one list"


@mutator
def setting_of_one_group(opened, choice):
    if one := one_list(opened, choice):
        group = choice.choice(one["param_groups"])
        key = choice.choice([k for k in ("lr", "weight_decay", "max_lr", "eps", "momentum")
                             if isinstance(group.get(k), float)])
        group[key] = group[key] + 0.25
        return key


@mutator
def setting_of_all_groups(opened, choice):
    for _, one in opened.optimizers():
        for group in one["param_groups"]:
            group["max_lr"] = 0.125
    return "max_lr" if opened.optimizers() else None


@mutator
def wd_mult_of_one_group(opened, choice):
    if one := one_list(opened, choice):
        add(choice.choice(one["param_groups"]), "wd_mult", 1.0)
        return "wd_mult"


def numbered(opened: Opened, choice: random.Random) -> list | None:
    lists = [group["params"] for _, one in opened.optimizers() for group in one["param_groups"]
             if len(group.get("params", ())) > 1]
    return choice.choice(lists) if lists else None


@mutator
def params_exchanged(opened, choice):
    if params := numbered(opened, choice):
        params[0], params[1] = params[1], params[0]
        return "params"


@mutator
def params_one_gone(opened, choice):
    if params := numbered(opened, choice):
        return str(params.pop())


@mutator
def params_one_more(opened, choice):
    if params := numbered(opened, choice):
        params.append(params[-1] + 100)
        return str(params[-1])


def flat_buffers(tree: object) -> Iterator[dict]:
    if isinstance(tree, dict):
        if "numel_unpadded" in tree:
            yield tree
        for key, value in tree.items():
            if not str(key).startswith("model"):
                yield from flat_buffers(value)
    elif isinstance(tree, list):
        for value in tree:
            yield from flat_buffers(value)


@mutator
def numel_of_a_buffer(opened, choice):
    found = [one for _, tree in opened.places() for one in flat_buffers(tree)]
    if found:
        add(choice.choice(found), "numel_unpadded", choice.choice((-64, 1, 64)))
        return "numel_unpadded"


@mutator
def buckets_not_coalesced(opened, choice):
    found = [one for name, tree in opened.trees.items() if name.endswith("distrib_optim.pt")
             for one in (tree if isinstance(tree, list) else [tree]) if one]
    if found:
        choice.choice(found)["buckets_coalesced"] = False
        return "buckets_coalesced"


def per_bucket(opened: Opened, choice: random.Random, part: str, by: int) -> str | None:
    found = [value for index, value in opened.entries.items() if part + "/" in index.fqn]
    if not found:
        return None
    sizes = next(iter(choice.choice(found)[0][0].values()))
    sizes[0] += by
    return part


@mutator
def numel_of_a_bucket(opened, choice):
    return per_bucket(opened, choice, "per_bucket_numel", 128)


@mutator
def unpadded_numel_of_a_bucket(opened, choice):
    return per_bucket(opened, choice, "per_bucket_numel_unpadded", 64)


FORMS = ("fully_reshardable", "dp_reshardable", "dp_zero_gather_scatter")


@mutator
def sharding_type(opened, choice):
    """What says how the optimizer's state is filed says something else."""
    found = [(common["content_metadata"], "distrib_optim_sharding_type")
             for common in opened.commons() if common.get("content_metadata")]
    for common in opened.commons():
        chain = common.get("optimizer") or {}
        each = chain.values() if 0 in chain else [chain]
        found += [(one, "param_state_sharding_type") for one in each if isinstance(one, dict)]
    found = [(holder, key) for holder, key in found if key in holder]
    if not found:
        return None
    holder, key = choice.choice(found)
    holder[key] = choice.choice([form for form in FORMS if form != holder[key]])
    return f"{key} {holder[key]}"


@mutator
def scale_of_one_place(opened, choice):
    found = []

    def look(tree: object) -> None:
        if isinstance(tree, dict):
            if isinstance(tree.get("grad_scaler"), dict):
                found.append(tree["grad_scaler"])
            for key, value in tree.items():
                if not str(key).startswith("model"):
                    look(value)
        elif isinstance(tree, list):
            for value in tree:
                look(value)

    for _, tree in opened.places():
        look(tree)
    if found:
        one = choice.choice(found)
        one["scale"] = one["scale"] * 2
        return "scale"
