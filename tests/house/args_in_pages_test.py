#!/usr/bin/env python3
"""Pages name the same args as the code: those that a logical hash leaves out, and those that a
reshard writes."""
import pathlib
import re
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
INVENTORY = ROOT / "libtraining/src/state/logical_inventory.cc"
TARGET_ARGS = ROOT / "libtraining/src/layouts/job/target_job.cc"


def read(path):
    return path.read_text(encoding="utf-8")


def quoted_in_page(page, begin, end):
    """What stands in backquotes between two texts of a page."""
    _, found, rest = read(ROOT / "docs" / page).partition(begin)
    part, ended, _ = rest.partition(end)
    assert found and ended, f"{page}: '{begin}' and '{end}' are not there"
    return re.findall(r"`([a-z0-9_]+)`", part)


class ArgsInPages(unittest.TestCase):
    def test_the_page_on_hashes_lists_all_args_that_are_left_out(self):
        array = re.search(r"kArgsLeftOut\[\] = \{(.*?)\};", read(INVENTORY), re.DOTALL)
        in_code = re.findall(r'"(\w+)"', array[1])
        in_page = quoted_in_page("formats/canonical_encoding.md", "what\n  follows from these:",
                                 "Not the same at all sizes")
        self.assertGreater(len(in_code), 20)
        self.assertEqual(in_page, in_code)

    def test_the_page_on_resharding_lists_all_args_that_are_written(self):
        written = re.findall(r'\b(?:set|put|set_or_none)\("(\w+)"', read(TARGET_ARGS))
        in_page = quoted_in_page("resharding.md", "| args | become |", "For example (`ckpt`")
        self.assertGreater(len(written), 20)
        self.assertEqual(set(written) - set(in_page), set())


if __name__ == "__main__":
    unittest.main()
