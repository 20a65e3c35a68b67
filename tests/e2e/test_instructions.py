"""The instruction set of a run (BACKEND-3). MKL_ENABLE_INSTRUCTIONS makes processes believe that their host has no better one."""

import os
import pathlib
import subprocess
import unittest

from common import PROGRAM, Case, events, kill, last_step, leftovers, lines, status

OLD = {"MKL_ENABLE_INSTRUCTIONS": "AVX2"}
FLAGS = pathlib.Path("/proc/cpuinfo").read_text().partition("flags")[2].partition("\n")[0].split()


@unittest.skipUnless("avx512vl" in FLAGS and "avx512dq" in FLAGS, "this CPU has no AVX-512: all sets of its processes are equal")
class Instructions(Case):
    def setUp(self):
        super().setUp()
        self.run_folder = self.folder / "run"
        self.steps = ["--train.global_batch_size=4", "--train.schedule=constant", "--train.warmup_steps=0", "--train.max_steps=120"]
        self.addCleanup(lambda: kill(*leftovers(self.run_folder)))

    def host(self, rank, *more, env=None):
        """The command of one of two hosts. The file log-RANK has its stderr."""
        with open(self.folder / f"log-{rank}", "a") as errors:
            process = subprocess.Popen([PROGRAM, "train", str(self.config), f"--run={self.run_folder}", "--nnodes=2", f"--node-rank={rank}",
                                        *self.steps, *more], cwd=self.folder, env={**os.environ, **(env or {})},
                                       stdout=subprocess.DEVNULL, stderr=errors, start_new_session=True)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process

    def end(self, *commands, code=0):
        for command in commands:
            self.assertEqual(command.wait(120), code, [(self.folder / f"log-{rank}").read_text() for rank in (0, 1)])

    def instructions(self, run):
        return (run / "control/instructions").read_text().strip()

    def test_two_hosts_take_the_best_that_both_have(self):
        # A trainer on the better host is replaced by a process that has been waiting.
        fault = ["--inject.faults=[{ step = 6, kind = \"kill_trainer\", target = \"n0.0\" }]", "--supervision.warm_processes=1"]
        self.end(*[self.host(rank, *self.layout(2, 1), *fault, env=OLD if rank else None) for rank in (0, 1)])
        self.assertTrue(events(self.run_folder, "recovered"))
        self.assertEqual(self.instructions(self.run_folder), "avx2")
        chosen, = events(self.run_folder, "instructions")
        self.assertEqual((chosen["subject"], chosen["reason"]), ("avx2", "the best that all hosts have; n1 has none better"))
        old = self.train("old", *self.steps, "--cluster.instructions=avx2")
        new = self.train("new", *self.steps)
        self.assertEqual(self.digest(self.run_folder), self.digest(old))
        self.assertNotEqual(self.digest(self.run_folder), self.digest(new))
        # What reads the run later obeys, too, and so does a start on a better host.
        of_old_host = self.command("evaluate", self.run_folder, "--json", env=OLD)
        self.assertEqual(self.command("evaluate", self.run_folder, "--json"), of_old_host)
        (self.run_folder / "control/instructions").rename(self.folder / "record")
        self.assertNotEqual(self.command("evaluate", self.run_folder, "--json"), of_old_host)
        (self.folder / "record").rename(self.run_folder / "control/instructions")
        self.train("run", *self.steps, "--train.max_steps=125")
        self.train("old", *self.steps, "--train.max_steps=125")
        self.assertEqual(self.digest(self.run_folder), self.digest(old))

    def test_a_host_that_lacks_them_is_refused_and_not_called_damaged(self):
        more = [*self.layout(1, 1), "--train.max_steps=1000000"]
        first, second = self.host(0, *more), self.host(1, *more)
        self.wait_for(lambda: last_step(self.run_folder) >= 3, "step 3")
        self.slow_down(self.run_folder, fault="slow_node")
        best = self.instructions(self.run_folder)
        spare = next(n["name"] for n in status(self.run_folder)["nodes"] if n["group"] is None)
        rank = int(spare[1:])
        (first, second)[rank].kill()
        (first, second)[rank].wait()
        self.wait_for(lambda: events(self.run_folder, "node_lost"), "the loss of the spare")
        again = self.host(rank, *more, env=OLD)
        drained = self.wait_for(lambda: events(self.run_folder, "drained"), "the refusal")
        self.assertEqual([(e["subject"], e["reason"]) for e in drained],
                         [(spare, f"this run computes with {best} instructions, and the best of its host are avx2; use a host that has "
                           "them, or train the run's weights in a new run (train --from)")])
        said = subprocess.run([PROGRAM, "console", self.run_folder, "-c", f"undrain {spare}"], capture_output=True, text=True)
        self.assertIn(f"{spare} cannot train: this run computes with {best}", said.stdout + said.stderr)
        self.assertFalse([e for e in events(self.run_folder, "check_failed", "suspected") if e["subject"].startswith(spare)])
        at = last_step(self.run_folder)
        self.wait_for(lambda: last_step(self.run_folder) > at, "a further step")
        for command in ((first, second)[1 - rank], again):
            command.terminate()
        self.end((first, second)[1 - rank], again, code=75)

    def test_a_resumed_run_is_held_to_its_own(self):
        self.train("run", *self.steps)
        best = self.instructions(self.run_folder)
        longer = ["train", self.config, f"--run={self.run_folder}", *self.steps, "--train.max_steps=125"]
        self.command(*longer, env=OLD, code=78)
        self.assertIn(f"this run computes with {best} instructions, and the best of its host are avx2", self.stderr)
        self.command(*longer, "--cluster.instructions=avx2", code=78)
        self.assertIn(f'cluster.instructions = "avx2": run computes with {best}, and others give other bits', self.stderr.replace(str(self.folder) + "/", ""))
        self.command("evaluate", self.run_folder, env=OLD)
        self.assertIn(f"the run's trainers compute with {best} instructions, and the best of this host are avx2", self.stderr)
        self.assertEqual(last_step(self.run_folder), 120)

    def test_a_run_of_an_earlier_version_takes_those_of_its_next_start(self):
        self.train("run", *self.steps)
        (self.run_folder / "control/instructions").unlink()
        self.command("train", self.config, f"--run={self.run_folder}", *self.steps, "--train.max_steps=125", env=OLD)
        self.assertEqual(self.instructions(self.run_folder), "avx2")
        self.assertEqual([e["reason"] for e in events(self.run_folder, "instructions")][1:],
                         ["the best that all hosts have; none are recorded for the steps before"])

    @unittest.skipIf("amx_bf16" in FLAGS, "this CPU has AMX")
    def test_instructions_that_no_host_has_are_refused(self):
        self.command("train", self.config, f"--run={self.run_folder}", *self.steps, "--cluster.instructions=amx", code=78)
        self.assertIn("this run computes with amx instructions, and the best of its host are avx512", self.stderr)
        # Nothing was computed with them: another start may choose.
        self.train("run", *self.steps, "--cluster.instructions=avx2")
        self.assertEqual(self.instructions(self.run_folder), "avx2")
        self.assertEqual(lines(self.run_folder / "metrics.jsonl")[-1]["step"], 120)


if __name__ == "__main__":
    unittest.main()
