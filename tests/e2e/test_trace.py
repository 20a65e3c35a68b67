"""Traces of selected steps and of recoveries: all processes on one time line, in a file for Perfetto."""

import json
import signal

from common import Case, events, kill, last_step, lines, status, trainer_pids

SLACK_US = 0.01  # rounding of the decimal numbers in the file


class Timeline:
    """Parses a Chrome trace and checks its structure."""

    def __init__(self, test, path):
        self.test = test
        document = json.loads(path.read_text(), parse_constant=lambda name: test.fail(f"{name} is not JSON"))
        self.events = document["traceEvents"]
        self.names, self.threads = {}, {}
        for e in self.of("M"):
            if e["name"] == "process_name":
                self.names[e["pid"]] = e["args"]["name"]
            if e["name"] == "thread_name":
                self.threads[e["pid"], e["tid"]] = e["args"]["name"]
        for e in self.events:
            test.assertIn(e["ph"], "MXisf")
            test.assertIn(e["pid"], self.names)
            if e["ph"] != "M":
                test.assertIn((e["pid"], e["tid"]), self.threads)
                test.assertGreaterEqual(e["ts"], 0)
        self.check_nesting()
        self.check_arrows()

    def of(self, ph):
        return [e for e in self.events if e["ph"] == ph]

    def spans(self, process=None, name=None, thread=None):
        return [e for e in self.of("X")
                if (process is None or self.names[e["pid"]] == process) and (name is None or e["name"] == name)
                and (thread is None or self.threads[e["pid"], e["tid"]] == thread)]

    def processes(self):
        return sorted(self.names.values())

    def check_nesting(self):
        """Spans of one track nest or follow each other."""
        tracks = {}
        for e in self.of("X"):
            self.test.assertGreaterEqual(e["dur"], 0)
            tracks.setdefault((e["pid"], e["tid"]), []).append(e)
        for spans in tracks.values():
            open_ends = []
            for e in sorted(spans, key=lambda e: (e["ts"], -e["dur"])):
                while open_ends and open_ends[-1] <= e["ts"] + SLACK_US:
                    open_ends.pop()
                end = e["ts"] + e["dur"]
                if open_ends:
                    self.test.assertLessEqual(end, open_ends[-1] + SLACK_US, e)
                open_ends.append(end)

    def check_arrows(self):
        """Every arrow leads from a span that sends to a later span, of another process, that receives the same message."""
        starts = {e["id"]: e for e in self.of("s")}
        ends = {e["id"]: e for e in self.of("f")}
        self.test.assertEqual(len(starts), len(self.of("s")))
        self.test.assertEqual(starts.keys(), ends.keys())
        at = {}
        for e in self.of("X"):
            at.setdefault((e["pid"], e["tid"], e["ts"]), set()).add(e["name"])
        for id, start in starts.items():
            end = ends[id]
            self.test.assertNotEqual(start["pid"], end["pid"])
            self.test.assertLessEqual(start["ts"], end["ts"])
            self.test.assertIn(f"send {start['name']}", at[start["pid"], start["tid"], start["ts"]])
            self.test.assertIn(f"receive {start['name']}", at[end["pid"], end["tid"], end["ts"]])

    def messages(self):
        return {(self.names[s["pid"]], s["name"], self.names[f["pid"]])
                for s in self.of("s") for f in self.of("f") if s["id"] == f["id"]}


class Trace(Case):
    def trace(self, run, *arguments):
        out = self.folder / "trace.json"
        said = self.command("trace", run, *arguments, "-o", out)
        self.assertIn("ui.perfetto.dev", said)
        return Timeline(self, out)

    def check_steps(self, line, steps, trainers, layers):
        """Checks that every trainer has each of the steps, with all spans of a step."""
        for trainer in trainers:
            for step in steps:
                span = line.spans(trainer, f"step {step}", "compute")
                self.assertEqual(len(span), 1, f"{trainer}, step {step}")
                inside = [e["name"] for e in line.spans(trainer)
                          if span[0]["ts"] <= e["ts"] and e["ts"] + e["dur"] <= span[0]["ts"] + span[0]["dur"] + SLACK_US]
                for layer in range(layers):
                    self.assertIn(f"forward block {layer}", inside)
                    self.assertIn(f"backward block {layer}", inside)
                for name in ("data", "forward embeddings", "forward and backward head", "backward embeddings", "vote", "optimizer",
                             "all_gather", "reduce_scatter_leaves", "all_reduce_partials"):
                    self.assertIn(name, inside)
            for name, communicator in (("all_gather", "shard"), ("reduce_scatter_leaves", "shard"), ("all_reduce_partials", "replicate")):
                of_track = [e for e in line.spans(trainer, name) if e["args"]["communicator"].startswith(communicator + "@")]
                self.assertTrue(of_track)
                self.assertTrue(all(e["args"]["sent_bytes"] > 0 and e["args"]["received_bytes"] > 0 for e in of_track))

    def test_traces_of_selected_steps_and_of_recoveries(self):
        flags = [*self.layout(2, 2), "--train.max_steps=100000", "--metrics.trace_steps=[3, 4, 20]"]
        run, process = self.start("run", *flags)
        trainers = ["n0.0", "n0.1", "n1.0", "n1.1"]
        self.wait_for(lambda: last_step(run) >= 25, "step 25")
        names = self.wait_for(lambda: self.whole(run, 2), "two traces")
        self.assertEqual(names, ["step-00000020", "steps-00000003-00000004"])
        line = self.trace(run, "steps-00000003-00000004")
        self.assertLessEqual({"recovery", "supervisor", "n0 agent", "n1 agent", *trainers}, set(line.processes()))
        self.check_steps(line, (3, 4), trainers, layers=2)
        self.check_steps(self.trace(run, "step-00000020"), (20,), trainers, layers=2)
        self.assertLessEqual({("n0.0", "StepDone", "n0 agent"), ("n1 agent", "StepDone", "supervisor")}, line.messages())

        # Selected from the console while the run trains.
        self.command("console", run, "-c", "trace next 2")
        self.assertIn(("command", "trace next 2"), [(e["kind"], e["subject"]) for e in lines(run / "events.jsonl")])
        names = self.wait_for(lambda: self.whole(run, 3), "the third")
        first = int(names[-1].split("-")[1])
        self.check_steps(self.trace(run, names[-1]), (first, first + 1), trainers, layers=2)
        self.command("console", run, "-c", "trace 1", code=64)

        # A recovery: the spans of the killed trainer, and of the other trainers until they continue.
        before = trainer_pids(run)["n1.0"]
        kill(before)
        self.wait_for(lambda: events(run, "recovered"), "recovery")
        self.wait_for(lambda: self.whole(run, 4), "its trace")
        self.check_recovery(run, self.trace(run))

        # The loss of a supervisor is an incident. The new supervisor writes its own part of the trace.
        self.wait_for(lambda: events(run, "standby_appointed"), "a standby")
        self.command("console", run, "-c", "inject kill_supervisor supervisor")
        self.wait_for(lambda: self.whole(run, 5), "its trace")
        line = self.trace(run)
        incidents = [e for e in line.spans("recovery") if e["name"].startswith("incident ")]
        self.assertEqual(incidents[-1]["name"], "incident 2: supervisor")
        self.assertTrue(line.spans("n0.0", "all_gather"))

        # Selected during a pause: the first step after the pause is traced.
        self.command("console", run, "-c", "pause")
        self.wait_for(lambda: status(run)["paused"] and all(t["state"] == "idle" for n in status(run)["nodes"] for t in n["trainers"]), "a pause")
        self.command("console", run, "-c", "trace", "-c", "resume")
        single = self.wait_for(lambda: [name for name in self.whole(run, 6) or [] if name.startswith("step-")][1:], "the trace selected during the pause")
        self.check_steps(self.trace(run, single[0]), (int(single[0].split("-")[1]),), trainers, layers=2)
        process.send_signal(signal.SIGINT)
        self.assertEqual(process.wait(60), 0, process.stdout.read())
        self.assertIn("each sample exactly once", self.verify(run))

    def whole(self, run, count):
        """Names of the complete traces if there are at least `count`; otherwise None."""
        folders = [f for f in (run / "traces").iterdir() if f.is_dir()] if (run / "traces").exists() else []
        names = sorted(f.name for f in folders if {p.name for p in f.iterdir()} >= {"n0.jsonl", "n1.jsonl", "supervisor.jsonl"})
        return names if len(names) >= count else None

    def check_recovery(self, run, line):
        told = [e for e in lines(run / "events.jsonl") if e.get("incident") == 1]
        recovered = [e for e in told if e["kind"] == "recovered"][0]
        incidents = [e for e in line.spans("recovery") if e["name"].startswith("incident ")]
        self.assertEqual([e["name"] for e in incidents], ["incident 1: n1.0"])
        begin, end = incidents[0]["ts"], incidents[0]["ts"] + incidents[0]["dur"]
        self.assertEqual(incidents[0]["args"]["summary"], recovered["reason"])
        phases = [e["name"] for e in line.spans("recovery") if e is not incidents[0]]
        self.assertEqual(phases, [e["phase"] for e in told if e["phase"]])
        self.assertEqual((phases[0], phases[-1]), ("detect", "resume"))
        # The killed process and its replacement.
        self.assertEqual(line.processes().count("n1.0"), 2)
        for trainer in ("n0.0", "n0.1", "n1.1"):
            steps = sorted(line.spans(trainer, thread="compute"), key=lambda e: e["ts"])
            steps = [e for e in steps if e["name"].startswith("step ")]
            joined = line.spans(trainer, f"join generation {recovered['generation']}")
            self.assertEqual(len(joined), 1)
            last = [e for e in steps if e["ts"] < joined[0]["ts"]][-1]
            following = [e for e in steps if e["ts"] > joined[0]["ts"]][0]
            self.assertLess(begin, following["ts"])
            self.assertGreater(end, last["ts"] + last["dur"])
        self.assertLessEqual({("supervisor", "FenceGeneration", "n0 agent"), ("n0 agent", "FenceGeneration", "n0.0"),
                              ("supervisor", "JoinGeneration", "n1 agent"), ("n1 agent", "JoinTrainer", "n1.0")}, line.messages())

    def test_no_traces_with_trace_events_0(self):
        run = self.train("run", *self.layout(1, 1), "--train.max_steps=3", "--metrics.trace_events=0")
        self.assertFalse((run / "traces").exists())
        self.command("trace", run, code=65)
        self.command("train", self.config, f"--run={self.folder}/no", "--metrics.trace_steps=[1]", "--metrics.trace_events=0", code=78)
