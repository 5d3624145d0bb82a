"""Checkpoints of Megatron's layer-wise optimizer with changes that have a meaning, converted and
resharded there and back.

Bases: tests/golden with 2 and 4 data-parallel ranks, the same with one rank as `reshard` makes it,
and the torch_dist folder.
"""

from __future__ import annotations

import copy
import functools
import random
import re
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch

import dcp_cases
from checks import check_reads, check_verifies, look_at
from comparing import CONVERSION_MAY_CHANGE
from listing import Listing
from losses import Aspect, Loss, Place, StepKind, losses, placed_tensors, pointer
from megatron_mutations import LayerWise, change_args, mutate
from oracles import Content, content, read_dcp_flat
from programs import GOLDEN, succeed
from reading import DcpFolder, iteration_folder, load, load_torch_folder, model_file, rank_file
from session import Made, Session
from tree_mutations import change_tree

MODEL_FILE, RANK_FILE = "mp_rank_00/model_optim_rng.pt", "mp_rank_00/layer_wise_optimizer_{}.pt"
TORCH_BASES = ("lw_muon_bf16_torch_dp2", "lw_muon_bf16_torch_dp4")
DIST_BASE = "lw_muon_bf16_torch_dist_dp2"
WHOLE_FILES = {MODEL_FILE, "common"}
NamesByPlace = dict[str, set[str]]  # parameters, by the JSON pointer of a master
PARTITION_ATTRIBUTES = {"tensor_model_parallel", "partition_dim", "partition_stride", "is_qkv"}
# How the folder is laid out; the size of pipelines, again (docs/resharding.md).
WRITTEN_ANEW = {
    "/args/@transformer_pipeline_model_parallel_size",
    "/content_metadata/singleton_local_shards", "/content_metadata/chained_optim_avoid_prefix",
}  # fmt: skip
# Always None; torch_dist has no place for it (docs/formats/torch_dist.md).
REGENERATED = "/model/output_layer._extra_state"


@functools.cache
def base(name: str) -> LayerWise:
    return loaded(GOLDEN / name / "ckpt")


@functools.cache
def base_of_one_rank() -> LayerWise:
    """Nothing is dealt there: parameters may change their sizes."""
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "made"
        succeed("reshard", GOLDEN / TORCH_BASES[0] / "ckpt", made, "--dp", 1)
        return loaded(made)


def loaded(root: Path) -> LayerWise:
    names = sorted((iteration_folder(root) / "mp_rank_00").glob("layer_wise_optimizer_*.pt"))
    return LayerWise([load(rank_file(root, i)) for i in range(len(names))], load(model_file(root)))


def write(checkpoint: LayerWise, root: Path) -> None:
    folder = root / "iter_0000003/mp_rank_00"
    folder.mkdir(parents=True)
    (root / "latest_checkpointed_iteration.txt").write_text("3")
    for rank, state in enumerate(checkpoint.ranks):
        torch.save(state, folder / f"layer_wise_optimizer_{rank}.pt")
    torch.save(checkpoint.model, folder / "model_optim_rng.pt")


def run(session: Session, choice: random.Random) -> None:
    if choice.random() < 0.2:
        run_torch_dist(session, choice)
    else:
        run_torch(session, choice)


def run_torch(session: Session, choice: random.Random) -> None:
    makers = [base_of_one_rank, *(functools.partial(base, name) for name in TORCH_BASES)]
    checkpoint = copy.deepcopy(choice.choice(makers)())
    session.case = f"torch dp{len(checkpoint.ranks)}: {mutate(choice, checkpoint)}"
    if choice.random() < 0.6:  # rank 0's second copy follows
        checkpoint.model["optimizer"] = checkpoint.ranks[0]
    write(checkpoint, session.source)
    look_at(session, choice)
    files = load_torch_folder(session.source)
    drop_second_copy(files)
    verified = session.run("ckpt-inspect", "verify", session.source).code
    digest = logical_digest(session, session.source)
    source = Source(files, len(checkpoint.ranks), digest, verified)
    reshard_there_and_back(session, choice, source)
    convert_there_and_back(session, choice, source)


def drop_second_copy(files: dict[str, object]) -> None:
    """A copy of rank 0's state: written anew, never carried (canonical_encoding.md)."""
    model = files[MODEL_FILE]
    if isinstance(model, dict):
        model.pop("optimizer", None)


def logical_digest(session: Session, path: Path) -> str | None:
    outcome = session.run("ckpt-inspect", "hash", path, "--logical", "--json")
    return outcome.json()["digest"] if outcome.code == 0 else None


def check_digest(session: Session, made: Made, digest: str | None) -> None:
    """A conversion that lists nothing gives the same state, and what ours can read."""
    ours = logical_digest(session, made.path)
    if ours is None or (digest is not None and ours != digest and not made.report["not_carried"]):
        session.report("the result has the source's logical digest", made.outcome)


@dataclass(frozen=True)
class Source:
    """What is known of a `torch` source before it is converted."""

    files: dict[str, object]
    ranks: int
    digest: str | None
    verified: int


def publish(session: Session, source: Source, program: str, *options: object) -> Made | None:
    made = session.convert_strictly_or_not(program, session.source, "there", *options)
    if made is not None:
        check_digest(session, made, source.digest)
        check_verifies(session, made, source.verified)
    return made


def reshard_there_and_back(session: Session, choice: random.Random, source: Source) -> None:
    size = choice.choice([size for size in (1, 2, 3, 4, 7) if size != source.ranks])
    there = publish(session, source, "reshard", "--dp", size)
    files = there and check_reads(session, there, lambda: load_torch_folder(there.path))
    if not files:
        return
    if set(files) != {MODEL_FILE, *(RANK_FILE.format(rank) for rank in range(size))}:
        session.report("reshard writes one file for each rank", sorted(files))
    drop_second_copy(files)
    check_bag(session, there, tensors_of(source.files), tensors_of(files))
    back = session.convert("reshard", there.path, "back", "--dp", source.ranks)
    check_back(session, back, source.files, there)


def convert_there_and_back(session: Session, choice: random.Random, source: Source) -> None:
    verify = choice.choice(((), ("--verify",)))
    there = publish(session, source, "ckpt-convert", "--to", "torch_dist", *verify)
    state = there and check_reads(session, there, lambda: stored_state(there.path))
    if not state:
        return
    stored = [unstacked(state["store"]), state["common"]]
    check_bag(session, there, tensors_of(source.files), tensors_of(stored))
    back = session.convert("ckpt-convert", there.path, "back", "--to", "torch")
    check_back(session, back, source.files, there)


def check_back(session: Session, back: Made | None, source: dict, there: Made) -> None:
    """Everything of every file is where it was."""
    if back is None and lacks_an_order(session):
        return
    if back is None:
        session.report("what we wrote goes the way back", session.ended[-1] + "\n" + session.case)
        return
    files = check_reads(session, back, lambda: load_torch_folder(back.path))
    if files is None:
        return
    drop_second_copy(files)
    check_places(session, there, back, Change(source, files))


@dataclass(frozen=True)
class Change:
    source: dict[str, object]
    result: dict[str, object]  # after the way there and back


def check_places(session: Session, there: Made, back: Made, change: Change) -> None:
    """Each loss is listed: by its place, or by the key it has in Megatron's words."""
    listing = Listing(there.report, back.report)
    masters = named_masters(change.source)
    unlisted = [
        loss for loss in listing.unlisted(losses(change.source, change.result))
        if not may_change(loss) and not names_key(listing, loss)
        and not names_parameter(listing, loss, masters)
    ]  # fmt: skip
    for loss in unlisted[:3]:
        rule = f"{loss.aspect.value} is listed"
        told = f"{' '.join(there.outcome.command)}\n  {loss}\n  {listing.entries[:8]}"
        session.report(rule, told)


def may_change(loss: Loss) -> bool:
    """As documented of every conversion; without the file's name."""
    place = pointer(tuple(step for step in loss.place if step.name not in WHOLE_FILES))
    is_made_anew = loss.aspect is Aspect.INVENTED and (
        place == REGENERATED or is_given_by_args(loss.place)
    )
    return is_made_anew or place in CONVERSION_MAY_CHANGE or place in WRITTEN_ANEW


def is_given_by_args(place: Place) -> bool:
    """Of a master: Megatron sets them from the model and its arguments."""
    in_masters = "fp32_from_fp16_params" in {step.name for step in place}
    return in_masters and place[-1].name in PARTITION_ATTRIBUTES


def names_key(listing: Listing, loss: Loss) -> bool:
    """Megatron's files are lists of lists: what has a name is the key."""
    return listing.mentions(named_key(loss.place))


def names_parameter(listing: Listing, loss: Loss, masters: NamesByPlace) -> bool:
    """Masters have numbers in the files of ranks; what is listed has their parameters' names."""
    said = {
        f"{loss.aspect.value} of optimizer.state.fp32_param.{name}"
        for name in masters.get(pointer(loss.place), ())
    }
    return any(what in said for what, _ in listing.entries)


def named_masters(files: dict[str, object]) -> NamesByPlace:
    """By content: a master rounds to its weight. Equal weights have several names."""
    model = files.get(MODEL_FILE)  # in torch_dist everything has its name
    weights = tensors_of(model.get("model")) if isinstance(model, dict) else {}
    return {
        pointer(place): weights.get(content(tensor.detach().to(torch.bfloat16)), set())
        for place, tensor in placed_tensors(files)
        if tensor.is_floating_point() and "fp32_from_fp16_params" in {step.name for step in place}
    }


def named_key(place: Place) -> str:
    """The last key or attribute that is a word; empty if there is none."""
    keys = [str(step.name) for step in place if step.kind is not StepKind.INDEX]
    words = [key for key in keys if not key.isdigit() and not key.endswith(".pt")]
    return words[-1] if words else ""


def check_bag(
    session: Session, made: Made, before: dict[Content, set[str]], after: dict[Content, set[str]]
) -> None:
    """Each tensor of the source is somewhere in the result, or its key is listed."""
    listing = Listing(made.report)
    for lost in set(before) - set(after):
        if not any(listing.mentions(key) for key in before[lost]):
            told = f"{lost}: {before[lost]}\n  {listing.entries}\n  {made.outcome}"
            session.report("each tensor of the source is in the result", told)
            return


def tensors_of(value: object) -> dict[Content, set[str]]:
    """The keys of each content; not of steps, which torch_dist keeps once."""
    found: dict[Content, set[str]] = {}
    for place, tensor in placed_tensors(value):
        if tensor.numel() > 1:
            found.setdefault(content(tensor), set()).add(named_key(place))
    return found


def unstacked(store: dict[str, object]) -> dict[str, object]:
    """One tensor for each layer, where keys have no numbers of layers."""
    stacked = re.compile(r"decoder\.layers\.\D")
    return {
        key: list(value) if stacked.search(key) and isinstance(value, torch.Tensor) else value
        for key, value in store.items()
    }


# --- torch_dist


def run_torch_dist(session: Session, choice: random.Random) -> None:
    shutil.copytree(GOLDEN / DIST_BASE / "ckpt", session.source, copy_function=shutil.copyfile)
    folder = iteration_folder(session.source)
    if choice.random() < 0.6:
        session.case = "torch_dist: " + change_common_file(choice, folder / "common.pt")
    else:
        session.case = "torch_dist: " + change_store(choice, folder)
    look_at(session, choice)
    verified = session.run("ckpt-inspect", "verify", session.source).code
    digest = logical_digest(session, session.source)
    try:
        source = stored_state(session.source)
    except Exception:
        source = None
    convert = session.convert_strictly_or_not
    there = convert("ckpt-convert", session.source, "torch", "--to", "torch")
    resharded = convert("reshard", session.source, "there", "--dp", 3)
    for made in filter(None, (there, resharded)):
        if source is None:
            session.report("success only with what torch reads", made.outcome)
        check_digest(session, made, digest)
        check_verifies(session, made, verified)
    if source is None:
        return
    known = DistSource(source, verified)
    if there is not None:
        back_of_torch_dist(session, there, known, "ckpt-convert", "--to", "torch_dist")
    if resharded is not None:
        back_of_torch_dist(session, resharded, known, "reshard", "--dp", 2)


def change_common_file(choice: random.Random, path: Path) -> str:
    common = load(path)
    if choice.random() < 0.3:
        said = change_args(choice, common["args"])
    else:
        said = change_tree(choice, common, "common.pt")
    torch.save(common, path)
    return said


def change_store(choice: random.Random, folder: Path) -> str:
    """One change of .metadata or of the files that it names."""
    metadata = DcpFolder(folder).metadata
    files = {path.name: bytearray(path.read_bytes()) for path in folder.glob("*.distcp")}
    store = dcp_cases.Folder(metadata.state_dict_metadata, metadata.storage_data, files)
    said = dcp_cases.mutate(choice, store)
    if choice.random() < 0.3:
        gone = choice.choice(list(store.entries))
        del store.entries[gone]
        for index in [index for index in store.places if index.fqn == gone]:
            del store.places[index]
        said += f", without {gone}"
    store.overwrite(folder, metadata)
    return said


def stored_state(root: Path) -> dict[str, object]:
    folder = iteration_folder(root)
    return {"store": read_dcp_flat(folder), "common": load(folder / "common.pt")}


def refuses_a_master(session: Session) -> bool:
    """torch_dist names everything, so that it carries weights and masters that do not belong
    together; in `torch` their equality is the only name. verify finds both."""
    return session.last.json()["error"].get("key", "").startswith("optimizer.state.fp32_param.")


def lacks_an_order(session: Session) -> bool:
    """`torch` has the order of modules, which nobody knows of one that no Megatron has."""
    problem = session.last.json()["error"]["problem"]
    return problem.startswith("it is not known at which place the model registers it")


@dataclass(frozen=True)
class DistSource:
    """What is known of a `torch_dist` source before it is converted."""

    state: dict[str, object]
    verified: int


def back_of_torch_dist(
    session: Session, there: Made, source: DistSource, program: str, *options: object
) -> None:
    back = session.convert(program, there.path, f"back_{program}", *options)
    if back is None and source.verified == 1 and refuses_a_master(session):
        return
    if back is None:
        session.report("what we wrote goes the way back", session.ended[-1] + "\n" + session.case)
        return
    state = check_reads(session, back, lambda: stored_state(back.path))
    if state is not None:
        check_places(session, there, back, Change(source.state, state))
