"""check_house.py: a sound tree passes, and the same tree with one fault planted does not."""
import sys
import tempfile
import unittest
from pathlib import Path

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
sys.path.insert(0, str(SCRIPTS))
import check_house  # noqa: E402

ORDER = """
| room | folders, from the bottom up | owns |
|---|---|---|
| format | libckpt/include libckpt/src/{zip,format} | formats |
| plan | libckpt/src/plan | plans |
| kernels | kernels | pointers |
| step | liboptim/include liboptim/src/step | steps |
| layouts | libtraining/src/layouts | layouts |
| tools | tools | arguments |
"""
TABLE = ORDER + """
| who | may include | because |
|---|---|---|
| libtraining/src/layouts | liboptim/src/step/flat.h | it is laid out once |
| libckpt/src/zip | libckpt/src/plan/cut.h | it was so |

| from outside | may be included by |
|---|---|
| zstd | libckpt/src/format |
| CUDA | kernels |
| LibTorch | liboptim/include liboptim/src/step |
"""
SOUND = {
    "docs/ARCHITECTURE.md": TABLE,
    "README.md": "read docs/ARCHITECTURE.md",
    "libckpt/include/ckpt/box.h": "#pragma once\nnamespace ckpt { int area(int a, int b); }\n",
    "libckpt/src/plan/runs.h": "#pragma once\n",
    "libckpt/src/plan/runs.cc": '#include "plan/runs.h"\n#include <ckpt/box.h>\n',
    "libckpt/src/plan/cut.h": "#pragma once\n",
    "libckpt/src/format/zip.cc": "#include <zstd.h>\n",
    "libckpt/src/zip/entry.h": "#pragma once\n",
    "libckpt/src/zip/archive.cc": '#include "plan/cut.h"\n#include "zip/entry.h"\n',
    "liboptim/include/optim/step.h": "#pragma once\n#include <ATen/Tensor.h>\n",
    "liboptim/src/step/flat.h": "#pragma once\n#include <ckpt/box.h>\n",
    "liboptim/src/step/turn.h": "#pragma once\n#include <optim/step.h>\n",
    "liboptim/src/step/turn.cc": '#include "step/turn.h"\n#include <ATen/Tensor.h>\n',
    "libtraining/src/layouts/flat_file.cc": '#include "step/flat.h"\n',
    "kernels/src/adam.cu": "#include <cuda_runtime_api.h>\n",
    "tools/show.cc": '#include <ckpt/box.h>\nint main() { return ckpt::area(1, 2); }\n',
    "tests/ckpt/x.cc": '#include "plan/runs.h"\n#include <zstd.h>\n',
    "examples/ckpt/main.cc": '#include <ckpt/box.h>\n',
}


def function_of(line_count, head="int big()"):
    return head + " {\n" + "  ++counter;\n" * (line_count - 2) + "}\n"


# name of the fact: (file, its content, a part of the expected message)
PLANTED = {
    "an include upwards": ("libckpt/src/format/x.cc", '#include "plan/runs.h"\n',
                           "include plan/runs.h (libckpt/src/plan stands below "
                           "libckpt/src/format in the list)"),
    "an include upwards within a room": (
        "libckpt/src/zip/x.cc", '#include "format/x.h"\n',
        "libckpt/src/format stands below libckpt/src/zip"),
    "a public header that includes a source's": (
        "libckpt/include/ckpt/x.h", '#pragma once\n#include "zip/entry.h"\n', "stands below"),
    "an include upwards between libraries": (
        "libckpt/src/plan/x.cc", "#include <optim/step.h>\n",
        "liboptim/include stands below libckpt/src/plan"),
    "an exception that is another file's": (
        "libckpt/src/zip/x.cc", '#include "plan/runs.h"\n',
        "libckpt/src/plan stands below libckpt/src/zip"),
    "another library's inside": (
        "libtraining/src/layouts/x.cc", '#include "zip/entry.h"\n', "private to its library"),
    "LibTorch through a header": (
        "libtraining/src/layouts/x.cc", "#include <optim/step.h>\n", "needs LibTorch"),
    "a header of the tests": ("tools/x.cc", '#include "support/x.h"\n', "lies in no room"),
    "a third party in the wrong room": ("libckpt/src/plan/x.cc", "#include <zstd.h>\n", "(zstd)"),
    "a third party in an example": ("examples/ckpt/x.cc", "#include <zstd.h>\n", "(zstd)"),
    "an example that includes a source's": (
        "examples/ckpt/x.cc", '#include "plan/runs.h"\n', "not a public header"),
    "more rooms than one can look over": (
        "docs/ARCHITECTURE.md", ORDER + "| x | tools/show.cc | x |\n" * 20 + TABLE[len(ORDER):],
        "26 rooms, at most 25"),
    "a page of more than two screens": (
        "docs/ARCHITECTURE.md", TABLE + "\n" * 120, "lines, at most 120"),
    "a file in no room": ("libckpt/src/zoo/x.cc", "int x;\n", "lies in no room"),
    "a long file": ("tools/x.cc", "int x;\n" * 451, "451 lines"),
    "a long public header": ("libckpt/include/ckpt/x.h", "#pragma once\n" * 121, "at most 120"),
    "a long line": ("tools/x.cc", "int " + "x" * 97 + ";\n", "102 columns"),
    "a letter that is not ASCII": ("tools/x.cc", "// \u00e9\n", "not ASCII"),
    "a long function": ("tools/x.cc", function_of(61), "big: 61 lines"),
    "a long method": ("tools/x.cc", "struct S {\n public:\n" + function_of(61) + "};\n",
                      "big: 61 lines"),
    "a long constructor": ("tools/x.cc", function_of(61, "S::S(int a) : a_{a}, b_(0)"),
                           "S::S: 61 lines"),
    "a long kernel": ("kernels/src/x.cu", function_of(81, "__global__ void k(int* p)"),
                      "k: 81 lines"),
    "five parameters": ("tools/x.cc", "void f(int a, M<int, int> b, int c, int d, int e) {}\n",
                        "5 parameters"),
    "a link to nothing": ("docs/why/x.md", "see [that](y.md#part)\n", "links to y.md"),
    "a banned identifier": ("tools/x.cc", "int dst = 0;\n", "'dst'"),
    "printing in a library": ("libckpt/src/plan/x.cc", "void f() { std::cerr << 1; }\n",
                              "do not print"),
    "the environment in a library": ("libckpt/src/plan/x.cc", 'auto x = std::getenv("X");\n',
                                     "environment"),
    "a system call past the layer": ("libckpt/src/plan/x.cc", "int f = ::open(path, 0);\n",
                                     "system_calls.h"),
    "a file system query past the layer": ("libckpt/src/plan/x.cc", "bool b = fs::exists(path);\n",
                                           "system_calls.h"),
    "a phrase that is not English": ("libckpt/src/plan/x.cc", 'fail("that is "\n     "no size");\n',
                                     "write 'is not a'"),
    "unfinished work": ("tools/x.cc", "// TO" "DO: finish\n", "unfinished"),
    "a path of one machine": ("tools/x.cc", '// see /wo' 'rk/main\n', "one machine"),
    "a vague name": ("tools/utils.cc", "int x;\n", "'utils' says nothing"),
    "a vague folder": ("tools/misc/x.cc", "int x;\n", "'misc' says nothing"),
    "a name that is not snake_case": ("tools/BigName.cc", "int x;\n", "snake_case"),
    "a header without guard": ("libckpt/include/ckpt/x.h", "int x;\n", "pragma once"),
    "a header that nothing includes": ("libckpt/src/plan/x.h", "#pragma once\n",
                                       "no file includes it"),
    "a script that nothing mentions": ("scripts/dance", "echo\n", "nothing mentions it"),
    "a stranger at the top level": ("notes.txt", "x\n", "top level"),
    "a row of the table without its folder": (
        "docs/ARCHITECTURE.md", TABLE.replace("| tools | tools |", "| tools | nowhere tools |"),
        "no nowhere"),
    "an exception without its folder": (
        "docs/ARCHITECTURE.md", TABLE.replace("plan/cut.h", "plan/cut.h libckpt/src/none"),
        "no libckpt/src/none"),
    "a third party's row without its folder": (
        "docs/ARCHITECTURE.md", TABLE.replace("| CUDA | kernels |", "| CUDA | kernels gone |"),
        "no gone"),
}
# Beside a planted file: what it includes.
BESIDE = {
    "an include upwards within a room": {"libckpt/src/format/x.h": "#pragma once\n"},
    "a header of the tests": {"tests/support/x.h": "#pragma once\n"},
}
# What looks like a fault and is none.
HARMLESS = {
    "a long function's worth of table": "const int kTable[] = {\n" + "1,\n" * 100 + "};\n",
    "a namespace is no function": "namespace tools {\n" + "int f();\n" * 100 + "}\n",
    "a class is no function": "class C final : public B {\n" + "int f();\n" * 100 + "};\n",
    "banned words in text and comments": '// dst\nconst char* s = "src"; /* tmp */\n',
    "separators in numbers": "int a = 1'000; int b = 2'000'000;\n" + function_of(60),
    "braces in strings": 'const char* s = "{{{"; char c = \'{\';\n' + function_of(60),
    "raw strings": 'const char* s = R"(dst { " )";\n' + function_of(60),
    "options beside four parameters": "void f(int a, int b, M<int, int> c, int d, O options) {}\n",
    "sixty lines": function_of(59, "template <class T>\nvoid big(std::vector<T> v = {}) noexcept"),
}
# Messages of a library that only resemble a banned phrase.
HARMLESS_MESSAGES = ("there is no such key", "is no longer there", "they have not been read",
                     "is not a valid size", "rather than")


def faults_of(files):
    with tempfile.TemporaryDirectory() as root:
        for name, content in files.items():
            path = Path(root, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content, encoding="utf-8")
        house = check_house.House(root)
        for check in check_house.CHECKS:
            check(house)
        return house.faults


class CheckHouse(unittest.TestCase):
    def test_folders_may_be_listed_in_braces(self):
        self.assertEqual(check_house.expand_braces("a/{b,c}.h d"), ["a/b.h", "a/c.h", "d"])

    def test_a_sound_tree_has_no_fault(self):
        self.assertEqual(faults_of(SOUND), [])

    def test_each_planted_fault_is_found_alone(self):
        for fact, (name, content, expected) in PLANTED.items():
            with self.subTest(fact):
                faults = faults_of({**SOUND, **BESIDE.get(fact, {}), name: content})
                self.assertEqual(len(faults), 1, faults)
                self.assertIn(expected, faults[0])
                self.assertTrue(faults[0].startswith(name + ":"), faults[0])

    def test_a_folder_of_too_many_files_is_named(self):
        many = {f"tools/x{i}.cc": "int x;\n" for i in range(check_house.MAX_FOLDER_FILES)}
        faults = faults_of({**SOUND, **many})
        self.assertEqual(len(faults), 1, faults)
        self.assertIn("tools has 46 files", faults[0])

    def test_a_page_without_an_order_is_a_fault(self):
        faults = faults_of({**SOUND, "docs/ARCHITECTURE.md": "# Architecture\n"})
        self.assertIn("docs/ARCHITECTURE.md:1: has no table of rooms", faults)

    def test_a_library_that_is_most_of_them_is_named(self):
        for of_ckpt, expected in ((40, 0), (45, 1)):
            tree = {f"{library}/src/x.cc": "int x;\n" * count for library, count in (
                ("libckpt", of_ckpt), ("liboptim", 30), ("libtraining", 20), ("libreplay", 10))}
            tree["docs/ARCHITECTURE.md"] = TABLE
            faults = [fault for fault in faults_of(tree) if "of the lines of" in fault]
            self.assertEqual(len(faults), expected, faults)

    def test_a_folder_beyond_its_budget_of_lines_is_named(self):
        most = check_house.MAX_LINES["kernels"]
        for lines, expected in ((most, []), (most + 1, [f"kernels:1: {most + 1} lines"])):
            sources = {f"kernels/x{i}.cu": "int x;\n" * min(400, lines - i)
                       for i in range(0, lines, 400)}
            tree = {name: text for name, text in SOUND.items() if not name.startswith("kernels/")}
            found = [fault.split(",")[0] for fault in faults_of({**tree, **sources})
                     if "MAX_LINES" in fault]
            self.assertEqual(found, expected)

    def test_public_headers_are_counted(self):
        most = check_house.MAX_PUBLIC_HEADERS
        own = sum("/include/" in name and name.startswith("lib") for name in SOUND)
        for count, expected in ((most - own, []), (most - own + 1, [f"{most + 1} public headers"])):
            headers = {f"libckpt/include/ckpt/h{i}.h": "#pragma once\n" for i in range(count)}
            faults = faults_of({**SOUND, **headers})
            found = [fault for fault in faults if "public headers" in fault]
            self.assertEqual(len(found), len(expected), found)
            for fault, said in zip(found, expected):
                self.assertIn(said, fault)

    def test_what_only_looks_like_a_fault_passes(self):
        for fact, content in HARMLESS.items():
            with self.subTest(fact):
                self.assertEqual(faults_of({**SOUND, "tools/x.cc": content}), [])

    def test_english_passes(self):
        for message in HARMLESS_MESSAGES:
            with self.subTest(message):
                source = f'fail("{message}");\n'
                self.assertEqual(faults_of({**SOUND, "libckpt/src/plan/x.cc": source}), [])


if __name__ == "__main__":
    unittest.main()
