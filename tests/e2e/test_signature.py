"""The numerics signature (SIGNATURE-1): where it stands, and what a start with another one does."""

import json
import shutil
import unittest

from common import TINY, Case, events


def start(run):
    """What control/manifest.json says of the newest start."""
    return json.loads((run / "control/manifest.json").read_text())["starts"][-1]


def changes(run):
    """The changes of all starts, by the events."""
    return {e["subject"]: e["reason"] for e in events(run, "changed")}


class Signature(Case):
    def signature(self, run):
        """That of the newest checkpoint."""
        line, = [line for line in self.command("digest", run).splitlines() if line.startswith("signature ")]
        return line.split()[1]

    def refused(self, run, *overrides):
        """What a start that is refused says on stderr."""
        self.command("train", self.config, f"--run={run}", *overrides, code=78)
        return self.stderr

    def test_it_stands_everywhere_and_the_layout_is_no_part_of_it(self):
        run = self.train("a", "--train.max_steps=2", *self.layout(2, 1))
        shown = self.command("config", "show", self.config, "--train.max_steps=2", "--train.global_batch_size=2")
        signature, = [line.split()[1] for line in shown.splitlines() if line.split()[:1] == ["signature"]]
        self.assertEqual(len(signature), 32)
        self.assertEqual(self.signature(run), signature)
        self.assertEqual(start(run)["signature"]["hash"], signature)
        self.assertEqual(json.loads(self.command("status", run, "--json"))["signature"], signature)
        self.assertIn(f"signature: {signature}\n", self.command("status", run))
        # The same text and, in any layout, the same hash.
        text = self.command("config", "show", run / "config.toml", "--signature")
        fields = dict(line.split(" = ", 1) for line in text.splitlines())
        self.assertEqual(fields, start(run)["signature"]["fields"])
        self.assertEqual(fields["arithmetic.version"], "2")
        checkpoint = json.loads((run / "checkpoints/latest/manifest.json").read_text())
        self.assertEqual(checkpoint["resume"]["signature"], {"hash": signature, "fields": fields})
        self.command("resume", run, "--train.max_steps=3", "--train.learning_rate=1e-3", *self.layout(1, 2))
        # A recipe may change, and an event tells it; the layout is none of it.
        self.assertEqual(list(changes(run)), ["signature", "train.max_steps", "train.learning_rate", "train.min_learning_rate",
                                              "cluster.nodes", "cluster.trainers_per_node", ""])
        other = self.signature(run)
        self.assertEqual(changes(run)["signature"],
                         f"was {signature} and is now {other}: steps from 3 on have other bits than with the old one")
        self.assertEqual([type(s["signature"].get("fields")) for s in json.loads((run / "control/manifest.json").read_text())["starts"]],
                         [type(None), dict])  # the newest start's say all

    def test_a_key_that_changes_bits_alone_is_refused_or_named(self):
        self.write_config({**TINY, "train.global_batch_size": 2})
        run = self.train("a", "--train.max_steps=2")
        before = self.signature(run)
        error = self.refused(run, "--train.max_steps=4", "--train.precision=bf16", "--train.micro_batch_size=2")
        self.assertIn('train.micro_batch_size was 1 and is now 2, train.precision was "fp32" and is now "bf16"', error)
        self.assertIn("; to go on with other bits, add --change-numerics=train.micro_batch_size,train.precision;", error)
        self.assertNotIn("--change-numerics", self.refused(run, "--train.precision=bf16", "--run.seed=5"))
        self.assertEqual(self.signature(run), before)
        error = self.refused(run, "--train.max_steps=4", "--train.precision=bf16", "--change-numerics=train.fp8")
        self.assertIn('train.precision was "fp32"', error)
        self.assertIn("a run cannot change this key", self.refused(run, "--change-numerics=model.dim"))
        self.train("a", "--train.max_steps=4", "--train.precision=bf16", "--change-numerics", "train.fp8,train.precision",
                   "--change-numerics", "arithmetic.rows")
        self.assertEqual(changes(run)["train.precision"], 'was "fp32" and is now "bf16"; --change-numerics allows it')
        self.assertIn(f"was {before} and is now {self.signature(run)}: steps from 3 on", changes(run)["signature"])
        self.verify(run)
        # It is named for one start, whose change counts from then on.
        self.assertIn('change_numerics = ""', (run / "config.toml").read_text())
        self.assertIn('train.precision was "bf16"', self.refused(run, "--train.max_steps=6", "--train.precision=fp32"))
        self.train("a", "--train.max_steps=6", "--train.precision=bf16")

    def test_another_arithmetic_is_refused_or_named(self):
        run = self.train("a", "--train.max_steps=2")
        path = run / "control/manifest.json"
        manifest = json.loads(path.read_text())
        fields = manifest["starts"][-1]["signature"]["fields"]
        fields["arithmetic.query_rows"], fields["arithmetic.libtorch"] = "32", "1.0"  # of another program
        path.write_text(json.dumps(manifest))
        now = {line.split(" = ")[0]: line.split(" = ")[1]
               for line in self.command("config", "show", run / "config.toml", "--signature").splitlines()}
        self.command("resume", run, "--train.max_steps=4", code=78)
        differ = f"arithmetic.libtorch was 1.0 and is now {now['arithmetic.libtorch']}, arithmetic.query_rows was 32 and is now 64"
        self.assertIn(f"has another numerics signature: {differ}; its next steps would have other bits than those so far", self.stderr)
        named = "--change-numerics=arithmetic.libtorch,arithmetic.query_rows"
        self.assertIn(f"to go on with other bits, add {named}\n", self.stderr)
        self.command("resume", run, "--train.max_steps=4", named.split(",")[0], code=78)
        self.command("resume", "--change-numerics", *named.split("=")[1:], run, "--train.max_steps=4")
        self.assertEqual(changes(run)["arithmetic.query_rows"], "was 32 and is now 64; --change-numerics allows it")
        # Recorded: the next start, with this program, needs no name.
        self.command("resume", run, "--train.max_steps=6")

    def test_a_run_of_an_earlier_version_keeps_one_from_then_on(self):
        parent = self.train("parent", "--train.max_steps=2")
        run = self.train("a", f"--from={parent}", "--with-optimizer", "--train.max_steps=3", "--train.precision=bf16")
        # A new run may differ from its parent. It tells how.
        self.assertEqual(changes(run), {"train.precision": 'was "fp32" in run.from and is "bf16" in this run'})
        # The copy of the parent's checkpoint has no signature, as those of earlier versions.
        shutil.rmtree(run / "checkpoints/step-00000003")
        self.assertEqual(self.signature(run), "none")
        path = run / "control/manifest.json"
        manifest = json.loads(path.read_text())
        del manifest["starts"][-1]["signature"]
        path.write_text(json.dumps(manifest))
        self.command("resume", run, "--train.max_steps=4")
        told = self.stderr
        kept = f"is kept for the steps from 3 on: {self.signature(run)}; the version that has trained this run so far kept none"
        self.assertEqual(changes(run)["signature"], kept)
        self.assertIn(f"changed: signature {kept}\n", told)


if __name__ == "__main__":
    unittest.main()
