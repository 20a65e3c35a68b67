"""The HTTP server of a run: its answers, hostile clients, its move with the supervisor, and the web page in a browser."""

import contextlib
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import unittest
import unittest.mock
import urllib.error
import urllib.parse
import urllib.request

import browser
from common import BIN, PROGRAM, Case, events, kill, last_step, lines, status, trainer_pids
from page_fixture import WRONG, large_run


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Http(Case):
    def setUp(self):
        super().setUp()
        self.port = free_port()
        self.keys = [*self.layout(2, 1), "--train.max_steps=1000000", f"--metrics.http_port={self.port}"]

    def begin(self):
        run, process = self.start("run", *self.keys)
        self.wait_for(lambda: self.where(run) and (status(run) or {"step": 0})["step"] >= 10, "step 10 and HTTP")
        return run, process

    def where(self, run):
        try:
            where = json.loads((run / "control/http.json").read_text())
            self.token = where["token"]
            return where
        except (OSError, ValueError):
            return None

    def get(self, path, method="GET", headers=None):
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", method=method, data=b"x" if method == "POST" else None,
                                         headers={"Authorization": f"Bearer {self.token}", **(headers or {})})
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                return answer.status, answer.read().decode(), answer.headers
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode(), error.headers

    def stop(self, process):
        process.send_signal(signal.SIGINT)
        self.assertEqual(process.wait(60), 0, process.stdout.read())

    def test_a_second_start_attaches_and_does_not_complain_about_the_port(self):
        run, process = self.begin()
        said = self.command("train", self.config, f"--run={run}", *self.keys, "--detach")
        self.assertIn("trains already", said)
        self.stop(process)

    def test_the_token_is_in_no_file_that_others_read_and_in_no_output(self):
        run, process = self.begin()
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=60)[0]
        self.assertRegex(said, r"the run's page: \S*simplescale status run shows its address")
        holders = [p for p in run.rglob("*") if p.is_file() and self.token.encode() in p.read_bytes()]
        self.assertEqual(holders, [run / "control/http.json"])
        self.assertNotIn(self.token, said)

    def test_the_address_stays_when_the_run_is_started_again(self):
        run, process = self.begin()
        first, at = self.where(run), last_step(run)
        self.stop(process)
        run, process = self.start("run", *self.keys)
        again = self.wait_for(lambda: (w := self.where(run)) and w["instance"] != first["instance"] and w, "the page of the second start")
        self.assertEqual(again["url"], first["url"])
        self.wait_for(lambda: last_step(run) > at, "a step")
        self.stop(process)

    def test_a_port_that_somebody_else_has_taken_learns_no_valid_token(self):
        """A bookmark sends its token to whoever has the port now."""
        folder = large_run(self.folder / "small", nodes=2, trainers=1, group_nodes=1, steps=50)
        with self.serve(folder, self.port):
            self.assertEqual(self.get("/status")[0], 200)
        old = self.token
        with self.serve(folder, self.port):  # the same port: the token stays
            self.assertEqual(self.token, old)
        with socket.create_server(("127.0.0.1", self.port)) as taken, self.serve(folder, self.port):
            self.assertNotEqual(self.port, taken.getsockname()[1])
            self.assertNotEqual(self.token, old)
            self.assertEqual(self.get("/status")[0], 200)
            self.assertEqual(self.get("/status", headers={"Authorization": f"Bearer {old}"})[0], 401)

    def test_gpus_are_shown_in_health_and_metrics(self):
        fake = BIN.parent / "fake_nvml"  # tests/runtime/observe/programs/fake_nvml.cpp
        if not fake.exists():
            self.skipTest("SKIPPED: no fake NVML beside the build")
        self.keys.append("--metrics.health_every_ms=200")
        with unittest.mock.patch.dict(os.environ, LD_LIBRARY_PATH=str(fake)):
            run, process = self.begin()
        whole = {"name": "NVIDIA H100 80GB HBM3", "utilization": 0.87, "temperature_c": 61.0, "power_w": 412.5, "memory_used": 0.25,
                 "ecc_errors": (5 << 40) + 3, "clock_mhz": 1980.0, "xids": 2, "xid": 79}
        silent = {**dict.fromkeys(whole, 0), "name": "NVIDIA H100 (silent)"}
        self.wait_for(lambda: lines(run / "health.jsonl"), "a line of health")
        self.assertEqual(lines(run / "health.jsonl")[0]["gpus"], [whole, silent])
        sample = lambda name, node, gpu: re.search(rf'^simplescale_{name}{{.*node="{node}",gpu="{gpu}"}} (\S+)$', self.get("/metrics")[1], re.M)
        self.wait_for(lambda: sample("gpu_power_watts", "n1", 1), "both nodes' GPUs")
        self.assertEqual(float(sample("gpu_temperature_celsius", "n0", 0)[1]), 61)
        self.assertEqual(float(sample("gpu_ecc_errors", "n1", 0)[1]), (5 << 40) + 3)
        part = lambda name: re.search(rf'^simplescale_node_step_part_milliseconds{{.*trainer="n1.0",part="{name}"}} (\S+)$',
                                      self.get("/metrics")[1], re.M)
        self.wait_for(lambda: part("backward"), "where a step's time goes")
        self.assertGreater(float(part("backward")[1]), 0)
        told = set()
        self.wait_for(lambda: told.add(json.loads(self.get("/status")[1])["nodes"][1]["health"]["time"]) or len(told) >= 4, "four reports")
        self.assertEqual(len([line for line in lines(run / "health.jsonl") if line["node"] == "n1"]), 1, "a line a minute")
        kill(trainer_pids(run)["n1.0"])  # a lost trainer makes the node's latest report part of the history
        history = self.wait_for(lambda: [line for line in lines(run / "health.jsonl") if line["node"] == "n1"][1:], "it")
        self.assertEqual({t["name"] for t in history[-1]["trainers"]}, {"n1.0"})
        # Without access to the kernel's log, the Xid that NVML reports becomes the same event.
        if not os.access("/dev/kmsg", os.R_OK):
            xids = self.wait_for(lambda: [e for e in lines(run / "events.jsonl") if e.get("rule") == "xid_fatal"], "the Xid event")
            self.assertIn("(GPU 0): 79", xids[0]["reason"])
        self.stop(process)

    def test_answers_are_valid_and_other_requests_are_refused(self):
        run, process = self.begin()
        self.assertEqual(self.get("/healthz")[:2], (200, "ok\n"))
        page = json.loads(self.get("/status")[1])
        self.assertEqual(sorted(n["name"] for n in page["nodes"]), ["n0", "n1"])
        code, text, headers = self.get("/metrics")
        self.assertIn("version=0.0.4", headers["Content-Type"])
        for line in text.splitlines():
            self.assertRegex(line, r'^(# (HELP|TYPE) \w+ .+|\w+\{(\w+="[^"]*",?)+\} [-+.\deE]+)$')
        step = int(re.search(r"^simplescale_step\{.*\} (\d+)$", text, re.M)[1])
        self.assertGreaterEqual(step, 10)
        code, text, headers = self.get("/metrics.jsonl")
        first = [json.loads(line) for line in text.splitlines()]
        self.assertEqual(first[0]["step"], 1)
        more = self.get("/metrics.jsonl?after=" + headers["X-Next"])[1].splitlines()
        if more:
            self.assertEqual(json.loads(more[0])["step"], first[-1]["step"] + 1)
        html = self.get("/")[1]
        self.assertNotRegex(html, r'(src|href)="https?:', "loads nothing from other servers")
        for path, method, want in (("/status", "POST", 405), ("/", "DELETE", 405), ("/../config.toml", "GET", 404), ("/config.toml", "GET", 404),
                                   ("/control/status.json", "GET", 404), ("/metrics.jsonl?after=18446744073709551615", "GET", 200),
                                   ("/events.jsonl?after=-1", "GET", 200), ("/events.jsonl?after=x", "GET", 200),
                                   ("/health.jsonl?spread=9", "GET", 200), ("/log?of=n0", "GET", 200), ("/log?of=n0.0&last=500", "GET", 200),
                                   ("/log?of=supervisor-n0", "GET", 200), ("/log?of=n99", "GET", 404), ("/log", "GET", 404),
                                   ("/log?of=../control/key", "GET", 404), ("/log?of=..%2Fcontrol%2Fkey", "GET", 404), ("/log?of=n0%00", "GET", 404)):
            status, text = self.get(path, method)[:2]
            self.assertEqual(status, want, (path, method))
            self.assertTrue(text or status < 400, (path, method))
        self.assertIn("generation 1", self.get("/log?of=n0.0")[1])
        self.assertIn("learning_rate = 0.003", self.get("/config")[1])
        facts = json.loads(self.get("/facts")[1])
        self.assertLessEqual({"n0", "n1", "n0.0", "n1.0", "supervisor-n0"}, set(facts["logs"]))
        self.assertEqual(len(facts["starts"]), 1)
        plan = json.loads(self.get("/status")[1])["plan"]
        self.assertEqual((plan["model"]["dim"], plan["nodes"], plan["trainers_per_node"], plan["groups"], plan["strategy"]), (48, 2, 1, 2, "hybrid_shard"))
        self.stop(process)

    def test_only_requests_with_the_token_that_name_this_server_are_answered(self):
        run, process = self.begin()
        secret = self.token
        self.assertEqual(self.where(run)["url"], f"http://127.0.0.1:{self.port}/?token={secret}")
        self.assertIn(f"page: http://127.0.0.1:{self.port}/?token={secret}", self.command("status", run))
        paths = ("/", "/status", "/metrics", "/metrics.jsonl", "/events.jsonl", "/health.jsonl", "/config", "/facts", "/log?of=n0", "/nothing")
        for wrong in ("", "Bearer", f"Bearer {secret[:-1]}", f"Bearer {secret}0", f"Basic {secret}", "Bearer " + "0" * 32):
            for path in paths:
                code, text, _ = self.get(path, headers={"Authorization": wrong})
                self.assertEqual(code, 401, (wrong, path))
                self.assertNotIn(secret, text)
        self.assertEqual(self.get("/status?token=" + "0" * 32, headers={"Authorization": ""})[0], 401)
        self.assertEqual(self.get(f"/status?token={secret}", headers={"Authorization": ""})[0], 200)
        self.assertEqual(self.get("/healthz", headers={"Authorization": ""})[:2], (200, "ok\n"))
        for host in ("evil.example", f"evil.example:{self.port}", "127.0.0.1.evil.example", "localhost.evil.example"):
            for path in ("/", "/status", "/healthz"):
                self.assertEqual(self.get(path, headers={"Host": host})[0], 421, (host, path))
        for host in ("localhost", f"LOCALHOST:{self.port}", socket.gethostname(), "[::1]:1"):
            self.assertEqual(self.get("/status", headers={"Host": host})[0], 200, host)
        self.stop(process)

    def test_clients_that_hang_flood_or_send_garbage_do_not_affect_the_run(self):
        run, process = self.begin()
        half = []
        for i in range(200):
            one = socket.create_connection(("127.0.0.1", self.port), timeout=5)
            one.sendall([b"", b"GET /status HT", b"\0\xff" * 100, b"GET / HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n"][i % 4])
            half.append(one)
        at = last_step(run)
        self.wait_for(lambda: last_step(run) >= at + 100, "steps under load")
        for one in half:
            one.close()
        self.wait_for(lambda: self.get("/healthz")[0] == 200, "an answer afterwards")
        self.assertFalse([e for e in lines(run / "events.jsonl") if e["phase"] == "detect"])
        self.stop(process)

    def test_slow_clients_delay_no_other_and_requests_are_bounded_as_a_whole(self):
        folder = self.folder / "made-up"
        (folder / "control").mkdir(parents=True)
        (folder / "metrics.jsonl").write_text("".join(json.dumps({"step": i, "pad": "x" * 60}) + "\n" for i in range(1, 20001)))
        with self.serve(folder):
            def connect(sent):
                one = socket.create_connection(("127.0.0.1", self.port), timeout=30)
                one.sendall(sent)
                self.addCleanup(one.close)
                return one
            head = b"GET /metrics.jsonl HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer " + self.token.encode()
            for turn in range(3):
                # Silent ones, ones that send a header without end, and ones that do not read their answer.
                slow = [connect(sent) for sent in (b"", head + b"\r\nX: ", head + b"\r\n\r\n") for _ in range(60)]
                for one in slow[60:120]:
                    with contextlib.suppress(OSError):
                        one.sendall(b"y")
                code, text, _ = self.get("/metrics.jsonl?last=1000")
                self.assertEqual((code, text.count("\n") > 5), (200, True))
            # A header that is too long is refused; one byte a second does not extend the time of a request.
            long = connect(head + b"".join(b"\r\nX-%d: y" % i for i in range(2000)))
            self.assertIn(b"431", long.recv(100))
            drip = connect(b"GET / HTTP/1.1\r\n")
            drip.settimeout(0.5)

            def over():
                try:
                    drip.sendall(b"X")
                    return drip.recv(1) == b""
                except TimeoutError:
                    return False
                except OSError:
                    return True
            self.wait_for(over, "the end of a request that never ends")
            self.assertEqual(self.get("/metrics.jsonl?last=1000")[0], 200)

    def test_the_server_moves_with_the_supervisor(self):
        run, process = self.begin()
        self.wait_for(lambda: status(run)["standby"], "a standby")
        before = self.where(run)
        kill(status(run)["supervisor"]["pid"])
        after = self.wait_for(lambda: (w := self.where(run)) and w["term"] > before["term"] and w, "its new place")
        self.port = urllib.parse.urlsplit(after["url"]).port
        self.wait_for(lambda: self.get("/healthz")[0] == 200, "health")
        self.assertIn("took_over", self.get("/events.jsonl")[1])
        self.stop(process)

    def test_it_serves_the_tail_of_a_file_and_lines_spread_over_it(self):
        folder = self.folder / "made-up"
        (folder / "control").mkdir(parents=True)
        (folder / "metrics.jsonl").write_text("".join(json.dumps({"step": i, "pad": "x" * (i % 97)}) + "\n" for i in range(1, 20001)))
        with self.serve(folder):
            def steps(query):
                code, text, headers = self.get("/metrics.jsonl" + query)
                self.assertEqual(code, 200)
                return [json.loads(line)["step"] for line in text.splitlines()], int(headers["X-Next"])
            size = (folder / "metrics.jsonl").stat().st_size
            found, after = steps("?spread=500")
            self.assertEqual((found[0], found[-1], after), (1, 20000, size))
            self.assertEqual(found, sorted(set(found)))
            self.assertTrue(500 <= len(found) <= 600 and max(b - a for a, b in zip(found, found[1:])) < 100, found)
            self.assertEqual(steps(f"?after={after}"), ([], size))
            found, after = steps("?last=1000")
            self.assertEqual((found, after), (list(range(found[0], 20001)), size))
            self.assertTrue(5 < len(found) < 50)
            self.assertEqual(len(steps("?last=-1")[0]), len(steps("")[0]))
            self.assertLess(len(steps("?spread=99999999999999999999")[0]), 3000)
            self.assertEqual(self.get("/events.jsonl?spread=10")[:2], (200, ""))

    def inode(self, folder):
        """Changes with each server that has begun: it replaces the file."""
        try:
            return (folder / "control/http.json").stat().st_ino
        except OSError:
            return None

    @contextlib.contextmanager
    def serve(self, folder, port=0):
        """Serves a folder that no run writes to."""
        before = self.inode(folder)
        process = subprocess.Popen([PROGRAM, "http", f"--run={folder}", "--host=127.0.0.1", f"--port={port}"], stdout=subprocess.DEVNULL,
                                   stderr=subprocess.DEVNULL)
        try:
            self.wait_for(lambda: self.inode(folder) != before, "HTTP")
            self.port = urllib.parse.urlsplit(self.where(folder)["url"]).port
            yield
        finally:
            process.kill()
            process.wait()

    def keep(self, page, name, whole=False):
        """Saves a screenshot beside the programs."""
        folder = pathlib.Path(os.environ.get("SIMPLESCALE_SCREENSHOTS", BIN.parent / "screenshots"))
        folder.mkdir(parents=True, exist_ok=True)
        page.screenshot(folder / f"{name}.png", whole)
        self.assertGreater((folder / f"{name}.png").stat().st_size, 20000)

    def check_page(self, page, nodes, outside=None):
        """Checks that hold for every run with curves and an incident, in every window size."""
        page.wait_for("document.body.dataset.turns >= 1")
        self.assertEqual(sorted(page.evaluate("[...document.querySelectorAll('#heat .cell')].map(c => c.dataset.node)")), sorted(nodes))
        for curve in ("loss", "rate", "lr", "norm"):
            page.wait_for(f"Number(document.querySelector('#{curve} path.curve')?.dataset.points) >= 5")
            self.assertNotIn("NaN", page.evaluate(f"document.querySelector('#{curve} path.curve').getAttribute('d')"))
        page.wait_for("document.querySelectorAll('.incident .bar div').length >= 3")
        bar = page.evaluate("[...document.querySelector('.incident .bar').children].map(e => e.dataset.phase)")
        self.assertEqual(bar, [phase for phase in ("detect", "fence", "abort", "decide", "heal", "resume") if phase in bar])
        self.assertLessEqual({"detect", "fence"}, set(bar))
        self.assertLessEqual(page.evaluate("document.documentElement.scrollWidth - innerWidth"), 0, "it scrolls sideways")
        self.assertEqual(page.complaints, [])
        ours = (outside or f"http://127.0.0.1:{self.port}/", "data:")
        self.assertEqual([url for url in page.requests if not url.startswith(ours)], [])

    @unittest.skipUnless(browser.PROGRAM, browser.SKIPPED)
    def test_the_page_in_a_browser_while_the_run_trains(self):
        run, process = self.begin()
        os.kill(next(t["pid"] for n in status(run)["nodes"] for t in n["trainers"]), signal.SIGKILL)
        self.wait_for(lambda: events(run, "recovered"), "an incident")
        with browser.Browser(self.folder / "browser") as chromium:
            page = chromium.page(f"http://127.0.0.1:{self.port}/?token={self.token}", 1280, 800)
            self.check_page(page, ["n0", "n1"])
            self.assertRegex(page.evaluate("document.querySelector('.incident').textContent"), r"n0\.0: .*generation \d+ begins")
            tree = page.evaluate("document.querySelector('#tree').innerText")
            for name in ("g0", "g1", "n0", "n1", "n0.0", "n1.0"):
                self.assertIn(name, tree)
            self.assertIn("supervisor n", page.evaluate("document.querySelector('#leaders').textContent"))
            # The page updates by itself and keeps closed what the reader has closed.
            page.evaluate("document.querySelector('#tree details').open = false")
            step = int(page.evaluate("document.querySelector('#figures b').textContent"))
            page.wait_for(f"Number(document.querySelector('#figures b').textContent) > {step + 10}")
            self.assertFalse(page.evaluate("document.querySelector('#tree details').open"))
            page.evaluate("document.querySelector('.cell').click()")
            self.assertTrue(page.evaluate("document.querySelector('#tree details').open"))
            self.keep(page, "run-1280x800")
            self.keep(page, "run-whole", whole=True)
            page.close()
            page = chromium.page(f"http://127.0.0.1:{self.port}/?token={self.token}", 390, 844, dark=True, phone=True)
            self.check_page(page, ["n0", "n1"])
            self.keep(page, "run-phone-dark", whole=True)
        self.stop(process)

    def stalled(self):
        """A folder of a run of 24 nodes that stalls."""
        folder = large_run(self.folder / "stalled", nodes=24, trainers=2, group_nodes=2, steps=7500)
        document = json.loads((folder / "control/status.json").read_text())
        document |= {"state": "training", "stall": {"since_s": 12.3, "waiting_for": "n0.0", "phase": "backward", "unit": 3,
                                                    "sentence": "no step for 12 s, waiting for n0.0 (backward, block 3)"}}
        (folder / "control/status.json").write_text(json.dumps(document))
        return folder

    def check_untrusted(self, text):
        """The run's key and secret addresses are nowhere in what is served."""
        self.assertNotIn(bytes(range(200, 232)).hex(), text)
        self.assertNotIn("SECRET", text)

    @unittest.skipUnless(browser.PROGRAM, browser.SKIPPED)
    def test_the_page_shows_a_stall_and_lets_the_reader_look_closer(self):
        folder = self.stalled()
        with self.serve(folder), browser.Browser(self.folder / "browser") as chromium:
            for path in ("/config", "/log?of=n200.3", "/facts"):
                self.check_untrusted(self.get(path)[1])
            page = chromium.page(f"http://127.0.0.1:{self.port}/?token={self.token}", 1280, 800)
            page.wait_for("document.body.dataset.turns >= 1")
            self.assertEqual(page.evaluate("document.querySelector('#stall').textContent"), "no step for 12 s, waiting for n0.0 (backward, block 3)")
            self.assertEqual(page.evaluate("document.querySelector('#state').className + ' ' + document.querySelector('#state').textContent"), "pill warn stalled")
            self.assertGreaterEqual(page.evaluate("Number(document.querySelector('#loss path.val').dataset.points)"), 5, "validation loss")
            self.assertEqual(page.evaluate("[...document.querySelectorAll('#loss-key span')].map(e => e.textContent).join()"),
                             "training,validation,validation, web,validation, <i>code,validation, 512 tokens,incident")
            self.assertEqual(page.evaluate("[...document.querySelectorAll('#positions > div')].map(e => [...e.children].map(c => c.textContent).filter(Boolean).join(': ')).join()"),
                             "0: 5.0000,1: 4.0000,512 to 1023: 2.6000,1024 to 2047: 2.5000")
            # A curve for each task that has the chosen score, and the newest scores as figures.
            curves = "[...document.querySelectorAll('#tasks path.curve')].map(p => p.dataset.points).join()"
            self.assertEqual(page.evaluate(curves), "8")
            self.assertEqual(page.evaluate("[...document.querySelector('#tasks-of').options].map(o => o.textContent).join()"),
                             "accuracy,accuracy by character,perplexity by word,perplexity by byte")
            page.evaluate("$('tasks-of').value = 'byte_perplexity'; $('tasks-of').dispatchEvent(new Event('change'))")
            self.assertEqual(page.evaluate("document.querySelector('#tasks-key').textContent + ' ' + " + curves), "prose <b> 8")
            self.assertIn("34.4 %reading, accuracy", page.evaluate("document.querySelector('#figures').textContent"))
            for text in ("22 layers", "20 nodes × 2 trainers", "hybrid_shard", "elapsed"):
                self.assertIn(text, page.evaluate("document.querySelector('#facts').textContent"))
            self.assertEqual(page.evaluate("document.querySelectorAll('#checkpoints tbody tr').length"), 5)
            # Untrusted text is text.
            page.evaluate("$('log-of').value = 'n200.3'; $('log-of').dispatchEvent(new Event('change'))")
            page.wait_for("$('logs').textContent.includes('<img src=x')")
            self.assertIn("<script>", page.evaluate("$('config').textContent"))
            self.assertEqual(page.evaluate("document.querySelectorAll('#logs img, #config script').length"), 0)
            # A sentence is the headline of its incident. An opened incident shows its events and stays open.
            first = "[...document.querySelectorAll('.incident')].find(i => i.textContent.includes('no step was lost'))"
            self.assertFalse(page.evaluate(first + ".open"))
            page.evaluate(first + ".open = true")
            self.assertRegex(page.evaluate(first + ".querySelector('.said').textContent"), r"^n\d+\.\d was killed by signal 9\. It was started again")
            self.assertIn("trainer_lost", page.evaluate(first + ".innerText"))
            with open(folder / "events.jsonl", "a") as events:
                events.write(json.dumps({"time": 1, "generation": 9, "step": 9, "incident": 99, "phase": "detect", "kind": "node_lost", "subject": "n1", "reason": "gone", "ms": 0}) + "\n")
            page.wait_for("document.querySelector('.incident').textContent.includes('n1: gone')")
            self.assertTrue(page.evaluate(first + ".open"))
            # Dragging zooms all curves over steps, a double click shows the whole run again.
            drag = """(() => { const box = $('loss'), r = box.getBoundingClientRect(), at = (type, x) =>
                box.dispatchEvent(new PointerEvent(type, { clientX: r.left + x, clientY: r.top + 90, button: 0, pointerId: 1 }));
                at('pointerdown', 300); at('pointermove', 600); at('pointerup', 600); })()"""
            points = "Number(document.querySelector('#lr path.curve').dataset.points)"
            whole = page.evaluate(points)
            page.evaluate("$('log').checked = true")
            page.evaluate(drag)
            self.assertLess(page.evaluate(points), whole / 2)
            self.assertNotIn("NaN", page.evaluate("document.querySelector('#loss').innerHTML"))
            self.keep(page, "stalled-zoomed")
            page.evaluate("$('rate').dispatchEvent(new MouseEvent('dblclick'))")
            self.assertEqual(page.evaluate(points), whole)
            # The wheel zooms with Shift or Ctrl only, and back out to the whole run.
            wheel = """((delta, keys) => { const box = $('loss'), r = box.getBoundingClientRect(); return box.dispatchEvent(new WheelEvent('wheel',
                { clientX: r.left + 300, clientY: r.top + 90, deltaY: delta, cancelable: true, ...keys })); })"""
            self.assertTrue(page.evaluate(wheel + "(-100, {})"), "the page scrolls")
            self.assertEqual(page.evaluate(points), whole)
            self.assertFalse(page.evaluate(wheel + "(-100, { shiftKey: true })"))
            self.assertFalse(page.evaluate(wheel + "(-100, { ctrlKey: true })"))
            self.assertLess(page.evaluate(points), whole)
            for _ in range(4):
                page.evaluate(wheel + "(100, { shiftKey: true })")
            self.assertEqual(page.evaluate(points), whole)
            # Resources of many nodes: the median and a band.
            for of in ("0", "1", "7"):
                page.evaluate(f"$('usage-of').value = {of}; $('usage-of').dispatchEvent(new Event('change'))")
                self.assertGreaterEqual(page.evaluate("Number(document.querySelector('#usage path.curve').dataset.points)"), 2)
            self.assertEqual(page.complaints, [])

    @unittest.skipUnless(browser.PROGRAM, browser.SKIPPED)
    def test_a_report_is_the_same_page_in_one_file(self):
        folder = large_run(self.folder / "large")
        report = self.folder / "report.html"
        self.assertIn("report.html", self.command("report", folder, "-o", report))
        self.check_untrusted(report.read_text())
        self.assertLess(report.stat().st_size, 8_000_000)
        with browser.Browser(self.folder / "browser") as chromium:
            page = chromium.page(f"file://{report}", 1280, 800)
            self.check_page(page, [f"n{i}" for i in range(1024)], outside=f"file://{report}")
            self.assertIn("failed", page.evaluate("document.querySelector('#state').textContent"))  # no process trains there
            self.assertIn("<script>", page.evaluate("$('config').textContent"))
            page.evaluate("$('log-of').value = 'n200.3'; $('log-of').dispatchEvent(new Event('change'))")
            page.wait_for("$('logs').textContent.includes('(the run\\'s key)')")
            self.assertEqual(page.evaluate("document.title"), "tinyllama-1024 · step 20000")
            self.keep(page, "report")
        self.command("report", self.folder / "nothing", code=65)

    @unittest.skipUnless(browser.PROGRAM, browser.SKIPPED)
    def test_the_page_in_a_browser_with_1024_nodes_of_8_trainers(self):
        folder = large_run(self.folder / "large")
        with self.serve(folder), browser.Browser(self.folder / "browser") as chromium:
            url = f"http://127.0.0.1:{self.port}/?token={self.token}"
            nodes = [f"n{i}" for i in range(1024)]
            page = chromium.page(url, 1280, 800)
            self.check_page(page, nodes)
            self.assertEqual(page.evaluate("document.querySelectorAll('#heat .cell.gone').length"), len(WRONG) + 1)
            self.assertEqual(page.evaluate("document.querySelectorAll('#heat .cell.idle').length"), 4, "spares")
            self.assertIn("255 groups of 4 nodes (configured: 255 of 4), generation", page.evaluate("document.querySelector('#about').innerText"))
            # Nodes that are down are listed above the tree, which is folded by group.
            self.assertRegex(page.evaluate("document.querySelector('#attention').innerText"), r"(?s)n17 on gpu-00-17: lost, .*n200 on .*: n200\.3 down.*n402 on .*: drained, disk.*n777")
            self.assertEqual(page.evaluate("document.querySelectorAll('#tree details').length"), 255 + 2)
            self.assertEqual(page.evaluate("document.querySelectorAll('#tree details[open]').length"), 0)
            self.assertEqual(page.evaluate("document.querySelector('#tree details').dataset.group"), "g49")  # the group of n200
            colours = page.evaluate("[100, 101].map(n => document.querySelector(`[data-node=n${n}]`).style.background)")
            self.assertNotEqual(*colours)
            self.assertIn("under way", page.evaluate("document.querySelector('.incident').textContent"))
            self.keep(page, "1024-nodes-1280x800")
            page.evaluate("document.querySelector('[data-node=n100]').click(); document.querySelector('[data-node=n100]').focus()")
            self.assertIn("n100.7", page.evaluate("document.querySelector('#tree').innerText"))
            self.assertRegex(page.evaluate("document.querySelector('#told').textContent"), r"n100 on gpu-03-04: up, g\d+; slowest trainer 1\.")
            self.keep(page, "1024-nodes-whole", whole=True)
            page.close()
            page = chromium.page(url, 390, 844, dark=True, phone=True)
            self.check_page(page, nodes)
            self.keep(page, "1024-nodes-phone-dark", whole=True)
