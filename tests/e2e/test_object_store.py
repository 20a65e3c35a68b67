"""Checkpoints in an object store: a lost folder, a slow server, a killed upload. The server is moto, behind a proxy of our
own (tests/runtime/object_store/s3_server.py) that checks every signature and injects faults."""

import os
import shutil
import signal

from bucket import SECRET, BucketCase
from common import events, kill_all, last_step, leftovers, lines


class ObjectStore(BucketCase):
    def setUp(self):
        super().setUp()
        self.url = "s3://bucket/runs/run"
        self.upload = [f"--checkpoint.upload={self.url}", "--checkpoint.disk_every_steps=2"]

    def test_a_run_whose_folder_is_lost_continues_bit_for_bit(self):
        want = self.undisturbed(*self.flat, "--train.max_steps=8")
        run = self.train("run", *self.flat, *self.upload, "--train.max_steps=4")
        told = [e["reason"] for e in events(run, "checkpoint_uploaded")]
        if f"step 4 is in {self.url}" not in told:  # the supervisor ended before
            self.assertIn(f"uploaded step 4 to {self.url}", self.stderr)
        self.assert_no_secret(run)
        shown = self.command("config", "show", self.config, *self.upload)
        self.assertNotIn(SECRET, shown)
        shutil.rmtree(run)
        # SIGNATURE-1: what was trained tells the numerics, although config.toml is lost.
        self.train("run", *self.flat, *self.upload, "--train.max_steps=8", "--run.seed=5", code=78)
        self.assertIn(f"downloading step 4 from {self.url}", self.stderr)
        self.assertIn("run has another numerics signature: data.seed was 1337 and is now 5, run.seed was 1337 and is now 5;", self.stderr)
        run = self.train("run", *self.flat, *self.upload, "--train.max_steps=8")
        self.assertIn("train.max_steps was 4 and is now 8", [f"{e['subject']} {e['reason']}" for e in events(run, "changed")])
        self.assertEqual(self.digest(run), want)
        self.assertIn("each sample exactly once", self.verify(run))
        self.assert_no_secret(run)
        self.assertIn("3 of run \"run\" have all their objects, and all checksums match", self.command("verify", self.url))
        self.command("verify", "s3://bucket/runs/none", code=65)
        self.assertIn("there is no object `latest`", self.stderr)
        # A run of another name does not take it over; a branch reads it.
        self.train("other", *self.flat, *self.upload, "--train.max_steps=8", code=78)
        self.assertIn('holds the checkpoints of another run, "run"', self.stderr)
        branch = self.train("branch", *self.flat, "--train.max_steps=10", "--from", self.url, "--with-optimizer")
        self.assertEqual(lines(branch / "metrics.jsonl")[0]["step"], 9)
        self.train("old", *self.flat, "--train.max_steps=10", "--from", f"{self.url}/step-5", code=65)
        self.assertIn("there is no such checkpoint; there are those of step", self.stderr)

    def test_a_rate_that_was_set_is_in_the_bucket_too(self):
        run, process = self.start("run", *self.flat, *self.upload, "--train.schedule=constant", "--train.max_steps=100000")
        self.wait_for(lambda: last_step(run) >= 2, "step 2")
        self.command("console", run, "-c", "set train.learning_rate 0.004")
        self.wait_for(lambda: lines(run / "metrics.jsonl")[-1]["lr"] == .004, "a step with the new rate")
        process.send_signal(signal.SIGINT)
        self.assertEqual(process.wait(60), 0, process.stdout.read())
        keys = [*self.flat, "--train.schedule=constant", f"--train.max_steps={last_step(run) + 3}"]
        shutil.rmtree(run)
        branch = self.train("branch", *keys, "--from", self.url, "--with-optimizer")
        self.assertIn(f"goes on with 0.004, which was set in the console of {self.url}", self.stderr)
        self.assertEqual({m["lr"] for m in lines(branch / "metrics.jsonl")}, {.004})
        run = self.train("run", *keys, *self.upload)  # its folder was lost
        self.assertEqual({m["lr"] for m in lines(run / "metrics.jsonl")}, {.004})

    def test_the_instructions_of_a_run_are_in_the_bucket_too(self):
        keys = [*self.flat, *self.upload]
        shutil.rmtree(self.train("run", *keys, "--train.max_steps=2", "--cluster.instructions=avx2"))
        run = self.train("run", *keys, "--train.max_steps=4")
        self.assertEqual((run / "control/instructions").read_text(), "avx2\n")
        self.assertFalse(events(run, "instructions"))

    def test_training_goes_on_while_the_server_hangs(self):
        self.faults({"match": "step-", "kind": "hang"})
        run, process = self.start("run", *self.flat, *self.upload, "--train.max_steps=12")
        self.wait_for(lambda: self.requests("step-"), "an upload that hangs")
        self.wait_for(lambda: last_step(run) == 12, "the last step")
        self.faults()
        out, _ = process.communicate(timeout=120)
        self.assertEqual(process.returncode, 0, out)
        shutil.rmtree(run)
        self.train("run", *self.flat, *self.upload, "--train.max_steps=12")
        self.assertIn("downloading step 12 from", self.stderr)

    def test_a_run_that_is_killed_while_it_uploads_continues_from_a_complete_checkpoint(self):
        want = self.undisturbed(*self.flat, "--train.max_steps=10")
        self.train("run", *self.flat, *self.upload, "--train.max_steps=4")
        uploaded = len(self.requests("shard"))
        # The files of later checkpoints never arrive.
        self.faults({"match": "PUT .*step-.*shard", "kind": "hang"})
        run, process = self.start("run", *self.flat, *self.upload, "--train.max_steps=1000")
        self.wait_for(lambda: any(r.startswith("PUT") for r in self.requests("shard")[uploaded:]), "the upload that hangs")
        process.kill()
        kill_all(run)
        process.communicate(timeout=60)
        self.wait_for(lambda: not leftovers(run), "the end of all processes")
        self.faults()
        shutil.rmtree(run)
        run = self.train("run", *self.flat, *self.upload, "--train.max_steps=10")
        self.assertIn("downloading step 4 ", self.stderr)
        self.assertEqual(self.digest(run), want)

    def test_errors_of_the_store_say_what_to_do(self):
        os.environ["AWS_SECRET_ACCESS_KEY"] = "hidden-wrong-key"
        self.train("run", *self.flat, *self.upload, "--train.max_steps=2", code=78)
        self.assertIn("SignatureDoesNotMatch", self.stderr)
        self.assertNotIn("hidden-wrong-key", self.stderr)
        self.train("run", *self.flat, "--checkpoint.upload=s3://a:hidden@b/c", "--train.max_steps=2", code=78)
        self.assertNotIn("hidden@", self.stderr)
        del os.environ["AWS_SECRET_ACCESS_KEY"], os.environ["AWS_ACCESS_KEY_ID"]
        self.train("run", *self.flat, *self.upload, "--train.max_steps=2", code=78)
        self.assertIn("AWS_ACCESS_KEY_ID", self.stderr)
