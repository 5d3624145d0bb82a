#!/usr/bin/env python3
"""Manual pages and completions of an installed tree say what --help-all says.

usage: manual_test.py TREE
"""
import pathlib
import re
import shutil
import subprocess
import sys
import unittest

TREE = pathlib.Path(sys.argv.pop()).resolve()
SHARE = TREE / "share"
PROGRAMS = [name for name in ("ckpt-inspect", "ckpt-convert", "reshard", "step-replay", "shardwise")
            if (TREE / "bin" / name).exists()]


def help_of(words):
    """With lists of choices in one line."""
    command = [TREE / "bin" / words[0], *words[1:], "--help-all"]
    text = subprocess.run(command, check=True, text=True, capture_output=True,
                          env={"COLUMNS": "80", "LC_ALL": "C.UTF-8"}).stdout
    return re.sub(r"(?<=\w)\|\n +(?=\w)", "|", text)


def collapsed(text):
    return " ".join(text.split())


def sections_of_help(text):
    """Title: text, without breaks of lines; what stands in front is the usage."""
    parts = re.split(r"^(\S.*):\n", text.replace(" \\\n", "\n"), flags=re.M)
    return {re.sub(r" \(.*", "", title).upper(): collapsed(body)
            for title, body in zip(parts[1::2], parts[2::2])}


def sections_of_page(name):
    text = (SHARE / "man/man1" / f"{name}.1").read_text(encoding="utf-8")
    text = re.sub(r"^\.(TH|TP|EX|EE|nf|fi)\b.*\n", "", text, flags=re.M)
    for escape, shown in ((r"\fB", ""), (r"\fR", ""), (r"\-", "-"), (r"\(aq", "'"), (r"\&", ""),
                          (r"\e", "\\")):
        text = text.replace(escape, shown)
    parts = re.split(r"^\.SH (.*)\n", text, flags=re.M)
    return {title: collapsed(body) for title, body in zip(parts[1::2], parts[2::2])}


def options_of(text):
    """The options that --help lists, and what may follow those that take one of a few words."""
    rows = re.findall(r"^  (-.*?)(?:  .*)?$", text, flags=re.M)
    options = set(re.findall(r"(?<![\w-])--?[a-zA-Z][\w-]*", " ".join(rows)))
    choices = {re.findall(r"--[\w-]+", row)[-1]: set(row.rpartition(" ")[2].split("|"))
               for row in rows if re.search(r" [a-z0-9_-]+(\|[a-z0-9_-]+)+$", row)}
    return options, choices


def completed(words):
    """What bash offers for the last of `words`."""
    program = words[0]
    script = f"""
source "{SHARE}/bash-completion/completions/{program}"
COMP_WORDS=({" ".join(f"'{word}'" for word in words)}); COMP_CWORD={len(words) - 1}
"_{program.replace("-", "_")}"; printf '%s\\n' "${{COMPREPLY[@]}}"
"""
    done = subprocess.run(["bash", "-c", script], check=True, text=True, capture_output=True)
    return set(done.stdout.split())


def pages():
    """The words of each page: ["ckpt-inspect", "ls"]."""
    for program in PROGRAMS:
        yield [program]
        rows = re.search(r"^Commands .*:\n((?:  .*\n)*)", help_of([program]), flags=re.M)
        if rows and program != "shardwise":
            yield from ([program, word] for word in re.findall(r"^  (\S+)", rows[1], flags=re.M))


class Manual(unittest.TestCase):
    def test_pages_have_the_text_of_help(self):
        found = set()
        for words in pages():
            page = sections_of_page("-".join(words))
            found.add("-".join(words) + ".1")
            for title, body in sections_of_help(help_of(words)).items():
                self.assertEqual(page[title], body, f"{words} {title}")
            self.assertIn(collapsed(page["DESCRIPTION"]), collapsed(help_of(words)))
        self.assertEqual({path.name for path in (SHARE / "man/man1").iterdir()}, found)
        self.assertGreater(len(found), 14)

    def test_bash_completes_what_help_lists(self):
        for words in pages():
            options, choices = options_of(help_of(words))
            self.assertEqual(completed([*words, "-"]), options, words)
            self.assertTrue(any("--color" == option for option in choices), words)
            for option, expected in choices.items():
                self.assertEqual(completed([*words, option, ""]), expected, (words, option))
        self.assertLessEqual({"ls", "verify"}, completed(["ckpt-inspect", ""]))
        self.assertEqual(completed(["ckpt-inspect", "ls", "x"]), set())

    def test_zsh_reads_its_completions(self):
        if not shutil.which("zsh"):
            self.skipTest("no zsh")
        for program in PROGRAMS:
            file = SHARE / "zsh/site-functions" / f"_{program}"
            subprocess.run(["zsh", "-n", file], check=True)


if __name__ == "__main__":
    unittest.main()
