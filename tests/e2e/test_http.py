"""HTTP of a run: what it answers, that it changes nothing, that hostile clients are not felt, and that it moves with the supervisor."""

import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import unittest
import unittest.mock
import urllib.error
import urllib.request

from common import BIN, Case, last_step, lines, status


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
            return json.loads((run / "control/http.json").read_text())
        except (OSError, ValueError):
            return None

    def get(self, path, method="GET"):
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", method=method, data=b"x" if method == "POST" else None)
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                return answer.status, answer.read().decode(), answer.headers
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode(), error.headers

    def stop(self, process):
        process.send_signal(signal.SIGINT)
        self.assertEqual(process.wait(60), 0, process.stdout.read())

    def test_gpus_of_a_node_show(self):
        fake = BIN.parent / "fake_nvml"  # tests/base/programs/fake_nvml.cpp
        if not fake.exists():
            self.skipTest("SKIPPED: no fake NVML beside the build")
        self.keys.append("--metrics.health_every_ms=200")
        with unittest.mock.patch.dict(os.environ, LD_LIBRARY_PATH=str(fake)):
            run, process = self.begin()
        whole = {"name": "NVIDIA H100 80GB HBM3", "utilization": 0.87, "temperature_c": 61.0, "power_w": 412.5, "memory_used": 0.25,
                 "ecc_errors": (5 << 40) + 3}
        silent = {**dict.fromkeys(whole, 0), "name": "NVIDIA H100 (silent)"}
        self.wait_for(lambda: lines(run / "health.jsonl"), "a line of health")
        self.assertEqual(lines(run / "health.jsonl")[0]["gpus"], [whole, silent])
        sample = lambda name, node, gpu: re.search(rf'^simplescale_{name}{{.*node="{node}",gpu="{gpu}"}} (\S+)$', self.get("/metrics")[1], re.M)
        self.wait_for(lambda: sample("gpu_power_watts", "n1", 1), "both nodes' GPUs")
        self.assertEqual(float(sample("gpu_temperature_celsius", "n0", 0)[1]), 61)
        self.assertEqual(float(sample("gpu_ecc_errors", "n1", 0)[1]), (5 << 40) + 3)
        self.stop(process)

    def test_it_answers_and_changes_nothing(self):
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
        self.assertNotRegex(html, r'(src|href)="https?:', "nothing from outside")
        for path, method, want in (("/status", "POST", 404), ("/", "DELETE", 404), ("/../config.toml", "GET", 404), ("/config.toml", "GET", 404),
                                   ("/control/status.json", "GET", 404), ("/metrics.jsonl?after=18446744073709551615", "GET", 200),
                                   ("/events.jsonl?after=-1", "GET", 200), ("/events.jsonl?after=x", "GET", 200)):
            self.assertIn(self.get(path, method)[0], (want, 413) if method == "POST" else (want,), (path, method))
        self.stop(process)

    def test_clients_that_hang_flood_or_send_rubbish_are_not_felt(self):
        run, process = self.begin()
        half = []
        for i in range(200):
            one = socket.create_connection(("127.0.0.1", self.port), timeout=5)
            one.sendall([b"", b"GET /status HT", b"\0\xff" * 100, b"GET / HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n"][i % 4])
            half.append(one)
        at = last_step(run)
        self.wait_for(lambda: last_step(run) >= at + 1000, "steps meanwhile")
        for one in half:
            one.close()
        self.wait_for(lambda: self.get("/healthz")[0] == 200, "an answer afterwards")
        self.assertFalse([e for e in lines(run / "events.jsonl") if e["phase"] == "detect"])
        self.stop(process)

    def test_it_moves_with_the_supervisor(self):
        run, process = self.begin()
        self.wait_for(lambda: status(run)["standby"], "a standby")
        before = self.where(run)
        os.kill(status(run)["supervisor"]["pid"], signal.SIGKILL)
        after = self.wait_for(lambda: (w := self.where(run)) and w["epoch"] > before["epoch"] and w, "its new place")
        self.port = int(after["url"].rstrip("/").rpartition(":")[2])
        self.wait_for(lambda: self.get("/healthz")[0] == 200, "health")
        self.assertIn("took_over", self.get("/events.jsonl")[1])
        self.stop(process)

    @unittest.skipUnless(shutil.which("chromium") or shutil.which("google-chrome"), "SKIPPED: no headless browser is installed")
    def test_a_browser_draws_the_page(self):
        run, process = self.begin()
        os.kill(next(t["pid"] for n in status(run)["nodes"] for t in n["trainers"]), signal.SIGKILL)
        self.wait_for(lambda: any(e["kind"] == "recovered" for e in lines(run / "events.jsonl")), "an incident")
        picture = self.folder / "page.png"
        subprocess.run([shutil.which("chromium") or shutil.which("google-chrome"), "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=4000",
                        f"--screenshot={picture}", "--window-size=1200,1400", f"http://127.0.0.1:{self.port}/"], check=True, timeout=120, capture_output=True)
        self.assertGreater(picture.stat().st_size, 20000)
        dom = subprocess.run([shutil.which("chromium") or shutil.which("google-chrome"), "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=4000",
                              "--dump-dom", f"http://127.0.0.1:{self.port}/"], check=True, timeout=120, capture_output=True, text=True).stdout
        self.assertRegex(dom, r"generation \d+ begins|the same nodes")
        self.assertIn("n1.0 ", dom)
        if keep := os.environ.get("SIMPLESCALE_SCREENSHOTS"):
            shutil.copy(picture, pathlib.Path(keep) / "http_page.png")
        self.stop(process)


if __name__ == "__main__":
    unittest.main()
