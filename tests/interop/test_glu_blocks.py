"""Gate and up in alternating blocks (moe_mlp_glu_interleave_size, core 0.18 and later).

The argument changes neither keys nor shapes, only which rows are gate and which are up: sets get it
in their args, and what ranks compute by their rows, as Megatron's forward takes them, is compared.
A rank's rows of torch_dist are what Megatron loads: its share of the first half and of the second.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from damage import edit_file
from parallel_sets import IS_LONG, needs_sets
from programs import GOLDEN, damage_of, hash_of, refuse, run, succeed, verify
from reading import DcpFolder, iteration_folder, load

UNSUPPORTED, DAMAGED = 4, 1
EXPERTS = "moe_mlp_glu_interleave_size"
SHARED = "moe_shared_expert_glu_interleave_size"
READ_SHARED = {"use_grouped_gemm_for_shared_expert": True}
GROUPED = {"torch": GOLDEN / "runs/te_grouped_fp8_torch_ep2tp2dp2/ckpt",
           "torch_dist": GOLDEN / "runs/te_grouped_fp8_torch_dist_ep2tp2dp2/ckpt",
           "deep": GOLDEN / "runs/te_deep_torch_pp2/ckpt",
           "dense": GOLDEN / "runs/core018_dp_reshardable_dp1/ckpt"}
IN_FOLDER = re.compile(r"mp_rank_(\d\d)(?:_(\d{3}))?(?:_(\d{3}))?$")
IN_LAYER = re.compile(
    r"decoder\.layers\.(\d+)\.mlp\.(?:(shared_experts)\.(linear_fc[12])\.weight$|"
    r"experts\.(linear_fc[12])\.weight(\d+)$|"
    r"experts\.local_experts\.(\d+)\.(linear_fc[12])\.weight$)")
IN_STORE = re.compile(r"decoder\.layers\.(?:(\d+)\.)?mlp\.(?:(shared_experts)|experts\.experts)\."
                      r"(linear_fc[12])\.weight$")


def with_args(root: Path, to: Path, **values: object) -> Path:
    shutil.copytree(root, to, copy_function=shutil.copyfile)
    iteration = iteration_folder(to)
    for path in [*iteration.glob("common.pt"), *iteration.glob("mp_rank_*/model_optim_rng.pt")]:
        edit_file(path, lambda tree: vars(tree["args"]).update(values))
    return to


# --- what ranks compute: {(kind, layer, expert): (features, columns of fc2)} ---

def sizes_of(args: object) -> dict[str, int]:
    return {"experts": args.expert_tensor_parallel_size,
            "shared_experts": args.tensor_model_parallel_size}


def block_of(args: object, kind: str) -> int | None:
    if kind == "experts":
        return getattr(args, EXPERTS, None) if args.moe_grouped_gemm else None
    read = getattr(args, "use_grouped_gemm_for_shared_expert", False)
    return getattr(args, SHARED, None) if read else None


def gated(rows: torch.Tensor, block: int | None) -> torch.Tensor:
    """What a rank makes of its rows for one input, by the formula of the gated linear unit."""
    passed = rows.double() @ torch.linspace(-1, 1, rows.shape[1], dtype=torch.float64)
    if block is not None:  # Megatron's _remove_glu_interleaving
        passed = passed.reshape(-1, 2, block).transpose(0, 1).reshape(-1)
    gate, up = passed.chunk(2)
    return torch.nn.functional.silu(gate) * up


def parts_of_torch(iteration: Path) -> tuple[object, dict]:
    """Of each module and matrix the parts of its tensor parallel ranks."""
    found: dict = {}
    for folder in sorted(iteration.glob("mp_rank_*")):
        tree = load(folder / "model_optim_rng.pt")
        args = tree["args"]
        numbers = [int(n) for n in IN_FOLDER.search(folder.name).groups() if n is not None]
        stage = numbers.pop(1) if args.pipeline_model_parallel_size > 1 else 0
        expert_rank = numbers[1] if args.expert_model_parallel_size > 1 else 0
        for name, tensor in tree["model"].items():
            if match := IN_LAYER.match(name):
                layer, _, shared, grouped, number, local, sequential = match.groups()
                own = int(number or local or 0)
                if number or local:
                    own += expert_rank * args.num_experts // args.expert_model_parallel_size
                stage_layers = args.num_layers // args.pipeline_model_parallel_size
                key = ("shared_experts" if shared else "experts", int(layer) + stage * stage_layers,
                       own, shared or grouped or sequential)
                rank = numbers[0] % sizes_of(args)[key[0]]
                found.setdefault(key, {})[rank] = tensor
    return args, found


def parts_of_store(iteration: Path) -> tuple[object, dict]:
    store = DcpFolder(iteration)
    args, found = store.common["args"], {}
    for key in store.tensors():
        if not (match := IN_STORE.match(key)):
            continue
        layer, shared, matrix = match.groups()
        kind = "shared_experts" if shared else "experts"
        whole, ranks = store.tensor(key), sizes_of(args)[kind]
        whole = whole if layer is None else whole[None]
        whole = whole[:, None] if shared else whole
        for at in range(whole.shape[0]):
            for expert in range(whole.shape[1]):
                rows = whole[at, expert]
                cut = rows.chunk(ranks, dim=1) if matrix == "linear_fc2" else [
                    torch.cat(halves) for halves in
                    zip(*(half.chunk(ranks) for half in rows.chunk(2)), strict=True)]
                name = (kind, int(layer or at), expert, matrix)
                found[name] = dict(enumerate(cut))
    return args, found


def computed(root: Path) -> dict:
    iteration = iteration_folder(root)
    is_store = (iteration / ".metadata").exists()
    args, parts = (parts_of_store if is_store else parts_of_torch)(iteration)
    made = {}
    for (kind, layer, expert, matrix), ranks in parts.items():
        if matrix == "linear_fc2":
            continue
        count = sizes_of(args)[kind]
        own = [ranks[rank] for rank in range(count)]
        second = parts[kind, layer, expert, "linear_fc2"]
        made[kind, layer, expert] = (
            torch.cat([gated(rows, block_of(args, kind)) for rows in own]),
            torch.cat([second[rank] for rank in range(count)], dim=1))
    assert made
    return made


def expect_same_model(ours: Path, theirs: Path) -> None:
    mine, others = computed(ours), computed(theirs)
    assert mine.keys() == others.keys()
    for key, (features, columns) in others.items():
        torch.testing.assert_close(mine[key][0], features, rtol=1e-12, atol=0)
        assert torch.equal(mine[key][1], columns), key


def state_of(root: Path, tmp_path: Path, name: str) -> dict[str, torch.Tensor]:
    made = tmp_path / f"{name}.safetensors"
    succeed("ckpt-convert", root, made, "--to", "safetensors", "--force")
    return load_file(made)


def expect_same_state(ours: Path, theirs: Path, tmp_path: Path) -> None:
    assert verify(ours)[0] == 0
    mine, others = (state_of(root, tmp_path, name) for root, name in ((ours, "o"), (theirs, "t")))
    assert mine.keys() == others.keys()
    assert all(torch.equal(mine[name], others[name]) for name in others)


def tensors_of(root: Path) -> dict[str, str]:
    return {tensor["key"]: tensor["sha256"] for tensor in hash_of(root, "--logical")["tensors"]}


# --- cut between blocks ---

ONE = "--dp 1 --tp 1 --pp 1 --ep 1 --etp 1"
TWO = "--dp 1 --tp 2 --pp 1 --ep 1 --etp 2"
MIXED = "--dp 2 --tp 2 --pp 1 --ep 2 --etp 1"
RESHARDS = (
    ("torch", ONE, "torch"), ("torch", TWO, "torch"), ("torch", TWO, "torch_dist"),
    ("torch_dist", TWO, "torch_dist"), ("torch_dist", TWO, "torch"), ("torch_dist", ONE, "torch"),
    ("deep", TWO, "torch"), ("deep", MIXED, "torch_dist"), ("deep", TWO, "torch_dist"),
)


BLOCKS = ((2, 4), (1, None), *(((2, 2), (1, 1), (None, 4)) if IS_LONG else ()))


@pytest.mark.parametrize("blocks", BLOCKS, ids=str)
@pytest.mark.parametrize(("source", "sizes", "to"), RESHARDS)
def test_ranks_compute_what_those_of_the_source_do(
    source: str, sizes: str, to: str, blocks: tuple, tmp_path: Path
) -> None:
    experts, shared = blocks
    root = with_args(GROUPED[source], tmp_path / "source",
                     **READ_SHARED, **{EXPERTS: experts, SHARED: shared})
    assert verify(root)[0] == 0
    made, back = tmp_path / "made", tmp_path / "back"
    told = succeed("ckpt-convert", root, made, *sizes.split(), "--to", to, "--verify").stderr
    for argument, block in ((EXPERTS, experts), (SHARED, shared)):
        assert (f"alternate in blocks of {block} ({argument})" in told) == (block is not None)
    expect_same_model(made, root)
    expect_same_state(made, root, tmp_path)
    succeed("reshard", made, back, *ONE.split(), "--verify")
    expect_same_model(back, root)
    assert tensors_of(made) == tensors_of(root) == tensors_of(back)


@pytest.mark.parametrize("to", ("torch", "torch_dist"))
def test_containers_hold_the_same_rows(to: str, tmp_path: Path) -> None:
    values = {**READ_SHARED, EXPERTS: 2, SHARED: 4}
    root = with_args(GROUPED["deep"], tmp_path / "source", **values)
    cut, made = tmp_path / "cut", tmp_path / "made"
    succeed("reshard", root, cut, *TWO.split())
    other = "torch" if to == "torch_dist" else "torch_dist"
    succeed("ckpt-convert", cut, tmp_path / "first", "--to", other)
    succeed("ckpt-convert", tmp_path / "first", made, "--to", to, "--verify")
    for result in (tmp_path / "first", made):
        expect_same_model(result, root)
        expect_same_state(result, cut, tmp_path)
        assert run("ckpt-inspect", "diff", result, cut).code == 0


@needs_sets
@pytest.mark.parametrize("form", ("flat_file", "dp_reshardable", "fully_reshardable"))
@pytest.mark.parametrize("source", ("torch_dp1", "torch_ep2tp2dp2", "fully_reshardable_dp1"))
def test_flat_buffers_and_named_states_of_zero1(
    source: str, form: str, sets: Path, tmp_path: Path
) -> None:
    root = with_args(sets / f"par_do_adam_moef_{source}/ckpt", tmp_path / "source",
                     **READ_SHARED, **{SHARED: 4})
    to = "torch" if form == "flat_file" else "torch_dist"
    for name, sizes in (("one", ONE), ("two", TWO), ("both", "--dp 2 --tp 2 --etp 2")):
        made = tmp_path / name
        succeed("ckpt-convert", root, made, *sizes.split(), "--to", to,
                "--optimizer-sharding", form, "--verify")
        expect_same_model(made, root)
        expect_same_state(made, root, tmp_path)
        root = made


@needs_sets
@pytest.mark.skipif(not IS_LONG, reason="half a minute")
@pytest.mark.parametrize("form", ("flat_file", "dp_reshardable", "fully_reshardable"))
def test_grouped_experts_of_zero1(form: str, sets: Path, tmp_path: Path) -> None:
    """torch_dist has the same keys of both kinds of experts; norms get the names of other layers,
    which verify would say."""
    root = with_args(sets / "par_do_adam_moef_fully_reshardable_dp1/ckpt", tmp_path / "source",
                     moe_grouped_gemm=True, transformer_impl="transformer_engine", **READ_SHARED,
                     **{EXPERTS: 4, SHARED: 4})
    to = "torch" if form == "flat_file" else "torch_dist"
    for sizes in (ONE, TWO, "--dp 2 --tp 2 --etp 2", "--dp 2 --tp 2 --ep 2 --etp 2"):
        made = tmp_path / sizes.replace(" ", "")
        succeed("ckpt-convert", root, made, *sizes.split(), "--to", to,
                "--optimizer-sharding", form)
        expect_same_model(made, root)
        mine, theirs = state_of(made, tmp_path, "o"), state_of(root, tmp_path, "t")
        assert mine.keys() == theirs.keys()
        assert all(torch.equal(mine[name], theirs[name]) for name in theirs)
        root = made


def test_other_sizes_do_not_touch_the_rows(tmp_path: Path) -> None:
    """Where only --dp, --pp or --ep change, even what could not be cut is carried."""
    root = with_args(GROUPED["torch"], tmp_path / "source", **{EXPERTS: 4, SHARED: 4})
    made = tmp_path / "made"
    succeed("reshard", root, made, "--dp", "4", "--ep", "4", "--verify")
    expect_same_model(made, root)


# --- refused ---

def refused(root: Path, tmp_path: Path, *sizes: str) -> str:
    return refuse(UNSUPPORTED, "reshard", root, tmp_path / "made", *sizes)


@pytest.mark.parametrize(("source", "values", "sizes", "text"), (
    ("deep", {EXPERTS: 4}, TWO, "--etp 2: args.moe_mlp_glu_interleave_size is 4: 8 rows on 2 ranks "
     "cannot be whole pairs of blocks of gate and up"),
    ("deep", {EXPERTS: 3}, TWO, "args.moe_mlp_glu_interleave_size is 3: 8 rows on 1 ranks"),
    ("deep", {SHARED: 4}, TWO, "--tp 2: args.moe_shared_expert_glu_interleave_size is set, but "
     "Megatron-Core reads it with use_grouped_gemm_for_shared_expert alone"),
    ("torch", {SHARED: 8, **READ_SHARED}, "--tp 1 --dp 4", "16 rows on 2 ranks"),
    ("dense", {"use_grouped_gemm_for_dense_mlp": True, "use_transformer_engine_op_fuser": True},
     "--tp 2", "--tp 2: args.use_grouped_gemm_for_dense_mlp is set, but its kernel takes gate"),
))
def test_what_would_cut_within_a_pair_is_refused(
    source: str, values: dict, sizes: str, text: str, tmp_path: Path
) -> None:
    root = with_args(GROUPED[source], tmp_path / "source", **values)
    assert text in refused(root, tmp_path, *sizes.split())


def test_links_would_leave_rows_in_other_places(tmp_path: Path) -> None:
    root = with_args(GROUPED["torch_dist"], tmp_path / "source", **READ_SHARED, **{SHARED: 2})
    assert "cannot be linked: rows of gate and up" in refused(
        root, tmp_path, "--tp", "1", "--dp", "4", "--link")


INSTANCES = GOLDEN / "runs/instances_moe_torch_1/ckpt"


def test_experts_of_their_own_do_not_read_the_argument(tmp_path: Path) -> None:
    root = with_args(INSTANCES, tmp_path / "source", **{EXPERTS: 2})
    assert verify(root)[0] == 0
    assert "grouped experts alone (moe_grouped_gemm)" in refused(
        root, tmp_path, "--tp", "2", "--dp", "2", "--etp", "2")
    succeed("reshard", root, tmp_path / "made", "--dp", "1", "--ep", "1")


@pytest.mark.parametrize(("values", "code"), (
    ({EXPERTS: 3}, DAMAGED), ({EXPERTS: 4}, 0), ({EXPERTS: 8}, DAMAGED),
    ({SHARED: 4, **READ_SHARED}, 0), ({SHARED: 5, **READ_SHARED}, DAMAGED), ({SHARED: 5}, 0),
    ({EXPERTS: 0}, 3), ({EXPERTS: "4"}, 3), ({EXPERTS: None, SHARED: None}, 0),
), ids=str)
@pytest.mark.parametrize("source", ("deep", "torch_dist"))
def test_verify_knows_the_size(source: str, values: dict, code: int, tmp_path: Path) -> None:
    root = with_args(GROUPED[source], tmp_path / "source", **values)
    outcome = run("ckpt-inspect", "verify", root, "--json")
    assert (outcome.code != 0) == (code != 0), outcome
    if code == DAMAGED:
        argument = next(iter(values))
        assert any(f"args.{argument} is {values[argument]}, but" in found and "rows on each rank" in
                   found for found in damage_of(outcome.json()))


# --- what an optimizer does with such rows ---

def gradients_for(root: Path, folder: Path) -> Path:
    """One step of gradients for the parameters of a checkpoint."""
    succeed("ckpt-convert", root, folder / "plain", "--to", "safetensors")
    masters = "optimizer.state.fp32_param."
    generator = torch.Generator().manual_seed(5)
    grads = {name.replace(masters, "grad0."): torch.randn(tensor.shape, generator=generator)
             for path in (folder / "plain").rglob("*.safetensors")
             for name, tensor in load_file(path).items() if name.startswith(masters)}
    assert grads
    save_file(grads, folder / "grads.safetensors")
    return folder / "grads.safetensors"


def test_a_step_is_the_same_whatever_the_rows_mean(tmp_path: Path) -> None:
    root = GROUPED["torch_dist"]
    blocks = with_args(root, tmp_path / "blocks", **{EXPERTS: 4})
    grads = gradients_for(root, tmp_path)
    states = []
    for source in (root, blocks):
        out = tmp_path / f"after-{source.name}"
        succeed("step-replay", "run", source, "--grads", grads, "--output", out)
        assert hash_of(source) != hash_of(out)
        states.append(out)
    compared = run("ckpt-inspect", "diff", *states, "--json").json()
    assert compared["tensors"]["compared"] > 100
    assert compared["tensors"]["different"] == []
    assert [entry["key"] for entry in compared["objects"]["different"]] == ["args"]
