"""The files that the cases of the first hour are about: small, and made without PyTorch.

Each function of SAMPLES fills a folder; its name is what cases.py calls it.
"""
import io
import json
import pathlib
import pickle
import shutil
import signal
import struct
import tarfile
import zipfile

GOLDEN = pathlib.Path(__file__).resolve().parent.parent / "golden"
ITERATION = "iter_0000003"
TRACKER = "latest_checkpointed_iteration.txt"


def megatron(place):
    shutil.copytree(GOLDEN / "lw_muon_bf16_torch_dist_dp2/ckpt", path(place, "ckpt"))


def megatron_torch(place):
    shutil.copytree(GOLDEN / "lw_muon_bf16_torch_dp2/ckpt", path(place, "ckpt_torch"))


def run_a(place):
    shutil.copytree(GOLDEN / "lw_muon_bf16_torch_dist_dp2/ckpt", path(place, "run_a"))


def run_b(place):
    """The same model, trained on twice as many ranks: other sums, rounded otherwise."""
    shutil.copytree(GOLDEN / "lw_muon_bf16_torch_dp4/ckpt", path(place, "run_b"))


def gradients(place):
    """What was recorded of run_a's three steps."""
    expected = GOLDEN / "lw_muon_bf16_torch_dp2/expected"
    shutil.copytree(expected, path(place, "recorded"))


def trainers(place):
    """hf_trainer/checkpoint-{2,4,6}, whose loss was NaN after 4; torchtitan/step-{2,4,6}."""
    unpack(place, "trainers.tar.xz", "./")


def llama(place):
    """A small Llama that Megatron-Core trained."""
    unpack(place, "huggingface/logits.tar.xz", "./llama/ckpt")
    path(place, "llama/ckpt").rename(path(place, "llama_run"))


def zero1(place):
    """Megatron's DistributedOptimizer with Adam, of two data-parallel ranks."""
    shutil.copytree(GOLDEN / "do_adam_bf16_torch_dp2/ckpt", path(place, "zero1"))


def megatron_fsdp(place):
    """fsdp2/ckpt of Megatron under FSDP2, mfsdp/ckpt of Megatron-FSDP."""
    unpack(place, "megatron_fsdp.tar.xz", ("fsdp2/", "mfsdp/"))


def exported(place):
    """The small Llama as a Hugging Face folder."""
    llama(place)
    done = place.run("ckpt-convert llama_run hf --to huggingface --quiet")
    assert done.exit_code == 0, done.lines


def other_root(place):
    path(place, "other_root").mkdir()


def crashed(place):
    """A run that was killed while it wrote iteration 6."""
    shutil.copytree(GOLDEN / "lw_muon_bf16_torch_dist_dp2/ckpt", path(place, "crashed"))
    shutil.copytree(path(place, f"crashed/{ITERATION}"), path(place, "crashed/iter_0000006"))
    path(place, "crashed/iter_0000006/.metadata").unlink()
    write(place, f"crashed/{TRACKER}", b"6")


def other(place):
    shutil.copytree(GOLDEN / "gpt1l_tiny_torch_dist_dp2", path(place, "other"))


def torch_save(place):
    shutil.copy(GOLDEN / "torch_save_zip/zip.pt", path(place, "model.pt"))


def flat(place):
    torch_save(place)
    command = "ckpt-convert model.pt flat.safetensors --to safetensors --include 'module_sd.*'"
    done = place.run(command)
    assert done.exit_code == 0, done.lines


def safetensors(place):
    write(place, "model.safetensors", safetensors_file({"embed.weight": [4, 8], "head.bias": [4]}))


def large(place):
    """128 MiB, sparse: enough to be interrupted in the middle."""
    count = 32 << 20
    head = safetensors_file({"w": [count]}, payload=False)
    with open(path(place, "large.safetensors"), "wb") as file:
        file.write(head)
        file.truncate(len(head) + 4 * count)


def interrupted(place):
    """What Ctrl-C leaves of a run that may be resumed."""
    large(place)
    place.end("ckpt-convert large.safetensors out --to torch_dist --resume", signal.SIGINT)


def killed(place):
    """What a run that was killed has left."""
    large(place)
    place.end("ckpt-convert large.safetensors out --to torch_dist", signal.SIGKILL)


def dcp(place):
    safetensors(place)
    done = place.run("ckpt-convert model.safetensors dcp --to torch_dist")
    assert done.exit_code == 0, done.lines


def out(place):
    write(place, "out/mine.txt", b"not to be lost\n")


def no_tracker(place):
    megatron(place)
    path(place, f"ckpt/{TRACKER}").unlink()


def broken_tracker(place):
    megatron(place)
    write(place, f"ckpt/{TRACKER}", b"three\n")


def tracker_of_another_iteration(place):
    megatron(place)
    write(place, f"ckpt/{TRACKER}", b"500\n")


def tensor_parallel(place):
    """The arguments of a run with 2 tensor-parallel ranks, of which one is there."""
    megatron_torch(place)
    name = f"ckpt_torch/{ITERATION}/mp_rank_00/model_optim_rng.pt"
    for size in (b"\x1a\x00\x00\x00tensor_model_parallel_sizeq\x05",
                 b"\x1b\x00\x00\x00expert_tensor_parallel_sizeq\x0e"):
        edit_pickle(place, name, (size + b"K\x01", size + b"K\x02"))


def model_rules(place):
    """A row with a word that is none."""
    write(place, "rules.json", b'{"schema_version": 1, "rules": [{"part": "layer", "name": '
          b'"mlp.down.weight", "split": "column"}]}')


def missing_rank_file(place):
    megatron_torch(place)
    path(place, f"ckpt_torch/{ITERATION}/mp_rank_00/layer_wise_optimizer_1.pt").unlink()


def missing_data_file(place):
    megatron(place)
    path(place, f"ckpt/{ITERATION}/__1_0.distcp").unlink()


def missing_metadata(place):
    megatron(place)
    path(place, f"ckpt/{ITERATION}/.metadata").unlink()


def missing_common(place):
    megatron(place)
    path(place, f"ckpt/{ITERATION}/common.pt").unlink()


def flipped_byte(place):
    megatron(place)
    flip(place, f"ckpt/{ITERATION}/__1_0.distcp", 5000)


def flipped_metadata(place):
    megatron(place)
    flip(place, f"ckpt/{ITERATION}/.metadata", 100)


def truncated_data_file(place):
    megatron(place)
    cut(place, f"ckpt/{ITERATION}/__1_0.distcp")


def truncated_torch_save(place):
    torch_save(place)
    cut(place, "model.pt")


def truncated_safetensors(place):
    safetensors(place)
    cut(place, "model.safetensors")


def unreadable(place):
    torch_save(place)
    path(place, "model.pt").chmod(0)


def unwritable(place):
    torch_save(place)
    path(place, "full").mkdir(mode=0o555)


def folder_for_file(place):
    path(place, "model.pt").mkdir()


def empty_folder(place):
    path(place, "new").mkdir()


def empty_file(place):
    write(place, "empty.pt", b"")


def html(place):
    write(place, "model.pt", b"<!DOCTYPE html>\n<html><body>404: not found</body></html>\n")


def git_lfs(place):
    write(place, "model.safetensors", b"version https://git-lfs.github.com/spec/v1\n"
          b"oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\n"
          b"size 12345\n")


def gguf(place):
    write(place, "model.gguf", b"GGUF" + struct.pack("<IQQ", 3, 0, 0))


def npz(place):
    header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }".ljust(117) + b"\n"
    array = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + bytes(8)
    write(place, "weights.npz", zip_file({"w.npy": array}))
    write(place, "w.npy", array)


def hdf5(place):
    write(place, "model.h5", b"\x89HDF\r\n\x1a\n" + bytes(504))


def onnx(place):
    write(place, "model.onnx", b"\x08\x08\x12\x07pytorch\x1a\x052.11.0" + bytes(64))


def tar_gz(place):
    write(place, "ckpt.tar.gz", tar_file({"ckpt/model.pt": b"x"}, "w:gz"))


def torch_export(place):
    write(place, "model.pt2", zip_file({
        "model/archive_format": b"pt2", "model/archive_version": b"0",
        "model/byteorder": b"little", "model/models/model.json": b"{}"}))


def torchscript(place):
    write(place, "scripted.pt", zip_file({
        "scripted/data.pkl": b"\x80\x02N.", "scripted/code/__torch__.py": b"",
        "scripted/constants.pkl": b"\x80\x02).", "scripted/version": b"3\n",
        "scripted/byteorder": b"little"}))


def python_pickle(place):
    write(place, "state.pkl", pickle.dumps({"step": 3}, protocol=4))


def nemo(place):
    write(place, "model.nemo", tar_file(
        {"./model_config.yaml": b"precision: bf16\n", "./model_weights.ckpt": b"PK"}, "w"))


def nemo_folder(place):
    """NeMo 2: the checkpoint is the folder `weights`."""
    shutil.copytree(GOLDEN / "lw_muon_bf16_torch_dist_dp2/ckpt" / ITERATION,
                    path(place, "nemo/weights"))
    write(place, "nemo/context/model.yaml", b"_target_: nemo.collections.llm\n")


def hugging_face(place):
    index = {"metadata": {"total_size": 8}, "weight_map": {"w": "pytorch_model-00001-of-00001.bin"}}
    write(place, "hf/config.json", b'{"model_type": "llama"}')
    write(place, "hf/pytorch_model.bin.index.json", json.dumps(index).encode())
    shutil.copy(GOLDEN / "torch_save_zip/zip.pt",
                path(place, "hf/pytorch_model-00001-of-00001.bin"))


def missing_shard(place):
    index = {"metadata": {}, "weight_map": {"w": "model-00001-of-00002.safetensors"}}
    write(place, "hf/model.safetensors.index.json", json.dumps(index).encode())


def path(place, name):
    found = pathlib.Path(place.folder) / name
    found.parent.mkdir(parents=True, exist_ok=True)
    return found


def unpack(place, archive, front):
    with tarfile.open(GOLDEN / archive) as members:
        members.extractall(place.folder, [member for member in members
                                          if member.name.startswith(front)])


def write(place, name, content):
    path(place, name).write_bytes(content)


def flip(place, name, offset):
    content = bytearray(path(place, name).read_bytes())
    content[offset] ^= 1
    write(place, name, bytes(content))


def cut(place, name):
    content = path(place, name).read_bytes()
    write(place, name, content[:len(content) // 2])


def safetensors_file(shapes, payload=True):
    header, end = {}, 0
    for key, shape in shapes.items():
        begin, count = end, 1
        for size in shape:
            count *= size
        end = begin + 4 * count
        header[key] = {"dtype": "F32", "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    values = b"".join(struct.pack("<f", i) for i in range(end // 4)) if payload else b""
    return struct.pack("<Q", len(text)) + text + values


def zip_file(members):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in members.items():
            archive.writestr(zipfile.ZipInfo(name), content)
    return buffer.getvalue()


def tar_file(members, mode):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as archive:
        for name, content in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def edit_pickle(place, name, replacement):
    """Replaces some bytes of a torch.save file's pickle by as many others."""
    old, new = replacement
    with zipfile.ZipFile(path(place, name)) as archive:
        members = {member: archive.read(member) for member in archive.namelist()}
    pickled = next(member for member in members if member.endswith("/data.pkl"))
    assert members[pickled].count(old) == 1 and len(old) == len(new), name
    members[pickled] = members[pickled].replace(old, new)
    write(place, name, zip_file(members))
