"""check_calls.py: a call downwards passes, one upwards is named with both files and the symbol."""
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
sys.path.insert(0, str(SCRIPTS))
import check_calls  # noqa: E402
import check_house  # noqa: E402

TABLE = """
| room | folders, from the bottom up | owns |
|---|---|---|
| plan | libckpt/include libckpt/src/plan | plans |
| write | libckpt/src/write | bytes |
| training | libtraining/src/state | state |
"""
EXCEPTION = """
| who | may include | because |
|---|---|---|
| libckpt/src/plan | libckpt/src/write | it was so |
"""
PLAN = "libckpt/src/plan/runs.cc"
WRITE = "libckpt/src/write/copy.cc"


class Tree:
    """A source tree and its object files, where CMake would have put them."""

    def __init__(self, folder, sources, table=TABLE):
        self.root, self.build = Path(folder), Path(folder) / "build"
        self.write("docs/ARCHITECTURE.md", table)
        for name, text in sources.items():
            self.write(name, text)
            library, _, path = name.partition("/")
            compiled = self.build / library / "CMakeFiles" / "ckpt_objects.dir" / f"{path}.o"
            compiled.parent.mkdir(parents=True, exist_ok=True)
            self.compile(self.root / name, compiled)

    def compile(self, source, compiled):
        subprocess.run([os.environ.get("CXX", "c++"), "-c", source, "-o", compiled], check=True)

    def compile_together(self, library, names):
        """As CMake does where UNITY_BUILD is on."""
        unit = self.build / library / "CMakeFiles/ckpt_objects.dir/Unity/unity_0_cxx.cxx"
        unit.parent.mkdir(parents=True, exist_ok=True)
        unit.write_text("".join(f'#include "{self.root / name}"\n' for name in names))
        self.compile(unit, unit.with_name(unit.name + ".o"))

    def write(self, name, text):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def faults(self):
        return check_calls.upward_calls(check_house.House(self.root), self.build)[0]


def faults_of(sources, table=TABLE):
    with tempfile.TemporaryDirectory() as folder:
        return Tree(folder, sources, table).faults()


class CheckCalls(unittest.TestCase):
    def test_a_call_downwards_passes(self):
        self.assertEqual(faults_of({
            PLAN: "namespace ckpt { int runs(int a) { return a; } }\n",
            WRITE: "namespace ckpt { int runs(int); int copy(int a) { return runs(a); } }\n",
        }), [])

    def test_a_call_upwards_is_named(self):
        self.assertEqual(faults_of({
            PLAN: "namespace ckpt { int copy(int); int runs(int a) { return copy(a); } }\n",
            WRITE: "namespace ckpt { int copy(int a) { return a; } }\n",
        }), [f"{PLAN} calls ckpt::copy(int) of {WRITE}: "
             "libckpt/src/write stands below libckpt/src/plan in the list"])

    def test_a_call_upwards_between_libraries_is_named(self):
        state = "libtraining/src/state/names.cc"
        self.assertEqual(faults_of({
            PLAN: "namespace ckpt { int names(int); int runs(int a) { return names(a); } }\n",
            state: "namespace ckpt { int names(int a) { return a; } }\n",
        }), [f"{PLAN} calls ckpt::names(int) of {state}: "
             "libtraining/src/state stands below libckpt/src/plan in the list"])

    def test_an_exception_passes(self):
        self.assertEqual(faults_of({
            PLAN: "namespace ckpt { int copy(int); int runs(int a) { return copy(a); } }\n",
            WRITE: "namespace ckpt { int copy(int a) { return a; } }\n",
        }, TABLE + EXCEPTION), [])

    def test_sources_compiled_together_are_called_by_their_folder(self):
        with tempfile.TemporaryDirectory() as folder:
            tree = Tree(folder, {WRITE: "namespace ckpt { int copy(int a) { return a; } }\n"})
            tree.write(PLAN, "namespace ckpt { int copy(int); int runs(int a) { return copy(a); }"
                             " }\n")
            tree.compile_together("libckpt", [PLAN])
            self.assertEqual(tree.faults(), [
                f"libckpt/src/plan calls ckpt::copy(int) of {WRITE}: "
                "libckpt/src/write stands below libckpt/src/plan in the list"])

    def test_an_object_file_without_its_source_is_an_older_builds(self):
        with tempfile.TemporaryDirectory() as folder:
            tree = Tree(folder, {
                PLAN: "namespace ckpt { int copy(int); int runs(int a) { return copy(a); } }\n",
                WRITE: "namespace ckpt { int copy(int a) { return a; } }\n",
            })
            (tree.root / PLAN).unlink()
            self.assertEqual(tree.faults(), [])


if __name__ == "__main__":
    unittest.main()
