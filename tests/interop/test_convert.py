"""A converted Megatron checkpoint is the one that Megatron writes of the same state."""

from __future__ import annotations

from pathlib import Path

import pytest

from golden.cases import MEGATRON_CASES, Case
from programs import GOLDEN, logical_digest, run
from reading import DcpFolder, iteration_folder
from twins import twin_differences

FORMATS = ("torch", "torch_dist")
# (torch set, torch_dist set) that Megatron-LM wrote of one training state.
RECORDED_TWINS = (
    ("lw_muon_bf16_torch_dp1", "lw_muon_bf16_torch_dist_dp1"),
    ("lw_muon_bf16_torch_dp2", "lw_muon_bf16_torch_dist_dp2"),
    ("lw_muon_bf16_torch_dp4", "lw_muon_bf16_torch_dist_dp4"),
    ("lw_muon_bf16_fusedadam_layout_torch_dp2", "lw_muon_bf16_fusedadam_layout_torch_dist_dp2"),
)
GENERATED_TWINS = [
    (case, dp_size) for case in MEGATRON_CASES for dp_size in case.dp_sizes
    if case.formats == FORMATS
]  # fmt: skip


def other(checkpoint_format: str) -> str:
    return FORMATS[1 - FORMATS.index(checkpoint_format)]


def recorded(name: str, request: pytest.FixtureRequest) -> Path:
    root = GOLDEN if (GOLDEN / name).is_dir() else request.getfixturevalue("fixtures")
    return root / name / "ckpt"


@pytest.mark.parametrize("to", FORMATS)
@pytest.mark.parametrize("names", RECORDED_TWINS, ids=lambda names: names[0])
def test_recorded_set_becomes_its_twin(names: tuple, to: str, products, request) -> None:
    twins = dict(zip(FORMATS, (recorded(name, request) for name in names), strict=True))
    made = products.convert(twins[other(to)], to)
    assert twin_differences(made, twins[to]) == []
    assert logical_digest(made) == logical_digest(twins[other(to)]) == logical_digest(twins[to])


@pytest.mark.parametrize("to", FORMATS)
@pytest.mark.parametrize(
    ("case", "dp_size"), GENERATED_TWINS, ids=lambda v: v.name if isinstance(v, Case) else str(v)
)
def test_generated_case_becomes_its_twin(
    case: Case, dp_size: int, to: str, products, generated: Path
) -> None:
    source = generated / case.folder(other(to), dp_size)
    made = products.convert(source, to)
    assert twin_differences(made, generated / case.folder(to, dp_size)) == []
    assert logical_digest(made) == logical_digest(source)


ROUND_TRIPS = ("gpt2l", "gpt5l_modern", "gpt2l_fused", "gpt2l_fresh", "gpt2l_rng_per_rank")


@pytest.mark.parametrize("start", FORMATS)
@pytest.mark.parametrize("name", ROUND_TRIPS)
def test_there_and_back_gives_the_start(name: str, start: str, products, generated: Path) -> None:
    source = generated / f"{name}_{start}_dp2"
    back = products.convert(products.convert(source, other(start)), start)
    assert twin_differences(back, source) == []
    assert logical_digest(back) == logical_digest(source)


@pytest.mark.parametrize("name", ["lw_muon_bf16_torch_dp2", "lw_muon_bf16_torch_dist_dp2"])
def test_recorded_there_and_back_gives_the_start(name: str, products) -> None:
    source = GOLDEN / name / "ckpt"
    start = "torch_dist" if "torch_dist" in name else "torch"
    back = products.convert(products.convert(source, other(start)), start)
    assert twin_differences(back, source) == []
    assert logical_digest(back) == logical_digest(source)


def test_one_iteration_folder_becomes_one_iteration_folder(
    generated: Path, tmp_path: Path
) -> None:
    source = iteration_folder(generated / "gpt2l_torch_dp2")
    target = tmp_path / "iter_0000003"
    outcome = run("ckpt-convert", source, target, "--to", "torch_dist")
    assert outcome.code == 0, outcome
    assert (target / ".metadata").is_file() and (target / "common.pt").is_file()
    assert not (target / "latest_checkpointed_iteration.txt").exists()
    expected = DcpFolder(iteration_folder(generated / "gpt2l_torch_dist_dp2"))
    assert DcpFolder(target).tensors().keys() == expected.tensors().keys()


def test_equal_input_gives_equal_bytes(generated: Path, tmp_path: Path) -> None:
    """Also for any number of threads."""
    for source, to in (("gpt2l_torch_dp4", "torch_dist"), ("gpt2l_torch_dist_dp4", "torch")):
        contents = []
        for threads in (1, 3):
            target = tmp_path / f"{to}_{threads}"
            outcome = run(
                "ckpt-convert", generated / source, target, "--to", to, "--threads", threads
            )
            assert outcome.code == 0, outcome
            files = sorted(path for path in target.rglob("*") if path.is_file())
            contents.append({path.relative_to(target): path.read_bytes() for path in files})
        assert contents[0] == contents[1]


def test_what_torch_dist_cannot_hold_is_said(generated: Path, tmp_path: Path) -> None:
    outcome = run(
        "ckpt-convert", generated / "gpt2l_torch_dp2", tmp_path / "made", "--to", "torch_dist"
    )
    assert outcome.code == 0, outcome
    assert "_metadata" in outcome.text, outcome


@pytest.mark.parametrize(
    ("dp_size", "to"), [(4, "torch"), (1, "torch"), (7, "torch"), (31, "torch")]
)
def test_convert_to_torch_for_another_number_of_ranks(
    dp_size: int, to: str, products, generated: Path
) -> None:
    """`ckpt-convert --to torch --dp N` deals for N ranks, as a reshard and a conversion would."""
    made = products.make(
        "ckpt-convert", generated / "gpt2l_torch_dist_dp2", "--to", to, "--dp", dp_size
    )
    assert twin_differences(made, generated / f"gpt2l_torch_dp{dp_size}") == []
