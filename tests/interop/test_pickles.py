"""What we write is a pickle that Python's own tools read, and unknown classes pass through."""

from __future__ import annotations

import io
import pickle
import pickletools
import zipfile
from pathlib import Path

import pytest
import torch

from comparing import CONVERSION_MAY_CHANGE, differences
from golden.cases import MEGATRON_CASES
from programs import GOLDEN
from reading import DcpFolder, iteration_folder, load, model_file, rank_file


def data_pickle(archive: bytes) -> bytes:
    """data.pkl of a torch.save archive; zipfile checks every member's CRC-32 on the way."""
    with zipfile.ZipFile(io.BytesIO(archive)) as opened:
        assert opened.testzip() is None
        names = opened.namelist()
        assert names[0].endswith("/data.pkl"), names[0]
        prefix = names[0].removesuffix("data.pkl")
        assert all(name.startswith(prefix) for name in names)
        members = {name.removeprefix(prefix) for name in names}
        assert {"byteorder", "version", ".data/serialization_id"} <= members
        assert opened.read(f"{prefix}byteorder") == b"little"
        return opened.read(names[0])


def protocol(stream: bytes) -> int:
    """Walks all opcodes up to STOP, which must be the last byte, and returns the protocol."""
    opcodes = list(pickletools.genops(stream))
    assert opcodes[-1][0].name == "STOP" and opcodes[-1][2] == len(stream) - 1
    assert opcodes[0][0].name == "PROTO"
    pickletools.dis(stream, out=io.StringIO())  # checks the stack and the memo
    return opcodes[0][1]


def global_names(stream: bytes) -> set[str]:
    """Classes and functions that a pickle names: GLOBAL of protocol 2, STACK_GLOBAL of protocol 4,
    whose two words may come from the memo."""
    names, pushed, memo = set(), [], []
    for opcode, argument, _ in pickletools.genops(stream):
        if opcode.name == "GLOBAL":
            names.add(argument.replace(" ", "."))
        elif opcode.name == "STACK_GLOBAL":
            names.add(".".join(pushed[-2:]))
            pushed.append(None)
        elif opcode.name == "MEMOIZE":
            memo.append(pushed[-1] if pushed else None)
        elif opcode.name in ("BINGET", "LONG_BINGET") and memo:
            pushed.append(memo[argument])
        else:
            pushed.append(argument if isinstance(argument, str) else None)
    return names


def entries(folder: DcpFolder) -> dict:
    found = {}
    for index, place in folder.metadata.storage_data.items():
        content = (folder.folder / place.relative_path).read_bytes()
        found[index.fqn, index.offset] = content[place.offset : place.offset + place.length]
    return found


@pytest.mark.parametrize("case", ["gpt2l", "gpt5l_modern", "gpt2l_fused"])
def test_torch_files_are_pickles_as_megatron_writes_them(case, products, generated) -> None:
    """Protocol 2, and exactly the classes of the file that Megatron wrote (no more, no fewer)."""
    made = products.convert(generated / f"{case}_torch_dist_dp2", "torch")
    theirs = generated / f"{case}_torch_dp2"
    for path_of in (model_file, lambda root: rank_file(root, 0), lambda root: rank_file(root, 1)):
        ours = data_pickle(path_of(made).read_bytes())
        assert protocol(ours) == 2
        assert global_names(ours) == global_names(data_pickle(path_of(theirs).read_bytes()))


@pytest.mark.parametrize("case", ["gpt2l", "gpt5l_modern", "gpt2l_fused"])
def test_torch_dist_folders_are_pickles_as_megatron_writes_them(case, products, generated) -> None:
    made_root = products.convert(generated / f"{case}_torch_dp2", "torch_dist")
    made = DcpFolder(iteration_folder(made_root))
    theirs = DcpFolder(iteration_folder(generated / f"{case}_torch_dist_dp2"))
    ours, others = ((f.folder / ".metadata").read_bytes() for f in (made, theirs))
    assert protocol(ours) == 4
    assert global_names(ours) == global_names(others)
    ours, others = ((f.folder / "common.pt").read_bytes() for f in (made, theirs))
    assert protocol(data_pickle(ours)) == 2
    assert global_names(data_pickle(ours)) == global_names(data_pickle(others))
    expected = entries(theirs)
    for key, archive in entries(made).items():
        stream = data_pickle(archive)
        assert protocol(stream) == 2, key
        assert global_names(stream) == global_names(data_pickle(expected[key])), key


def test_entries_of_distcp_files_follow_each_other_without_holes(products, generated) -> None:
    for case in ("gpt2l", "gpt5l_modern"):
        made = DcpFolder(
            iteration_folder(products.convert(generated / f"{case}_torch_dp2", "torch_dist"))
        )
        by_file: dict[str, list] = {}
        for place in made.metadata.storage_data.values():
            by_file.setdefault(place.relative_path, []).append((place.offset, place.length))
        for name, places in by_file.items():
            end = 0
            for offset, length in sorted(places):
                assert offset == end, name
                end = offset + length
            assert (made.folder / name).stat().st_size == end, name
        on_disk = {path.name for path in made.folder.glob("*.distcp")}
        assert on_disk == set(by_file)


def test_storages_are_aligned_as_torch_aligns_them(products, generated: Path) -> None:
    """64 bytes, so that torch.load(mmap=True) serves tensors from the file."""
    made = products.convert(generated / "gpt2l_torch_dist_dp2", "torch")
    for path in (model_file(made), rank_file(made, 0)):
        content = path.read_bytes()
        with zipfile.ZipFile(path) as archive:
            for item in archive.infolist():
                if "/data/" in item.filename and not item.filename.endswith("serialization_id"):
                    header = content[item.header_offset : item.header_offset + 30]
                    lengths = int.from_bytes(header[26:28], "little") + int.from_bytes(
                        header[28:30], "little"
                    )
                    assert (item.header_offset + 30 + lengths) % 64 == 0, item.filename
        mapped = torch.load(path, weights_only=False, mmap=True)
        assert differences(mapped, load(path)) == []


@pytest.mark.parametrize("case", MEGATRON_CASES, ids=lambda case: case.name)
def test_args_come_through_unchanged(case, products, generated: Path) -> None:
    """argparse.Namespace, enums, signals and dtypes that our programs know nothing about."""
    root = generated / case.folder("torch_dist", case.dp_sizes[-1])
    source = DcpFolder(iteration_folder(root))
    expected = vars(source.common["args"])
    if "torch" in case.formats:
        args = load(model_file(products.convert(root, "torch")))["args"]
        assert type(args) is type(source.common["args"])
        changed = {name for name in expected if vars(args)[name] != expected[name]}
        assert {f"/args/@{name}" for name in changed} <= CONVERSION_MAY_CHANGE
        assert list(vars(args)) == list(expected)
    args = DcpFolder(iteration_folder(products.reshard(root, 3))).common["args"]
    changed = {name for name in expected if vars(args)[name] != expected[name]}
    sizes = {"data_parallel_size", "world_size", "inprocess_active_world_size"}
    assert changed <= sizes | {"save"}
    assert list(vars(args)) == list(expected)


def test_unknown_classes_come_through_unchanged(products, generated: Path) -> None:
    """Objects whose classes only Python can build compare equal after two conversions."""
    source = load(generated / "plain_objects.pt")
    made = products.convert(generated / "plain_objects.pt", "torch_dist")
    back = load(products.convert(made, "torch"))
    for key, value in source.items():
        if key != "weight":
            assert type(back[key]) is type(value), key
            assert back[key] == value, key
    assert vars(back["namespace"].named) == {"title": "with state"}
    assert torch.equal(back["weight"], source["weight"])


def test_recorded_random_state_is_the_same_object_tree(products) -> None:
    """numpy's generator state, Python's Mersenne Twister tuple and torch's bytes."""
    made = products.convert(GOLDEN / "lw_muon_bf16_torch_dist_dp2/ckpt", "torch")
    theirs = load(model_file(GOLDEN / "lw_muon_bf16_torch_dp2/ckpt"))["rng_state"]
    assert differences(load(model_file(made))["rng_state"], theirs) == []


def test_metadata_is_read_by_pickle_alone(products, generated: Path) -> None:
    made = products.convert(generated / "gpt2l_torch_dp2", "torch_dist")
    metadata = pickle.loads((iteration_folder(made) / ".metadata").read_bytes())
    assert type(metadata).__name__ == "Metadata"
    assert metadata.storage_meta.save_id and metadata.storage_meta.modules == []
