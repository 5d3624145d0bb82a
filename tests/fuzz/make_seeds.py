"""Writes the seeds of the fuzz targets into tests/fuzz/corpus, from tests/golden and PyTorch.

usage: make_seeds.py    (with the Python of the tests: it needs torch)

Seeds are named after their content, as libFuzzer names what it finds.
"""
import hashlib
import io
import json
import pickle
import struct
import tempfile
import zipfile
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp

TESTS = Path(__file__).resolve().parent.parent
CORPUS = TESTS / "fuzz" / "corpus"
GOLDEN = TESTS / "golden"
# As in folder.cc.
NAMES = [".metadata", "__0_0.distcp", "__1_0.distcp", "common.pt", "metadata.json",
         "latest_checkpointed_iteration.txt", "file.pt", "model.safetensors",
         "model.safetensors.index.json", "iter_0000003/.metadata",
         "iter_0000003/mp_rank_00/model_optim_rng.pt",
         "iter_0000003/mp_rank_00/layer_wise_optimizer_0.pt"]


def add(target, content):
    folder = CORPUS / target
    folder.mkdir(parents=True, exist_ok=True)
    (folder / hashlib.sha1(content).hexdigest()).write_bytes(content)


def packed(files):
    return b"".join(bytes([NAMES.index(name)]) + len(content).to_bytes(3, "little") + content
                    for name, content in files.items())


def saved(value, **options):
    buffer = io.BytesIO()
    torch.save(value, buffer, **options)
    return buffer.getvalue()


def plain_checkpoint():
    """A DCP folder of two tensors and a number, as a mapping of names to contents."""
    with tempfile.TemporaryDirectory() as folder:
        dcp.save({"a": torch.arange(6.).reshape(2, 3), "b": {"c": torch.tensor(True), "step": 7}},
                 checkpoint_id=folder, no_dist=True)
        return {path.name: path.read_bytes() for path in sorted(Path(folder).iterdir())}


def safetensors_blob(header, payload):
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + bytes(payload)


def torch_files():
    shared = torch.arange(4.)
    yield saved({"w": shared, "view": shared[1:3], "t": torch.zeros(2, 3).t(), "n": [1, None]})
    yield saved(torch.nn.Parameter(torch.ones(3, dtype=torch.bfloat16)))
    yield saved([], pickle_protocol=5)
    yield saved({"q": torch.zeros(2, dtype=torch.float8_e4m3fn)}, pickle_protocol=4)


STORE_REPLIES = (
    "<ListBucketResult><Contents><Key>p/a&amp;b</Key><LastModified>2026-11-28T14:05:35.578Z"
    "</LastModified><ETag>&quot;a-2&quot;</ETag><Size>1</Size></Contents><CommonPrefixes><Prefix>"
    "p/x/</Prefix></CommonPrefixes><IsTruncated>true</IsTruncated><NextContinuationToken>t"
    "</NextContinuationToken></ListBucketResult>",
    "<ListMultipartUploadsResult><Upload><Key>p/a</Key><UploadId>2~a</UploadId></Upload>"
    "<IsTruncated>true</IsTruncated><NextKeyMarker>p/a</NextKeyMarker>"
    "</ListMultipartUploadsResult>",
    "<ListPartsResult xmlns='x'><IsTruncated>false</IsTruncated><Part><PartNumber>1</PartNumber>"
    "<Size>3</Size><ETag>&#34;e&#x22;</ETag></Part></ListPartsResult>",
    "<?xml version='1.0'?><InitiateMultipartUploadResult><UploadId>2~a</UploadId>"
    "</InitiateMultipartUploadResult>",
    "<Error><Code>SlowDown</Code></Error>")


def flat_buffer_lies():
    """As flat_buffers.cc takes them: the form, then what each lie is about and how large it is."""
    for form in range(4):
        yield bytes([form])
        for what in range(16):
            yield bytes([form, what, 3 * what + 1, 0, 8, 1])
            yield bytes([form, what, 40 + what, 0, what, 2, 4, 0])


def main():
    torch.manual_seed(0)
    for lies in flat_buffer_lies():
        add("flat_buffers", lies)
    for reply in STORE_REPLIES:
        add("store_reply", reply.encode())
    folder = plain_checkpoint()
    archives = list(torch_files())
    add("zip", (GOLDEN / "torch_save_zip" / "zip_nocrc.pt").read_bytes())  # no checksums
    for archive in archives:
        add("zip", archive)
        add("folder", packed({"file.pt": archive}))
        with zipfile.ZipFile(io.BytesIO(archive)) as members:
            name = next(name for name in members.namelist() if name.endswith("data.pkl"))
            add("pickle", members.read(name))
    value = {"list": [1, -1, 2**70, 1.5, b"x", "\u00e9", None, True, (1, 2), {4}, frozenset([5])]}
    value["self"] = value
    for protocol in range(6):
        add("pickle", pickle.dumps(value, protocol))
    for metadata in [folder[".metadata"], (GOLDEN / "lw_muon_bf16_torch_dist_dp2" / "ckpt" /
                                           "iter_0000003" / ".metadata").read_bytes()]:
        add("dist_metadata", metadata)
    add("folder", packed(folder))
    add("folder", packed({"latest_checkpointed_iteration.txt": b"3\n",
                          "iter_0000003/mp_rank_00/model_optim_rng.pt": archives[0]}))
    header = {"__metadata__": {"format": "pt"},
              "w": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
              "e": {"dtype": "BF16", "shape": [0], "data_offsets": [24, 24]}}
    blob = safetensors_blob(header, 24)
    add("safetensors", blob)
    add("safetensors", safetensors_blob({}, 0))
    add("folder", packed({"model.safetensors": blob}))
    index = {"metadata": {"total_size": 24}, "weight_map": {"w": "model.safetensors",
                                                            "e": "model.safetensors"}}
    add("folder", packed({"model.safetensors": blob,
                          "model.safetensors.index.json": json.dumps(index).encode()}))


if __name__ == "__main__":
    main()
