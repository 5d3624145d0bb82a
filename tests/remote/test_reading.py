"""Checkpoints that are read from an object store and from a web server (test_remote.py runs it)."""
import concurrent.futures
import http.server
import pathlib
import shutil
import subprocess
import threading
import unittest

import remote_case as case
from ceph import KEY, SECRET
from faulty_proxy import Proxy
from remote_case import (FILE, FOLDERS, LONG, TOKEN, Fresh, environment, files_of, run,
                         write_safetensors)


class Reading(unittest.TestCase):
    def test_every_command_says_what_it_says_of_the_disk(self):
        commands = ([], ["ls"], ["tree"], ["groups"], ["verify"], ["hash"], ["hash", "--logical"],
                    ["latest"], ["lineage"])
        for name, local in FOLDERS.items():
            for command in commands:
                remote = f"s3://bucket/{name}"
                with self.subTest(name=name, command=command):
                    ours = run("ckpt-inspect", *command, remote, "--json")
                    here = run("ckpt-inspect", *command, local, "--json")
                    self.assertEqual(ours[1].replace(remote, "X"),
                                     here[1].replace(str(local), "X"), ours[2])
                    self.assertEqual((ours[0], here[0]), (0, 0), ours[2])
            self.assertEqual(run("ckpt-inspect", "diff", remote, local)[0], 0)
        self.assertEqual(run("ckpt-inspect", "hash", "s3://bucket/zip.pt")[1],
                         run("ckpt-inspect", "hash", FILE)[1])

    def test_results_have_the_bytes_of_local_ones(self):
        conversions = (("ckpt-convert", "--to", "torch"), ("ckpt-convert", "--to", "torch_dist"),
                       ("ckpt-convert", "--to", "safetensors"), ("reshard", "--dp", "4"))
        for name, local in FOLDERS.items():
            for program, *options in conversions:
                with self.subTest(name=name, options=options), Fresh() as folder:
                    here = run(program, local, folder / "here", *options)
                    ours = run(program, f"s3://bucket/{name}", folder / "ours", *options)
                    self.assertEqual(ours[0], here[0], ours[2])
                    if here[0] == 0:
                        self.assertEqual(files_of(folder / "ours"), files_of(folder / "here"))

    def test_one_clear_error_for_each_fault_of_the_user(self):
        put = case.STORE.bucket.put
        put("changed/model.pt", FILE.read_bytes())
        # What is set, what the store answers before it is asked, the address, what is said.
        cases = (
            ({"AWS_SECRET_ACCESS_KEY": "wrong"}, (), "bucket", "the secret access key is wrong"),
            ({"AWS_ACCESS_KEY_ID": "AKIAOTHER"}, (), "bucket", "does not know the access key"),
            ({}, (), "other", "s3://other: the bucket does not exist"),
            ({}, (), "bucket/nothing", "s3://bucket/nothing: no such file or folder"),
            ({}, ("AccessDenied/403",), "bucket", "these credentials may not read it"),
            ({"AWS_SESSION_TOKEN": TOKEN}, ("ExpiredToken/400",), "bucket",
             "the session token has expired"),
            ({}, ("RequestTimeTooSkewed/403",), "bucket",
             "this machine's clock differs from the store's"),
            ({}, ("PermanentRedirect/301",), "bucket", "the bucket is in another place"),
            ({}, ("307",), "bucket", "the store redirects to another place"),
            ({"AWS_MAX_ATTEMPTS": "2"}, ("503", "503"), "bucket",
             "failed again and again: 503 SlowDown"),
            ({"AWS_MAX_ATTEMPTS": "2"}, ("reset", "reset"), "bucket", "failed again and again"),
            ({"AWS_ENDPOINT_URL": "http://127.0.0.1:1", "AWS_MAX_ATTEMPTS": "1"}, (), "bucket",
             "cannot be reached"),
            ({"AWS_ACCESS_KEY_ID": None, "AWS_SECRET_ACCESS_KEY": None}, (), "bucket",
             "no credentials for the object store were found"),
        )
        for variables, plan, address, text in cases:
            with self.subTest(text):
                proxy = Proxy(case.STORE.endpoint, plan)
                code, out, err = run("ckpt-inspect", f"s3://{address}",
                                     env=environment(proxy.endpoint, **variables))
                proxy.close()
                self.assertEqual((code, out), (5, ""), err)
                self.assertIn(text, err)
                self.assertEqual(err.count("error:"), 1)

    def test_other_stores_are_refused_by_name(self):
        for address in ("gs://b/c", "az://b/c", "msc://b/c", "https://user:pw@host/x",
                        "https://host/x?X-Amz-Signature=abc"):
            with self.subTest(address):
                code, _, err = run("ckpt-inspect", address)
                self.assertIn(code, (2, 4))
                self.assertIn("hint:", err)
                self.assertNotIn("pw@", err)
                self.assertNotIn("Signature=abc", err)

    def test_a_root_in_a_store_is_not_pruned(self):
        for more in ("--dry-run", "--yes"):
            code, _, err = run("ckpt-inspect", "prune", "s3://bucket/dist root", "--keep-last",
                               "1", more)
            self.assertEqual(code, 4, err)
            self.assertIn("is not on this machine", err)

    def test_credentials_are_found_as_the_aws_tools_find_them(self):
        folder = case.WORK / ".aws"
        folder.mkdir(exist_ok=True)
        (folder / "credentials").write_text(
            f"[default]\naws_access_key_id = AKIAOTHER\naws_secret_access_key = no\n"
            f"[team]\naws_access_key_id = {KEY}\naws_secret_access_key = {SECRET}\n",
            encoding="ascii")
        (folder / "config").write_text(
            f"[profile team]\nregion = us-east-1\nendpoint_url = {case.STORE.endpoint}/\n"
            f"[profile role]\nrole_arn = arn:aws:iam::1:role/x\nsource_profile = team\n",
            encoding="ascii")
        none = {"AWS_ACCESS_KEY_ID": None, "AWS_SECRET_ACCESS_KEY": None, "AWS_ENDPOINT_URL": None}
        address = "s3://bucket/zip.pt"
        code, _, err = run("ckpt-inspect", address, env=environment(**none, AWS_PROFILE="team"))
        self.assertEqual(code, 0, err)
        code, _, err = run("ckpt-inspect", address,
                           env=environment(**{**none, "AWS_ENDPOINT_URL": case.STORE.endpoint}))
        self.assertIn("profile 'default' of", err)
        self.assertEqual(code, 5)
        code, _, err = run("ckpt-inspect", address, env=environment(**none, AWS_PROFILE="role"))
        self.assertIn("a role to be assumed (role_arn), which is not supported yet", err)
        self.assertEqual(code, 4)
        shutil.rmtree(folder)

    def test_an_object_that_changes_is_never_mixed(self):
        states = [path.read_bytes() for path in
                  sorted(FOLDERS["ranks+%2f&"].rglob("layer_wise_optimizer_*.pt"))]
        outcomes = set()
        for after in range(1, 6):  # the request before which it changes
            case.STORE.bucket.put("changed/model.pt", states[0])
            proxy = Proxy(case.STORE.endpoint)
            proxy.before = lambda count, after=after: count == after and case.STORE.bucket.put(
                "changed/model.pt", states[1])
            code, out, err = run("ckpt-inspect", "hash", "s3://bucket/changed/model.pt",
                                 env=environment(proxy.endpoint))
            with self.subTest(after=after):
                self.assertIn(code, (0, 5), err)
                outcomes.add(out if code == 0 else "changed")
                if code:
                    self.assertIn("changed while it was read", err)
            proxy.close()
        self.assertIn("changed", outcomes)
        for body in states:
            (case.WORK / "model.pt").write_bytes(body)
            outcomes.discard(run("ckpt-inspect", "hash", case.WORK / "model.pt")[1])
        self.assertEqual(outcomes, {"changed"})

    def test_runs_on_a_store_that_fails_have_the_same_bytes(self):
        """A reshard and a verify for each seed: what exits 0 is right, the rest leaves nothing."""
        local = FOLDERS["dist root"]
        with Fresh() as folder:
            self.assertEqual(run("reshard", local, folder / "here", "--dp", "1")[0], 0)
            expected = files_of(folder / "here")

        def one(seed):
            chance, attempts = ((0.2, "6"), (0.5, "3"))[seed % 2]
            proxy = Proxy(case.STORE.endpoint, chance=chance, seed=seed, words=(
                "reset", "cut:1", "cut:5000", "500", "503", "502", "late:0.05"))
            env = environment(proxy.endpoint, AWS_MAX_ATTEMPTS=attempts)
            with Fresh() as folder:
                code, _, err = run("reshard", "s3://bucket/dist root", folder / "ours", "--dp",
                                   "1", env=env)
                self.assertIn(code, (0, 5), err)
                if code == 0:
                    self.assertEqual(files_of(folder / "ours"), expected, f"seed {seed}")
                else:
                    self.assertEqual(list(folder.iterdir()), [])
            checked, out, err = run("ckpt-inspect", "verify", "s3://bucket/dist root", env=env)
            self.assertIn((checked, "OK: " in out), ((0, True), (5, False)), err)
            proxy.close()
            return proxy.faults, (code != 0) + (checked != 0)

        seeds = 500 if LONG else 4
        runs = faults = refused = 0
        with concurrent.futures.ThreadPoolExecutor(12 if LONG else 4) as pool:
            for some, ended in pool.map(one, range(seeds)):
                runs, faults, refused = runs + 2, faults + some, refused + ended
                if runs == 2 * seeds or (LONG and runs % 100 == 0):
                    print(f"{runs} runs, {faults} faults, {refused} ended with exit code 5",
                          flush=True)
        self.assertGreater(faults, seeds)

    def test_nothing_is_connected_to_without_an_address(self):
        if not shutil.which("strace"):
            self.skipTest("strace is not installed")
        for address, count in ((FILE, 0), ("s3://bucket/zip.pt", 1)):
            done = subprocess.run(["strace", "-f", "-e", "trace=socket,connect,openat", case.BIN /
                                   "ckpt-inspect", str(address)], env=environment(),
                                  capture_output=True, text=True, check=True)
            with self.subTest(address):
                self.assertEqual(min(done.stderr.count("connect("), 1), count)
                self.assertEqual("libcurl" in done.stderr, count == 1)

    def test_a_page_reads_little_beside_the_metadata(self):
        with Fresh() as folder:
            write_safetensors(folder / "many.safetensors", 1000, 2)
            self.assertEqual(run("ckpt-convert", folder / "many.safetensors", folder / "many",
                                 "--to", "torch_dist")[0], 0)
            metadata = (folder / "many" / ".metadata").stat().st_size
            self.assertGreater(sum(map(len, files_of(folder / "many").values())), 8 << 20)
            case.STORE.bucket.put_folder("many", folder / "many")
        proxy = Proxy(case.STORE.endpoint)
        code, out, err = run("ckpt-inspect", "s3://bucket/many", env=environment(proxy.endpoint))
        proxy.close()
        self.assertEqual(code, 0, err)
        self.assertIn("every file is there; contents not checked", " ".join(out.split()))
        self.assertLess(proxy.body_bytes, metadata + 1e6)
        case.STORE.bucket.clear("many")

    def test_show_reads_its_ranges_alone(self):
        proxy = Proxy(case.STORE.endpoint)
        key = "decoder.layers.mlp.linear_fc1.weight"
        code, _, err = run("ckpt-inspect", "show", "s3://bucket/dist root", key,
                           env=environment(proxy.endpoint))
        self.assertEqual(code, 0, err)
        proxy.close()
        reads = [line for line in proxy.log if "bytes=" in line and ".distcp" in line]
        self.assertEqual(len(reads), len(set(reads)), reads)
        self.assertLessEqual(len(reads), 6)
        lists = [line for line in proxy.log if "list-type" in line]
        self.assertLessEqual(len(lists), 2, lists)  # the root, the iteration


class RangeHandler(http.server.SimpleHTTPRequestHandler):
    """A web server with ranges and ETags."""

    def do_GET(self):
        path = pathlib.Path(self.translate_path(self.path))
        if not path.is_file():
            self.send_error(403 if path.is_dir() else 404)
            return
        body, span = path.read_bytes(), self.headers.get("Range")
        if span is None or not self.server.has_ranges:
            self.send_response(200)
        else:
            first, last = (int(n) for n in span.split("=")[1].split("-"))
            self.send_response(206)
            self.send_header("Content-Range",
                             f"bytes {first}-{min(last, len(body) - 1)}/{len(body)}")
            body = body[first:last + 1]
        self.send_header("ETag", '"1"')
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


class Web(unittest.TestCase):
    def serve(self, folder, has_ranges=True):
        server = http.server.ThreadingHTTPServer(
            ("127.0.0.1", 0), lambda *a: RangeHandler(*a, directory=str(folder)))
        server.has_ranges, server.daemon_threads = has_ranges, True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        return f"http://127.0.0.1:{server.server_address[1]}"

    def test_files_and_folders_of_a_server_with_ranges(self):
        file = f"{self.serve(FILE.parent)}/{FILE.name}"
        self.assertEqual(run("ckpt-inspect", "hash", file)[1], run("ckpt-inspect", "hash", FILE)[1])
        local = FOLDERS["dist root"]
        iteration = next(local.glob("iter_*"))
        folder = f"{self.serve(local)}/{iteration.name}/"
        for command in ([], ["ls"], ["hash"]):
            with self.subTest(command=command):
                ours = run("ckpt-inspect", *command, folder, "--json")
                self.assertEqual(ours[0], 0, ours[2])
        self.assertEqual(ours[1].replace(folder, "X"), run(
            "ckpt-inspect", "hash", iteration, "--json")[1].replace(str(iteration), "X"))

    def test_a_server_without_ranges_is_refused_by_name(self):
        address = self.serve(FILE.parent, has_ranges=False)
        code, _, err = run("ckpt-inspect", f"{address}/{FILE.name}")
        self.assertEqual(code, 4)
        self.assertIn("the server gives whole files only", err)
