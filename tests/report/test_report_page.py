"""The page of ckpt-inspect report in a real browser, opened from the file system.

Needs Chromium (scripts/setup --tests), else it is skipped and says so; Python's own library alone.
usage: test_report_page.py BIN
"""
import json
import math
import pathlib
import shutil
import struct
import subprocess
import sys
import tempfile
import time
import unittest
import zipfile

import chromium

ROOT = pathlib.Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "golden"
LAYER_WISE = GOLDEN / "lw_muon_bf16_torch_dp2" / "ckpt"
STATE_DICT = GOLDEN / "torch_save_zip" / "zip.pt"
BIN = None  # of main()

HOSTILE = (
    "<img src=x onerror=window.hit=1>",
    "</script><script>window.hit=1</script>",
    "<!--<script>window.hit=1",
    "javascript:window.hit=1",
    "__proto__.constructor.weight",
    "__proto__",
    "constructor",
    "a\u0000b\u0007\u001b[31mred",
    "line\u2028break\u2029and \u202eright to left",
    "&lt;b&gt;&amp;\"'`${window.hit=1}",
    "layers.0." + "k" * 10_000,
    ".".join("s" for _ in range(3000)),
    "",
    "..",
)


def write_safetensors(path, tensors):
    """tensors: name -> list of floats."""
    header, payload = {}, bytearray()
    for name, values in tensors:
        begin = len(payload)
        payload += struct.pack(f"<{len(values)}f", *values)
        header[name] = {"dtype": "F32", "shape": [len(values)],
                        "data_offsets": [begin, len(payload)]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + payload)


def report(checkpoint, *options):
    """The page of a checkpoint, as a path."""
    page = pathlib.Path(folder.name) / f"{time.monotonic_ns()}.html"
    subprocess.run([BIN / "ckpt-inspect", "report", checkpoint, *options, "-o", page, "-q"],
                   check=True)
    return page


def document_of(*arguments):
    result = subprocess.run([BIN / "ckpt-inspect", "report", *arguments, "--json"], check=True,
                            stdout=subprocess.PIPE)
    return json.loads(result.stdout)


class ReportPage(unittest.TestCase):
    def setUp(self):
        browser.size(1280, 900)
        browser.theme("light")

    def open(self, checkpoint, *options):
        seconds = browser.open(report(checkpoint, *options))
        self.assertTrue(browser.requests[0].startswith("file://"))
        return seconds

    def tearDown(self):
        self.assertEqual(browser.console, [])
        self.assertEqual(len(browser.requests), 1, "the page has asked for something")

    def texts(self, selector):
        return browser.run(f"[...document.querySelectorAll({json.dumps(selector)})]"
                           ".map(node => node.textContent)")

    def count(self):
        return browser.run("document.querySelector('.count').textContent")

    def test_the_data_in_the_page_is_what_json_prints(self):
        self.open(LAYER_WISE)
        inside = browser.run("document.getElementById('data').textContent")
        self.assertEqual(json.loads(inside), document_of(LAYER_WISE))

    def test_the_verdict_is_on_top(self):
        self.open(LAYER_WISE)
        self.assertEqual(self.texts("#verdict h2"), ["Sound"])
        self.assertIn("checksums right", self.texts("#verdict p")[0])

    def test_damage_is_named(self):
        damaged = pathlib.Path(folder.name) / "damaged.pt"
        content = bytearray(STATE_DICT.read_bytes())
        with zipfile.ZipFile(STATE_DICT) as archive:
            largest = max(archive.infolist(), key=lambda entry: entry.file_size * ("/data/" in
                                                                                   entry.filename))
        name_bytes, extra_bytes = struct.unpack_from("<HH", content, largest.header_offset + 26)
        content[largest.header_offset + 30 + name_bytes + extra_bytes] ^= 1
        damaged.write_bytes(content)
        self.open(damaged)
        self.assertIn("Damaged", self.texts("#verdict h2")[0])
        self.assertIn("damage", self.texts(".findings .tag")[0])

    def test_the_table_is_sorted_and_searched(self):
        self.open(LAYER_WISE)
        browser.click('[data-column="bytes"]')
        self.assertEqual(browser.run("document.querySelector('[data-column=\"bytes\"]')"
                                     ".parentNode.getAttribute('aria-sort')"), "descending")
        bytes_shown = self.texts(".row > :nth-child(6)")
        self.assertIn("KiB", bytes_shown[0])
        browser.click('[data-column="bytes"]')
        self.assertEqual(browser.run("document.querySelector('[data-column=\"bytes\"]')"
                                     ".parentNode.getAttribute('aria-sort')"), "ascending")
        browser.click('[data-column="bytes"]')
        everything = self.count()
        browser.key("/")
        browser.type("linear_fc1 momentum_buffer")
        self.wait(lambda: self.count() != everything)
        states = set(self.texts(".row > :nth-child(2)"))
        self.assertEqual(states, {"momentum_buffer"})
        browser.key("Escape")
        self.wait(lambda: self.count() == everything)

    def wait(self, is_true):
        for _ in range(200):
            if is_true():
                return
            time.sleep(0.02)
        self.fail("it has not happened")

    def test_a_tensor_is_chosen_by_keys_and_shown_with_its_moments(self):
        self.open(LAYER_WISE)
        browser.run("document.querySelector('.grid').focus()")
        for _ in range(3):
            browser.key("ArrowDown")
        selected = browser.run("document.querySelector('[aria-selected=\"true\"]').ariaRowIndex")
        self.assertEqual(selected, "4")
        self.assertEqual(len(self.texts(".moment.is-here")), 1)
        self.assertGreater(len(self.texts(".moment")), 2)
        browser.key("End")
        self.assertEqual(browser.run("document.querySelector('[aria-selected=\"true\"]')"
                                     ".ariaRowIndex"),
                         browser.run("document.querySelector('.grid').ariaRowCount"))

    def test_the_treemap_zooms_by_mouse_and_keys(self):
        self.open(LAYER_WISE)
        top = self.texts(".map .name")
        browser.click(".map button:not(.leaf)")
        inside = self.texts(".map .name")
        self.assertNotEqual(inside, top)
        browser.key("Escape")
        self.assertEqual(self.texts(".map .name"), top)
        browser.key("Enter")
        self.assertNotEqual(self.texts(".map .name"), top)
        browser.click(".crumbs button")
        self.assertEqual(self.texts(".map .name"), top)
        browser.run("[...document.querySelectorAll('.segments button')].at(-1).click()")
        self.assertEqual(self.texts('.segments [aria-pressed="true"]'), ["Optimizer"])
        # A tensor leads to its row.
        browser.run("document.querySelector('.map button.leaf')?.click()")
        for _ in range(6):
            if self.texts(".moment"):
                break
            browser.run("(document.querySelector('.map .leaf') || "
                        "document.querySelector('.map button')).click()")
        self.assertTrue(self.texts(".moment.is-here"))

    def test_numbered_state_of_a_file_is_one_tile(self):
        """Not one for each of /optimizer/state/0/exp_avg, /optimizer/state/0/step, ..."""
        self.open(STATE_DICT)
        tiles = browser.run("[...document.querySelectorAll('.map button')]"
                            ".map(tile => tile.getAttribute('aria-label').split(',')[0])")
        self.assertEqual([tile for tile in tiles if tile.startswith("/")], [])
        self.assertEqual(sum(tile.startswith("optimizer") for tile in tiles), 1)

    def test_a_count_of_steps_has_no_curve(self):
        """Names as a DCP folder flattens them; a file of its own has them as well."""
        tensors = [("layers.%d.weight" % i, [1.0, 2.0]) for i in range(3)]
        for state in ("exp_avg", "step"):
            tensors += [("state.layers.%d.weight.%s" % (i, state), [5.0] * (1 + (state != "step")))
                        for i in range(3)]
        path = pathlib.Path(folder.name) / "steps.safetensors"
        write_safetensors(path, tensors)
        self.open(path)
        lines = self.texts("#layers .legend > span")
        self.assertIn("exp_avg", lines)
        self.assertNotIn("step", lines)

    def test_light_and_dark_follow_the_system_and_the_button(self):
        browser.theme("dark")
        self.open(LAYER_WISE)
        colour = "getComputedStyle(document.body).backgroundColor"
        dark = browser.run(colour)
        browser.click("#theme")
        self.assertNotEqual(browser.run(colour), dark)
        browser.click("#theme")
        self.assertEqual(browser.run(colour), dark)

    def test_hostile_names_are_text(self):
        path = pathlib.Path(folder.name) / "hostile.safetensors"
        write_safetensors(path, [(name, [1.0, -2.0, 0.5]) for name in HOSTILE])
        self.open(path)
        for selector in (".map button:not(.leaf)", ".map button"):
            browser.click(selector)
        for position in range(len(HOSTILE)):
            browser.run(f"document.querySelectorAll('.row')[{position}]?.click()")
        self.assertIsNone(browser.run("window.hit ?? null"))
        self.assertIsNone(browser.run("({}).weight ?? null"))
        self.assertEqual(browser.run("document.querySelectorAll('img, iframe').length"), 0)
        self.assertEqual(browser.run("document.scripts.length"), 2)
        shown = "".join(self.texts(".row .text"))
        self.assertIn("<img src=x onerror=window.hit=1>", shown)
        self.assertIn("</script>", shown)
        self.assertIn("\\u0000", shown)
        self.assertNotIn("\u202e", shown)

    def test_nothing_wider_than_the_window(self):
        for width in (360, 768, 1280):
            browser.size(width, 800)
            self.open(LAYER_WISE)
            self.assertLessEqual(browser.run("document.documentElement.scrollWidth"), width)

    def test_a_sample_is_said_to_be_one(self):
        self.open(LAYER_WISE, "--sample", "8K")
        self.assertIn("quick check", self.texts("#verdict h2")[0])
        self.assertIn("sample", self.texts("footer")[0])

    def test_changes_are_told_by_tensor_and_module(self):
        paths = [pathlib.Path(folder.name) / f"{side}.safetensors" for side in "ab"]
        write_safetensors(paths[0], [("layers.0.w", [3.0, 4.0]), ("layers.1.w", [1.0, 1.0]),
                                     ("old", [1.0])])
        write_safetensors(paths[1], [("layers.0.w", [3.0, 4.0]), ("layers.1.w", [2.0, 1.0]),
                                     ("<b>new</b>", [1.0])])
        self.open(*paths, "--rtol", "0.1")
        change = document_of(*paths, "--rtol", "0.1")["comparison"]
        self.assertEqual(change["rows"]["max_abs"], [1.0])
        self.assertEqual(change["rows"]["max_rel"], [0.5])
        self.assertEqual(change["rows"]["norm_ratio"], [1.5811])
        self.assertEqual(change["rows"]["one_minus_cosine"], [0.051317])
        self.assertIn("3 of 4 tensors", self.texts("#changes .lead")[0])
        self.assertIn("<b>new</b>", self.texts("#changes td.mono"))
        browser.click(".chips [data-mark=outside]")
        self.assertEqual(self.texts(".row .leaf"), ["1.w"])
        self.assertEqual(self.texts(".row .up")[:2], ["0.5", "1"])

    def test_the_parameters_of_a_module_are_compared_as_one_vector(self):
        """Its optimizer's state, of another size by far, does not hide them."""
        state = "optimizer.state.exp_avg.layers.1.w"
        before = [("layers.1.w", [1.0, 1.0]), ("layers.1.b", [2.0]), (state, [1e6, -1e6])]
        after = [("layers.1.w", [2.0, 1.0]), ("layers.1.b", [2.5]), (state, [1e6, 1e6])]
        paths = [pathlib.Path(folder.name) / f"module_{side}.safetensors" for side in "ab"]
        write_safetensors(paths[0], before)
        write_safetensors(paths[1], after)
        a, b = [1.0, 1.0, 2.0], [2.0, 1.0, 2.5]
        cosine = sum(x * y for x, y in zip(a, b)) / math.hypot(*a) / math.hypot(*b)
        modules = document_of(*paths)["comparison"]["modules"]
        self.assertEqual([module["module"] for module in modules], ["layers.1"])
        self.assertAlmostEqual(modules[0]["one_minus_cosine"], 1 - cosine, delta=1e-6)
        ratio = math.hypot(*b) / math.hypot(*a)
        self.assertAlmostEqual(modules[0]["norm_ratio"], ratio, delta=1e-4)
        self.open(*paths)
        self.assertIn(f"{ratio:.4g}", self.texts("#changes td.num"))

    def test_iterations_are_told_with_what_is_wrong_with_them(self):
        root = pathlib.Path(folder.name) / "root"
        shutil.copytree(LAYER_WISE, root)
        original = next(root.glob("iter_*"))
        shutil.copytree(original, root / "iter_0000009")  # its state is of another iteration
        self.open(root, "--lineage")
        self.assertEqual(self.texts("#lineage .tag"), ["complete", "renamed"])
        self.assertIn("decoder.layers.0", self.texts("#lineage .curves td"))

    def test_equal_checkpoints_are_said_to_be(self):
        self.open(LAYER_WISE, LAYER_WISE)
        self.assertIn("Equal bit for bit", self.texts("#changes .lead")[0])

    def test_a_hundred_thousand_tensors(self):
        path = pathlib.Path(folder.name) / "many.safetensors"
        kinds = ("self_attention.linear_qkv.weight", "self_attention.linear_proj.weight",
                 "mlp.router.weight", "input_layernorm.weight")
        names = [f"decoder.layers.{layer}.{kind}" for layer in range(96) for kind in kinds]
        names += [f"decoder.layers.{layer}.mlp.experts.local_experts.{expert}.{part}.weight"
                  for layer in range(96) for expert in range(519) for part in ("fc1", "fc2")]
        names = names[:100_000]
        write_safetensors(path, [
            (name, [math.sin(37.7 * i + j) * math.exp(i % 23 - 11.5) for j in range(4)])
            for i, name in enumerate(names)])
        page = report(path)
        print(f"page of {len(names)} tensors: {page.stat().st_size} bytes", file=sys.stderr)
        self.assertLess(page.stat().st_size, 2_000_000)
        seconds = browser.open(page)
        print(f"drawn in {seconds:.2f} s", file=sys.stderr)
        self.assertLess(len(self.texts(".row")), 100)
        began = time.monotonic()
        browser.click('[data-column="max"]')
        browser.run("new Promise(done => requestAnimationFrame(done))")
        sorted_in = time.monotonic() - began
        browser.key("/")
        browser.type("layers.95.mlp.experts.local_experts.17")
        self.wait(lambda: self.count().startswith("22 of") or self.count().startswith("2 of"))
        print(f"sorted in {sorted_in:.2f} s", file=sys.stderr)
        document = document_of(path)["tensors"]
        self.assertIn("packed", document["min"])
        # Packed names and numbers say what was stored.
        shown = browser.run("document.querySelector('.row').textContent")
        self.assertIn("local_experts.17", shown)


def main():
    global BIN, folder, browser
    BIN = pathlib.Path(sys.argv.pop(1)).resolve()
    if chromium.find() is None:
        print("skipped: there is no Chromium here (scripts/setup --tests installs it)")
        return 77
    with tempfile.TemporaryDirectory() as name, chromium.Chromium() as browser:
        folder = type("Folder", (), {"name": name})
        result = unittest.main(exit=False, argv=sys.argv).result
    return 0 if result.wasSuccessful() else 1


if __name__ == "__main__":
    sys.exit(main())
