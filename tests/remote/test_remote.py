"""Checkpoints in an object store and on a web server, against a real Ceph.

Needs Debian's ceph-mon, ceph-osd, ceph-common and radosgw, else it is skipped and says so; of
Python its own library alone. SHARDWISE_LONG_TESTS=1: thousands of runs on a store that fails.
usage: test_remote.py BIN [TEST...]
"""
import os
import pathlib
import shutil
import sys
import tempfile
import unittest

import remote_case as case
from ceph import KEY, SECRET, Ceph, missing
from s3 import Bucket
from test_reading import Reading, Web  # pylint: disable=unused-import
from test_shares import Shares  # pylint: disable=unused-import
from test_writing import Writing  # pylint: disable=unused-import


def main():
    if reason := missing():
        print(f"skipped: {reason}")
        return 77
    case.BIN = pathlib.Path(sys.argv.pop(1))
    case.WORK = pathlib.Path(tempfile.mkdtemp(prefix="shardwise-remote-"))
    try:
        case.STORE = Ceph(case.WORK / "ceph", gibibytes=2)
    except RuntimeError as error:
        if os.environ.get("CI"):
            raise
        print(f"skipped: Ceph does not start here: {error}")
        return 77
    try:
        case.STORE.bucket = Bucket(case.STORE.endpoint, "bucket", KEY, SECRET).create()
        for name, folder in case.FOLDERS.items():
            case.STORE.bucket.put_folder(name, folder)
        case.STORE.bucket.put("zip.pt", case.FILE.read_bytes())
        return not unittest.main(argv=sys.argv, exit=False).result.wasSuccessful()
    finally:
        case.STORE.close()
        shutil.rmtree(case.WORK)


if __name__ == "__main__":
    sys.exit(main())
