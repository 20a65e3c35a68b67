"""TensorBoard and W&B read the exported files, also after changes of the supervisor. `runs`, `plot`, the manifest, and the
fault drills in configs/."""

import gzip
import http.server
import json
import os
import signal
import subprocess
import threading
import xml.dom.minidom

from common import PYTHON, ROOT, TINY, Case, Interpreter, events, kill, last_step, lines, needs, status, trainer_pids

LAYOUT = ["--cluster.nodes=2", "--cluster.trainers_per_node=1", "--parallel.group_nodes=1", "--parallel.strategy=hybrid_shard",
          "--train.global_batch_size=8"]
STEPS = 100

READ_TENSORBOARD = """
import json, sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
a = EventAccumulator(sys.argv[1], size_guidance={'scalars': 0})
a.Reload()
print(json.dumps({tag: [[e.step, e.value] for e in a.Scalars(tag)] for tag in a.Tags()['scalars']}))
"""
READ_WANDB = """
import json, sys, wandb
wandb._assert_is_internal_process = True
from wandb.proto import wandb_internal_pb2
from wandb.sdk.internal.datastore import DataStore
store, records = DataStore(), []
store.open_for_scan(sys.argv[1])
while (data := store.scan_data()) is not None:
    record = wandb_internal_pb2.Record()
    record.ParseFromString(data)
    kind = record.WhichOneof('record_type')
    value = getattr(record, kind)
    if kind == 'history': value = {i.key: json.loads(i.value_json) for i in value.item}
    elif kind == 'summary': value = {i.key: json.loads(i.value_json) for i in value.update}
    elif kind == 'run': value = [value.run_id, value.display_name, [value.entity, value.project, *value.tags], {'.'.join(i.nested_key): json.loads(i.value_json) for i in value.config.update}]
    else: value = value.exit_code
    records.append([record.num, kind, value])
print(json.dumps(records))
"""


class WandbServer(http.server.ThreadingHTTPServer):
    """As much of W&B's server as `wandb sync` needs: keeps a run's config, and its lines of history by their numbers."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), WandbRequest)
        self.config, self.lines = None, {}
        threading.Thread(target=self.serve_forever, daemon=True).start()


class WandbRequest(http.server.BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        body = json.loads(gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body)
        history = (body.get("files") or {}).get("wandb-history.jsonl", {"offset": 0, "content": []})
        for i, line in enumerate(history["content"]):
            self.server.lines[history["offset"] + i] = json.loads(line)
        data, sent = {}, body.get("variables") or {}
        if "upsertBucket" in body.get("query", ""):
            self.server.config = {key: value["value"] for key, value in json.loads(sent["config"]).items()}
            project = {"id": "p", "name": sent["project"], "entity": {"id": "e", "name": "me"}}
            data["upsertBucket"] = {"inserted": True, "bucket": {"id": "x", "name": sent["name"], "displayName": "d", "description": "", "config": "{}",
                                                                "sweepName": None, "historyLineCount": 0, "project": project}}
        elif "createRunFiles" in body.get("query", ""):
            data["createRunFiles"] = {"runID": "x", "uploadHeaders": [], "files": []}
        text = json.dumps({"data": data, "limits": {}}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)


class Exports(Case):
    def run_with_deaths(self):
        """A run that loses a trainer and its supervisor, is interrupted, and is resumed to its end."""
        keys = {**TINY, "metrics.tensorboard": True, "metrics.wandb": True, "cluster.peak_flops": 1e12,
                "metrics.wandb_project": '"a project"', "metrics.wandb_entity": '"team"', "metrics.wandb_tags": '"red, big one"'}
        self.write_config(keys)
        flags = [*LAYOUT, f"--train.max_steps={STEPS}"]
        run, process = self.start("run", *flags)
        self.slow_down(run, fault="slow_node")
        self.wait_for(lambda: last_step(run) >= 5 and status(run)["standby"], "step 5")
        kill(trainer_pids(run)["n1.0"])
        self.wait_for(lambda: events(run, "recovered"), "recovery")
        before = status(run)["supervisor"]["pid"]
        kill(before)
        self.wait_for(lambda: status(run)["supervisor"]["pid"] != before, "another supervisor")
        step = last_step(run)
        self.wait_for(lambda: last_step(run) >= step + 3, "3 more steps")
        process.send_signal(signal.SIGINT)
        self.assertEqual(process.wait(60), 0, process.stdout.read())
        self.assertLess(last_step(run), STEPS)
        return self.train("run", *flags)

    def metrics(self, run):
        return {m["step"]: m for m in lines(run / "metrics.jsonl")}  # the last line of a step counts

    @needs("tensorboard", "wandb")
    def test_tensorboard_and_wandb_show_every_step_once_across_supervisors(self):
        run = self.run_with_deaths()
        reader = Interpreter("tensorboard.backend.event_processing.event_accumulator", "wandb")
        self.addCleanup(reader.close)
        read = lambda script, path: json.loads(reader.run(script, path, folder=self.folder))
        metrics = self.metrics(run)
        self.assertEqual(list(metrics), list(range(1, STEPS + 1)))
        scalars = read(READ_TENSORBOARD, run / "tb")
        by_position = {f"val_loss_by_position/{first}" for first in (0, 1, 2, 4, 8, 16)}
        self.assertEqual(set(scalars), {"loss", "val_loss", "grad_norm", "lr", "tokens", "tokens_per_second", "step_ms", "mfu", "generation", "recoveries",
                                        *by_position})
        over_tokens = read(READ_TENSORBOARD, run / "tb/by_tokens")
        self.assertEqual(over_tokens["loss"], [[metrics[s]["tokens"], value] for s, value in scalars["loss"]])
        for tag in ("loss", "val_loss", "lr", "generation", "grad_norm", "tokens"):
            known = {s: m[tag] for s, m in metrics.items() if m.get(tag) is not None}
            self.assertEqual([s for s, _ in scalars[tag]], list(known), tag)
            for step, value in scalars[tag]:
                self.assertAlmostEqual(value, known[step], delta=1e-5 * abs(known[step]), msg=f"{tag} of step {step}")
        recoveries = len(events(run, "recovered"))
        self.assertGreaterEqual(recoveries, 1)
        self.assertEqual(scalars["recoveries"][-1], [STEPS, recoveries])
        self.assertEqual(scalars["recoveries"][0], [1, 0])
        self.assertEqual(len(list((run / "tb").glob("events.*"))), 1, "that of the newest supervisor")

        files = list((run / "wandb").glob("offline-run-*/run-*.wandb"))
        self.assertEqual(len(files), 1)
        records = read(READ_WANDB, files[0])
        self.assertEqual([number for number, _, _ in records], list(range(1, len(records) + 1)))
        kinds = [kind for _, kind, _ in records]
        self.assertEqual(kinds, ["run"] + ["history"] * STEPS + ["summary", "exit"])
        run_id, name, belongs, config = records[0][2]
        self.assertEqual(belongs, ["team", "a project", "red", "big one"])
        self.assertEqual([r[2]["tokens"] for r in records[1:STEPS + 1]], [metrics[s]["tokens"] for s in metrics])
        self.assertEqual([files[0].name, name], [f"run-{run_id}.wandb", "run"])
        self.assertEqual(config["model.dim"], TINY["model.dim"])
        self.assertEqual([r[2]["_step"] for r in records[1:STEPS + 1]], list(metrics))
        self.assertEqual([r[2].get("loss") for r in records[1:STEPS + 1]], [metrics[s]["loss"] for s in metrics])
        self.assertEqual(records[-2][2]["loss"], metrics[STEPS]["loss"])
        self.assertEqual(records[-1][2], 0)
        # The run goes on: its config follows.
        self.assertEqual(config["train.max_steps"], STEPS)
        self.train("run", *LAYOUT, f"--train.max_steps={STEPS + 4}", "--metrics.wandb_tags=blue")
        records = read(READ_WANDB, files[0])
        self.assertEqual([number for number, _, _ in records], list(range(1, STEPS + 8)))
        self.assertEqual((records[0][2][0], records[0][2][3]["train.max_steps"]), (run_id, STEPS + 4))
        self.assertEqual(records[0][2][2], ["team", "a project", "blue"])
        self.assertEqual(read(READ_TENSORBOARD, run / "tb/by_tokens")["tokens"][-1][0], self.metrics(run)[STEPS + 4]["tokens"])

    @needs("wandb")
    def test_wandb_sync_shows_a_run_while_it_trains(self):
        server = WandbServer()
        self.addCleanup(server.shutdown)
        environment = {**os.environ, "WANDB_BASE_URL": f"http://127.0.0.1:{server.server_port}", "WANDB_API_KEY": "a" * 40,
                       "WANDB_ERROR_REPORTING": "false", "HOME": str(self.folder)}

        def sync():  # as docs/operations.md has it
            [offline] = (run / "wandb").glob("offline-run-*")
            done = subprocess.run([PYTHON, "-m", "wandb", "sync", "--no-mark-synced", offline], env=environment, cwd=self.folder,
                                  capture_output=True, text=True, timeout=120)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

        run, process = self.start("run", *LAYOUT, "--metrics.wandb=true", "--train.max_steps=100000")
        self.slow_down(run)
        self.wait_for(lambda: last_step(run) >= 5, "step 5")
        sync()
        shown = len(server.lines)
        self.assertGreater(shown, 0)
        self.wait_for(lambda: last_step(run) > shown, "a step that was not shown")
        process.send_signal(signal.SIGINT)
        self.assertEqual(process.wait(60), 0, process.stdout.read())
        end = last_step(run) + 5
        self.train("run", *LAYOUT, "--metrics.wandb=true", f"--train.max_steps={end}")
        sync()
        self.assertEqual([server.lines[i]["_step"] for i in sorted(server.lines)], list(range(1, end + 1)))
        self.assertEqual([server.lines[i]["loss"] for i in sorted(server.lines)], [m["loss"] for m in self.metrics(run).values()])
        self.assertEqual(server.config["train"]["max_steps"], end)

    def test_runs_and_plot(self):
        runs = self.folder / "runs"
        first = self.train("runs/first", "--train.max_steps=12")
        second = self.train("runs/it's & <second>", "--train.max_steps=8")
        table = self.command("runs", runs)
        self.assertRegex(table, r"first +finished +12/12 +\d")
        self.assertRegex(table, r"second> +finished +8/8 +\d")
        document = json.loads(self.command("runs", runs, "--json"))
        self.assertEqual([r["step"] for r in document], [12, 8])
        self.assertEqual(document[0]["loss"], lines(first / "metrics.jsonl")[-1]["loss"])
        svg, png = self.folder / "both.svg", self.folder / "both.png"
        self.command("plot", first, second, "-o", svg)
        self.assertEqual(xml.dom.minidom.parse(str(svg)).documentElement.tagName, "svg")
        self.command("plot", runs, "-o", png, "--smooth", 4)
        self.assertEqual(png.read_bytes()[:8], b"\x89PNG\r\n\x1a\n")
        self.command("plot", first, "-o", self.folder / "both.gif", code=64)
        self.command("plot", self.folder / "nowhere", code=65)
        step = self.folder / "step.svg"
        self.command("plot", self.config, "--program", "--cluster.peak_flops=3e12", "--network=5", "-o", step, "--train.max_steps=1")
        self.assertIn("estimated from 3000 GFLOP/s (cluster.peak_flops), 10 GB/s of memory (assumed), 5 Gb/s of network (--network)", step.read_text())
        self.command("plot", first, "--train.max_steps=1", code=64)  # a key of a configuration, but no --program
        self.command("plot", self.config, self.config, "--program", code=64)
        self.command("runs", self.folder / "nowhere", code=65)

    def test_the_manifest_records_program_libraries_host_and_data(self):
        run = self.train("run", "--train.max_steps=3")
        self.train("run", "--train.max_steps=4")
        starts = json.loads((run / "control/manifest.json").read_text())["starts"]
        self.assertEqual(len(starts), 2)
        start = starts[0]
        self.assertRegex(start["program"]["commit"], r"^([0-9a-f]{40}(\+changes)?|unknown)$")
        self.assertEqual(set(start["libraries"]), {"caf", "ucx", "libtorch", "nccl", "compiler"})
        self.assertRegex(start["libraries"]["ucx"], r"^1\.\d+")
        self.assertRegex(start["libraries"]["libtorch"], r"^2\.")
        self.assertGreater(start["host"]["cores"], 0)
        self.assertEqual([f["name"] for f in start["data"]["files"]], [str(self.data)])
        self.assertRegex(start["data"]["files"][0]["xxh3_128"], r"^[0-9a-f]{32}$")
        self.assertEqual(start["data"], starts[1]["data"])


DRILLS = {  # the events that must occur: kind, and a part of the line
    "drill-trainer": [("recovered", "n1.0"), ("recovered", "n0.1"), ("recovered", "not finite")],
    "drill-spare": [("joined", "takes the place of")],
    "drill-node": [("joined", "1 group instead of 2"), ("layout_changed", "2 groups instead of 1")],
    "drill-supervisor": [("took_over", ""), ("took_over", "")],
    "drill-bitflip": [("steps_undone", "different states"), ("recovered", "different states")],
}


class Drills(Case):
    """The fault drills of configs/ with the tests' tiny model and tokens."""

    def test_every_drill_ends_bit_identical_to_a_run_without_faults(self):
        shipped = {p.stem for p in (ROOT / "configs").glob("drill-*.toml")}
        self.assertEqual(shipped, set(DRILLS))
        keys = {**TINY, "model.preset": '""', "data.source": str(self.data), "train.max_steps": 250, "train.global_batch_size": 16,
                "train.sample_prompt": '""'}
        flags = [f"--{key}={value}" for key, value in keys.items()]
        self.command("train", ROOT / "configs/quickstart.toml", f"--run={self.folder / 'reference'}", *flags, "--supervision.warm_processes=0")
        want = self.digest(self.folder / "reference")
        for name, expected in DRILLS.items():
            with self.subTest(drill=name):
                self.config = ROOT / f"configs/{name}.toml"
                run, process = self.start(name, *flags)
                if name == "drill-node":
                    self.wait_for(lambda: events(run, "injected"), "the loss of n1")
                    self.slow_down(run, fault="slow_node")
                    self.wait_for(lambda: events(run, "layout_changed"), "the return of n1")
                    self.go_on()
                self.assertEqual(process.wait(180), 0, process.stdout.read())
                self.assertEqual(self.digest(run), want)
                self.assertIn("each sample exactly once", self.verify(run))
                told = [(e["kind"], json.dumps(e)) for e in lines(run / "events.jsonl")]
                if name == "drill-spare" and "n1.0" not in {s["trainer"] for s in lines(run / "ledger.jsonl") if s["step"] == 1}:
                    expected = []  # n1 started last and was the spare; it may not be back when n0 dies
                for kind, part in expected:
                    found = [i for i, (k, text) in enumerate(told) if k == kind and part in text]
                    self.assertTrue(found, f"{kind} {part}: {told}")
                    told.pop(found[0])
