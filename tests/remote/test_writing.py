"""Results that are written into an object store (test_remote.py runs it)."""
import concurrent.futures
import pathlib
import shutil
import signal
import subprocess
import tempfile
import time
import unittest

import remote_case as case
from ceph import KEY, SECRET
from faulty_proxy import Proxy
from remote_case import (FOLDERS, LONG, TOKEN, Fresh, environment, files_of, run,
                         write_safetensors)
from s3 import Bucket

SOURCE = FOLDERS["dist root"]
RESHARD = ("reshard", SOURCE, "--dp", "1", "--verify")
TRACKER = "latest_checkpointed_iteration.txt"


def bucket():
    """A connection of its own."""
    return Bucket(case.STORE.endpoint, "bucket", KEY, SECRET)


def convert(options, destination, *more, env=None):
    program, source, *rest = options
    return run(program, source, destination, *rest, *more, env=env)


def made_locally(options):
    with Fresh() as folder:
        name = "out.safetensors" if str(options[1]).endswith("big.pt") else "out"
        code, _, err = convert(options, folder / name)
        assert code == 0, err
        path = folder / name
        return files_of(path) if path.is_dir() else {"": path.read_bytes()}


class Case(unittest.TestCase):
    def nothing_is_left(self, prefix, store=None):
        store = store or self.store
        folder, _, name = prefix.rpartition("/")
        record = f"{folder}/.{name}" if folder else f".{name}"
        self.assertEqual((store.keys(prefix), store.keys(record), store.uploads(prefix)),
                         ([], [], []))

    def interrupted(self, options, destination, at, sent=signal.SIGKILL, more=()):
        """A run that gets a signal before its request number `at`. Its exit code, or None where it
        ended before."""
        program, source, *rest = options
        proxy = Proxy(case.STORE.endpoint)
        process = subprocess.Popen(
            [case.BIN / program, *map(str, (source, destination, *rest, *more))],
            env=environment(proxy.endpoint), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        reached = []

        def before(count):
            if count == at:
                reached.append(count)
                process.send_signal(sent)
        proxy.before = before
        out, err = process.communicate(timeout=120)
        proxy.close()
        for secret in (SECRET, TOKEN):
            self.assertNotIn(secret.encode(), out + err)
        return process.returncode if reached else None


class Writing(Case):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(dir=case.WORK))
        cls.large = cls.folder / "large.safetensors"
        write_safetensors(cls.large, 10, 768)  # 3 MiB each
        cls.expected = made_locally(RESHARD)
        cls.store = bucket()

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.folder)

    def test_results_have_the_bytes_of_local_ones(self):
        conversions = [(program, source, *options) for source in FOLDERS.values()
                       for program, *options in (("ckpt-convert", "--to", "torch"),
                                                 ("ckpt-convert", "--to", "torch_dist"),
                                                 ("ckpt-convert", "--to", "safetensors"),
                                                 ("reshard", "--dp", "4"))]
        conversions += [("ckpt-convert", self.large, "--to", "torch_dist"),
                        ("ckpt-convert", self.large, "--to", "torch")]
        for number, options in enumerate(conversions):
            with self.subTest(options=options), Fresh() as folder:
                name = "out.pt" if options[1:] == (self.large, "--to", "torch") else "out"
                here = convert(options, folder / name, "--verify")
                ours = convert(options, f"s3://bucket/same/{number}/{name}", "--verify")
                self.assertEqual((ours[0], here[0]), (0, 0), ours[2])
                found = self.store.files(f"same/{number}")
                self.assertEqual(found, files_of(folder))
                lines = [[line for line in text.splitlines() if "read back" not in line] for text in
                         (here[1], ours[1].replace(f"s3://bucket/same/{number}", str(folder)))]
                self.assertEqual(*lines)
                self.store.clear(f"same/{number}")
                self.assertEqual(self.store.uploads("same/"), [])

    def test_sources_and_destinations_in_the_store(self):
        self.store.put_folder("from", SOURCE)
        code, _, err = convert(("reshard", "s3://bucket/from", *RESHARD[2:]), "s3://bucket/to")
        self.assertEqual(code, 0, err)
        self.assertEqual(self.store.files("to"), self.expected)
        code, _, err = run("ckpt-inspect", "verify", "s3://bucket/to")
        self.assertEqual(code, 0, err)
        for options, text in ((("s3://bucket/to/x",), "lies inside the source"),
                              (("s3://bucket/to",), "is the source")):
            code, _, err = convert(("reshard", "s3://bucket/to", "--dp", "2"), *options)
            self.assertEqual(code, 2, err)
            self.assertIn(text, err)
        self.store.clear("to")
        self.store.clear("from")

    def test_results_of_several_sources(self):
        with Fresh() as folder:
            words = ("average", self.large, self.large)
            self.assertEqual(run("ckpt-convert", *words, "-o", folder / "out")[0], 0)
            code, _, err = run("ckpt-convert", *words, "-o", "s3://bucket/average", "--verify")
            self.assertEqual(code, 0, err)
            self.assertEqual(self.store.files("average"), files_of(folder / "out"))
        self.store.clear("average")

    def test_what_says_that_all_is_there_comes_last(self):
        for name, options in (("dist", ("ckpt-convert", SOURCE, "--to", "torch_dist")),
                              ("ranks", ("ckpt-convert", SOURCE, "--to", "torch"))):
            whole, seen = made_locally(options), []
            proxy = Proxy(case.STORE.endpoint)
            proxy.before = lambda count, name=name, seen=seen: seen.append(
                set(bucket().keys(name + "/")))
            code, _, err = convert(options, f"s3://bucket/{name}", env=environment(proxy.endpoint))
            proxy.close()
            self.assertEqual(code, 0, err)
            all_there = {f"{name}/{path}" for path in whole}
            self.assertTrue(any(0 < len(keys) < len(all_there) for keys in seen))
            for keys in seen:
                if f"{name}/{TRACKER}" in keys or any(k.endswith("/.metadata") for k in keys):
                    data = {k for k in all_there if k.endswith((".distcp", ".pt"))}
                    self.assertLessEqual(data, keys)
                if f"{name}/{TRACKER}" in keys:
                    self.assertEqual(keys, all_there)
            self.store.clear(name)

    def test_an_iteration_is_added_to_a_root(self):
        self.store.put("root/" + TRACKER, b"1")
        for tracker, expected in ((b"1", b"3"), (b"7", b"7")):
            self.store.put("root/" + TRACKER, tracker)
            code, _, err = run("reshard", SOURCE, "--dp", "1", "--into", "s3://bucket/root")
            self.assertEqual(code, 0, err)
            self.assertEqual(self.store.get("root/" + TRACKER), expected)
            self.store.clear("root/iter_")
        code, _, err = run("reshard", SOURCE, "--dp", "1", "--into", "s3://bucket/no-root")
        self.assertEqual(code, 5, err)
        self.store.put("root/" + TRACKER, b"what")
        code, _, err = run("reshard", SOURCE, "--dp", "1", "--into", "s3://bucket/root")
        self.assertEqual(code, 3, err)
        self.assertEqual(self.store.keys("root/iter_"), [])
        self.store.clear("root")

    def test_what_is_there_is_not_replaced(self):
        self.store.put("there/model.pt", b"mine")
        self.store.put("file", b"mine")
        cases = ((("s3://bucket/there",), 5, "s3://bucket/there: the destination exists"),
                 (("s3://bucket/file",), 5, "s3://bucket/file: the destination exists"),
                 (("s3://bucket/there", "--force"), 4, "--force cannot replace"),
                 (("s3://bucket/x", "--finish"), 5, "have written their parts"),
                 (("s3://bucket",), 2, "is a whole bucket"),
                 (("https://host/x",), 4, "expected a path on this machine"))
        for words, expected, text in cases:
            with self.subTest(words=words):
                code, _, err = convert(RESHARD, *words)
                self.assertEqual(code, expected, err)
                self.assertIn(text, err)
                self.assertEqual(self.store.keys(".x") + self.store.keys("x"), [])
        self.assertEqual(self.store.files("there"), {"model.pt": b"mine"})
        code, out, err = convert(RESHARD, "s3://bucket/there", "--dry-run")
        self.assertEqual(code, 0, err)
        self.assertIn("the destination exists: nothing would be written", err)
        self.store.clear("there")
        self.store.clear("file")

    def test_one_clear_error_for_each_fault_of_the_user(self):
        cases = (({"AWS_SECRET_ACCESS_KEY": "wrong"}, (), "the secret access key is wrong"),
                 ({"AWS_ACCESS_KEY_ID": "AKIAOTHER"}, (), "does not know the access key"),
                 ({"AWS_SESSION_TOKEN": TOKEN}, ("ExpiredToken/400",),
                  "the session token has expired"),
                 ({}, ("ok",) * 3 + ("AccessDenied/403",) * 9, "these credentials may not write"),
                 ({"AWS_MAX_ATTEMPTS": "2"}, ("ok",) * 4 + ("503",) * 99,
                  "failed again and again: 503 SlowDown"),
                 ({"AWS_ENDPOINT_URL": "http://127.0.0.1:1", "AWS_MAX_ATTEMPTS": "1"}, (),
                  "cannot be reached"),
                 ({"AWS_ACCESS_KEY_ID": None, "AWS_SECRET_ACCESS_KEY": None}, (),
                  "no credentials for the object store were found"))
        for variables, plan, text in cases:
            with self.subTest(text):
                proxy = Proxy(case.STORE.endpoint, plan)
                code, out, err = convert(RESHARD, "s3://bucket/refused",
                                         env=environment(proxy.endpoint, **variables))
                proxy.close()
                self.assertEqual((code, out), (5, ""), err)
                self.assertIn(text, err)
                self.assertEqual(err.count("error:"), 1)
                self.assertEqual(self.store.keys("refused"), [])
                convert(RESHARD, "s3://bucket/refused", "--clean")
                self.nothing_is_left("refused")
        code, _, err = convert(RESHARD, "s3://other/x")
        self.assertEqual(code, 5, err)
        self.assertIn("the bucket does not exist", err)

    def requests_of(self, options, destination):
        proxy = Proxy(case.STORE.endpoint)
        code, _, err = convert(options, destination, env=environment(proxy.endpoint))
        proxy.close()
        self.assertEqual(code, 0, err)
        return proxy.requests

    def test_killed_at_each_request_then_resumed_or_cleaned(self):
        """Never seen half; --resume has the bytes of a whole run; --clean leaves nothing."""
        options = ("ckpt-convert", self.large, "--to", "torch_dist")
        for options, points in ((RESHARD, None if LONG else 4), (options, None if LONG else 2)):
            expected = made_locally(options)
            name = f"killed-{options[0]}"
            count = self.requests_of(options, f"s3://bucket/{name}")
            self.store.clear(name)
            for at in sorted({1 + i * (count - 1) // ((points or count) - 1)
                              for i in range(points or count)}):
                for end in ("--resume", "--clean"):
                    with self.subTest(options=options, at=at, end=end):
                        self.killed(options, name, expected, (at, end))

    def killed(self, options, name, expected, how):
        at, end = how
        destination = f"s3://bucket/{name}"
        if self.interrupted(options, destination, at) is None:
            self.store.clear(name)  # it had fewer requests this time
            return
        there = self.store.files(name)
        is_whole = there == expected
        self.assertTrue(is_whole or not any(
            key.endswith((TRACKER, ".metadata")) and key.count("/") < 1 for key in there))
        for path, body in there.items():
            self.assertEqual(body, expected[path])
        if self.store.keys(f".{name}"):
            code, _, err = convert(options, destination)
            self.assertEqual(code, 5, err)
        code, out, err = convert(options, destination, end)
        if end == "--clean":
            self.assertEqual(code, 0, err)
            if not is_whole:
                self.nothing_is_left(name)
        else:
            self.assertIn(code, (0, 5) if is_whole else (0,), err)
            self.assertEqual(self.store.files(name), expected)
        self.assertEqual((self.store.keys(f".{name}"), self.store.uploads(name)), ([], []))
        self.store.clear(name)

    def test_a_signal_leaves_nothing_or_parts_to_resume(self):
        options = ("ckpt-convert", self.large, "--to", "torch_dist")
        expected = made_locally(options)
        for at in range(4, 16, 1 if LONG else 8):
            for sent in (signal.SIGTERM, signal.SIGINT):
                code = self.interrupted(options, "s3://bucket/signal", at, sent)
                self.assertIn(code, (None, 0, 128 + sent))
                if code in (None, 0):
                    self.store.clear("signal")
                self.nothing_is_left("signal")
        self.assertEqual(self.interrupted(options, "s3://bucket/signal", 11, signal.SIGTERM,
                                          ("--resume",)), 128 + signal.SIGTERM)
        self.assertEqual(self.store.keys("signal"), [])
        self.assertNotEqual(self.store.uploads("signal"), [])
        proxy = Proxy(case.STORE.endpoint)
        code, _, err = convert(options, "s3://bucket/signal", "--resume",
                               env=environment(proxy.endpoint))
        proxy.close()
        self.assertEqual(code, 0, err)
        sent = [line for line in proxy.log if "partNumber" in line]
        self.assertLess(len(sent), 4)  # of 4 parts some were there
        self.assertEqual(self.store.files("signal"), expected)
        self.store.clear("signal")
        self.nothing_is_left("signal")

    def test_a_resumed_run_is_of_the_same_job(self):
        options = ("ckpt-convert", self.large, "--to", "torch_dist")
        self.assertEqual(self.interrupted(options, "s3://bucket/job", 8), -signal.SIGKILL)
        code, _, err = convert(RESHARD, "s3://bucket/job", "--resume")
        self.assertEqual(code, 5, err)
        self.assertIn("so it cannot be continued", err)
        self.store.put("job/stranger", b"mine")
        code, _, err = convert(options, "s3://bucket/job", "--resume")
        self.assertEqual(code, 5, err)
        self.assertIn("job/stranger: is not one of the files", err)
        self.assertEqual(convert(options, "s3://bucket/job", "--clean")[0], 0)
        self.assertEqual(self.store.files("job"), {"stranger": b"mine"})
        self.store.clear("job")

    def test_a_run_is_followed_from_store_to_store(self):
        """Each iteration once, when the tracker names it; a killed one is completed."""
        iteration = next(SOURCE.glob("iter_*"))
        self.store.put_folder("run/iter_0000003", iteration)
        words = ("ckpt-convert", "s3://bucket/run", "s3://bucket/exports", "--to", "torch",
                 "--follow", "--poll", "1")
        process = subprocess.Popen([case.BIN / words[0], *words[1:], "--until", "4"],
                                   env=environment(), stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT)
        with self.assertRaises(subprocess.TimeoutExpired):
            process.wait(timeout=0.3)  # nothing says that it is complete
        self.store.put("run/" + TRACKER, b"3")
        while not self.store.keys("exports/iter_0000003"):
            time.sleep(0.1)
        self.store.put_folder("run/iter_0000004", iteration)
        self.store.put("run/" + TRACKER, b"4")
        out = process.communicate(timeout=30)[0]
        self.assertEqual(process.returncode, 0, out)
        made = {key for key in self.store.keys("exports/")}
        self.assertEqual({key.split("/")[1] for key in made}, {"iter_0000003", "iter_0000004"})
        self.store.clear("exports/iter_0000004")
        options = ("ckpt-convert", "s3://bucket/run/iter_0000004", "--to", "torch")
        count = self.requests_of(options, "s3://bucket/exports/iter_0000004")
        expected = self.store.files("exports/iter_0000004")
        self.store.clear("exports/iter_0000004")
        self.interrupted(options, "s3://bucket/exports/iter_0000004", count - 3)
        self.assertNotEqual(self.store.keys("exports/.iter_0000004"), [])
        code, _, err = run(*words, "--until", "4")
        self.assertEqual(code, 0, err)
        self.assertEqual(self.store.files("exports/iter_0000004"), expected)
        self.assertEqual(self.store.keys("exports/."), [])
        self.store.clear("run")
        self.store.clear("exports")

    def test_two_runs_at_once_never_mix(self):
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            runs = list(pool.map(lambda _: convert(RESHARD, "s3://bucket/twice"), range(4)))
        self.assertEqual(sorted(code for code, _, _ in runs), [0, 5, 5, 5], runs)
        self.assertEqual(self.store.files("twice"), self.expected)
        self.assertEqual(self.store.keys(".twice"), [])
        self.store.clear("twice")

    def test_runs_on_a_store_that_fails_have_the_same_bytes(self):
        """What exits 0 is right, the rest is not seen, and --clean leaves nothing of it."""
        def one(seed):
            chance, attempts = ((0.2, "6"), (0.5, "3"))[seed % 2]
            proxy = Proxy(case.STORE.endpoint, chance=chance, seed=seed, words=(
                "reset", "lost", "cut:1", "cut:200", "500", "503", "502", "late:0.05"))
            env, store = environment(proxy.endpoint, AWS_MAX_ATTEMPTS=attempts), bucket()
            name = f"faults/{seed}-run"  # no name is the start of another
            code, _, err = convert(RESHARD, f"s3://bucket/{name}", env=env)
            proxy.close()
            found = store.files(name + "/")
            if code == 0:
                self.assertEqual(found, self.expected, f"seed {seed}")
            else:
                self.assertEqual(code, 5, err)
                self.assertNotEqual(found, self.expected, f"seed {seed}: {err}")
                self.assertNotIn(TRACKER, found, f"seed {seed}: {err}")
            for path, body in found.items():
                self.assertEqual(body, self.expected[path])
            left = bool(found) and code != 0
            cleaned, _, err = convert(RESHARD, f"s3://bucket/{name}", "--clean")
            self.assertEqual(cleaned, 0, err)
            if code == 0:
                store.clear(name + "/")
            self.nothing_is_left(name, store)
            return proxy.faults, code != 0, left

        seeds = 500 if LONG else 6
        runs = faults = refused = incomplete = 0
        with concurrent.futures.ThreadPoolExecutor(12 if LONG else 3) as pool:
            for some, ended, left in pool.map(one, range(seeds)):
                runs, faults, refused = runs + 1, faults + some, refused + ended
                incomplete += left
                if runs == seeds or (LONG and runs % 100 == 0):
                    print(f"{runs} runs, {faults} faults, {refused} ended with exit code 5, "
                          f"{incomplete} could not remove all", flush=True)
        self.assertGreater(faults, seeds)
