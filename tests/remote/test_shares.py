"""Results that several processes write into an object store (test_remote.py runs it)."""
import concurrent.futures
import itertools
import random

import remote_case as case
from faulty_proxy import Proxy
from remote_case import FOLDERS, LONG, environment
from test_writing import TRACKER, Case, bucket, convert, made_locally

SOURCE = FOLDERS["dist root"]
RESHARD = ("reshard", SOURCE, "--dp", "4", "--verify")
PROCESSES = 3


def share(name, rank, *more, env=None, count=PROCESSES):
    return convert(RESHARD, f"s3://bucket/{name}", "--rank", rank, "--world-size", count, *more,
                   env=env)


class Shares(Case):
    @classmethod
    def setUpClass(cls):
        cls.expected = made_locally(RESHARD)
        cls.store = bucket()

    def is_unseen_or_whole(self, name):
        """What readers find: never a file that says that all is there without all."""
        there = self.store.files(name + "/")
        for path, body in there.items():
            self.assertEqual(body, self.expected[path])
        if TRACKER in there:
            self.assertEqual(there, self.expected)
        return there == self.expected

    def test_processes_at_once_have_the_bytes_of_one(self):
        for count in (2, PROCESSES, 7):
            with self.subTest(count=count), concurrent.futures.ThreadPoolExecutor(count) as pool:
                runs = list(pool.map(lambda r, n=count: share("at-once", r, count=n),
                                     range(count)))
                self.assertEqual([code for code, _, _ in runs], [0] * count, runs)
                self.assertEqual(self.store.files("at-once"), self.expected)
                self.store.clear("at-once")
                self.nothing_is_left("at-once")

    def test_nothing_is_seen_before_the_last_one_publishes(self):
        for rank in (2, 0):
            code, out, err = share("parts", rank)
            self.assertEqual(code, 0, err)
            self.assertEqual(self.store.keys("parts"), [])
        code, _, err = convert(RESHARD, "s3://bucket/parts", "--finish")
        self.assertEqual(code, 5, err)
        self.assertIn("not all of its 3 processes", err)
        for words, text in ((("--dp", "2"), "with another plan"),
                            (("--dp", "4", "--verify"), "by 3 processes, not 2")):
            code, _, err = convert(("reshard", SOURCE, *words), "s3://bucket/parts", "--rank", "0",
                                   "--world-size", "2")
            self.assertEqual(code, 5, err)
            self.assertIn(text, err)
        proxy = Proxy(case.STORE.endpoint)
        code, _, err = share("parts", 2, env=environment(proxy.endpoint))  # its part is there
        proxy.close()
        self.assertEqual(code, 0, err)
        self.assertEqual([line for line in proxy.log if "partNumber" in line], [])
        code, _, err = share("parts", 1)
        self.assertEqual(code, 0, err)
        self.assertEqual(self.store.files("parts"), self.expected)
        self.store.clear("parts")
        self.nothing_is_left("parts")

    def test_killed_at_each_request_then_again_finished_or_cleaned(self):
        for rank in (0, 2):
            share("count", rank)
        proxy = Proxy(case.STORE.endpoint)
        self.assertEqual(share("count", 1, env=environment(proxy.endpoint))[0], 0)
        proxy.close()
        self.store.clear("count")
        points, ends = range(1, proxy.requests + 1), ("again", "--finish", "--clean")
        cases = itertools.product(points, ends) if LONG else zip(
            random.Random(1).sample(points, 3), ends)
        for at, end in cases:
            with self.subTest(at=at, end=end):
                self.killed(f"killed/{at}{end}", at, end)

    def killed(self, name, at, end):
        for rank in (0, 2):
            self.assertEqual(share(name, rank)[0], 0)
        self.interrupted(RESHARD, f"s3://bucket/{name}", at,
                         more=("--rank", 1, "--world-size", PROCESSES))
        is_whole = self.is_unseen_or_whole(name)
        code, _, err = share(name, 0)  # one that was not killed does no harm
        self.assertIn(code, (0, 5) if is_whole else (0,), err)
        is_whole = self.is_unseen_or_whole(name)
        if end == "--clean":
            self.assertEqual(convert(RESHARD, f"s3://bucket/{name}", end)[0], 0)
            self.assertTrue(is_whole or self.store.keys(name) == [])
        else:
            code, _, err = share(name, 1) if end == "again" else convert(
                RESHARD, f"s3://bucket/{name}", end)
            if code == 0 or is_whole:
                self.assertEqual(self.store.files(name), self.expected)
            else:
                self.assertEqual((end, code), ("--finish", 5), err)  # its part is missing
                self.assertEqual(share(name, 1)[0], 0)
                self.assertEqual(self.store.files(name), self.expected)
        self.store.clear(name)
        self.nothing_is_left(name)

    def test_processes_on_a_store_that_fails(self):
        """Each is started again until it exits 0; what is there then is right."""
        def one(seed):
            name, store = f"failing/{seed}-run", bucket()
            proxy = Proxy(case.STORE.endpoint, chance=0.3, seed=seed, words=(
                "reset", "lost", "cut:1", "500", "503", "late:0.05"))
            env = environment(proxy.endpoint, AWS_MAX_ATTEMPTS="3")
            again = 0
            with concurrent.futures.ThreadPoolExecutor(PROCESSES) as pool:
                for _ in range(20):
                    runs = list(pool.map(lambda r: share(name, r, env=env), range(PROCESSES)))
                    self.assertTrue(all(code in (0, 5) for code, _, _ in runs), runs)
                    found = store.files(name + "/")
                    for path, body in found.items():
                        self.assertEqual(body, self.expected[path])
                    if TRACKER in found:
                        break
                    again += 1
            proxy.close()
            self.assertEqual(found, self.expected, f"seed {seed}: {runs}")
            convert(RESHARD, f"s3://bucket/{name}", "--clean")
            self.assertEqual(store.files(name + "/"), self.expected)
            store.clear(name + "/")
            self.nothing_is_left(name, store)
            return proxy.faults, again

        seeds = range(100 if LONG else 1)
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            runs = list(pool.map(one, seeds))
        faults, again = (sum(each) for each in zip(*runs))
        print(f"{len(runs)} results by {PROCESSES} processes, {faults} faults, "
              f"{again} rounds more", flush=True)
        self.assertGreater(faults, len(runs))
