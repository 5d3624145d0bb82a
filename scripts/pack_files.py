"""A wheel and a tarball out of a tree of files: the same files give the same bytes."""
import base64
import gzip
import hashlib
import io
import tarfile
import time
import zipfile
from pathlib import Path

METADATA = """\
Metadata-Version: 2.4
Name: shardwise
Version: {version}
Summary: Checkpoints of large training runs: inspect, verify, compare, convert, reshard
License-Expression: {license}
{license_files}Requires-Python: >=3.9
Requires-Dist: numpy
Classifier: Development Status :: 4 - Beta
Classifier: Environment :: Console
Classifier: Operating System :: POSIX :: Linux
Classifier: Programming Language :: Python :: Implementation :: CPython
Classifier: Topic :: Scientific/Engineering :: Artificial Intelligence
Classifier: Typing :: Typed
"""
# Ours and those of what is inside: libc++; jemalloc; zstd, ISA-L, CLI11 and nanobind; nlohmann's
# JSON and robin_map.
LICENSE = ("Apache-2.0 AND Apache-2.0 WITH LLVM-exception AND BSD-2-Clause AND BSD-3-Clause AND "
           "MIT")


def files_of(tree):
    """Each file and link of a tree by its path in it, sorted."""
    return {path.relative_to(tree).as_posix(): path for path in sorted(Path(tree).rglob("*"))
            if path.is_symlink() or path.is_file()}


def write_tarball(path, name, files, epoch):
    """`files` maps where a file lies, under `name`, to what it is; links stay links."""
    with path.open("wb") as out, \
            gzip.GzipFile("", "wb", 9, out, mtime=epoch) as packed, \
            tarfile.open(fileobj=packed, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for place, file in sorted(files.items()):
            info = tarfile.TarInfo(f"{name}/{place}")
            info.mtime = epoch
            if file.is_symlink():
                info.type, info.linkname = tarfile.SYMTYPE, str(file.readlink())
                archive.addfile(info)
                continue
            info.size = file.stat().st_size
            info.mode = mode_of(place)
            archive.addfile(info, io.BytesIO(file.read_bytes()))


def mode_of(place):
    return 0o755 if place.split("/")[-2:-1] in (["bin"], ["scripts"]) else 0o644


def write_wheel(folder, version, tag, files, licenses, epoch):
    """Writes shardwise-VERSION-TAG.whl: `files` maps paths in the wheel to files, `licenses` names
    to files. Gives back its path."""
    info = f"shardwise-{version}.dist-info"
    contents = {place: file.read_bytes() for place, file in files.items()}
    contents.update({f"{info}/licenses/{name}": file.read_bytes()
                     for name, file in licenses.items()})
    license_files = "".join(f"License-File: {name}\n" for name in sorted(licenses))
    contents[f"{info}/METADATA"] = METADATA.format(
        version=version, license=LICENSE, license_files=license_files).encode()
    pythons, abis, platforms = tag.split("-")
    tags = "".join(f"Tag: {python}-{abi}-{platform}\n" for python in pythons.split(".")
                   for abi in abis.split(".") for platform in platforms.split("."))
    contents[f"{info}/WHEEL"] = (
        f"Wheel-Version: 1.0\nGenerator: scripts/package\nRoot-Is-Purelib: false\n{tags}").encode()
    record = "".join(f"{place},sha256={digest_of(data)},{len(data)}\n"
                     for place, data in sorted(contents.items()))
    contents[f"{info}/RECORD"] = (record + f"{info}/RECORD,,\n").encode()

    path = folder / f"shardwise-{version}-{tag}.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for place, data in sorted(contents.items(), key=lambda item: (info in item[0], item[0])):
            entry = zipfile.ZipInfo(place, time.gmtime(epoch)[:6])
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (0o100000 | mode_of(place)) << 16
            archive.writestr(entry, data)
    return path


def digest_of(data):
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
