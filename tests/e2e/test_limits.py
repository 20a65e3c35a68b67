"""Commands under limits (ulimit) that are too low for them end soon, with a sentence that names the limit."""

import resource
import signal
import subprocess

from common import PROGRAM, Case, kill, last_step, leftovers, status, trainer_pids


class Limits(Case):
    def limited(self, option, *words):
        """The exit code and the lines of a command under a limit."""
        done = subprocess.run(["bash", "-c", f'ulimit {option} && exec "$@"', "bash", PROGRAM, *map(str, words)], capture_output=True, text=True,
                              timeout=60, cwd=self.folder)
        return done.returncode, (done.stdout + done.stderr).splitlines()

    def test_train_names_the_limit_before_it_starts_a_process(self):
        words = ("train", self.config, f"--run={self.folder / 'run'}", *self.layout(2, 2), "--train.global_batch_size=16", "--train.max_steps=5")
        for option, said in (("-v 1000000", "train needs an address space (ulimit -v) of at least "), ("-n 16", "(ulimit -n) of at least 64, but the limit is 16"),
                             ("-s 64", "needs a stack (ulimit -s) of at least 1024 KiB, but the limit is 64 KiB")):
            code, lines = self.limited(option, *words)
            self.assertEqual(code, 74, lines)
            self.assertIn(said, lines[-1])

    def test_the_heaps_of_threads_need_little_address_space(self):
        run = self.folder / "run"
        process = subprocess.Popen(["bash", "-c", 'ulimit -v 1500000 && exec "$@"', "bash", PROGRAM, "train", self.config, f"--run={run}",
                                    *self.layout(2, 2), "--train.global_batch_size=8", "--train.max_steps=1000000"], cwd=self.folder,
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.addCleanup(lambda: process.poll() is None and process.kill())
        self.wait_for(lambda: last_step(run) >= 3, "step 3")
        for node in status(run)["nodes"]:
            [peak] = [line.split()[1] for line in open(f"/proc/{node['pid']}/status") if line.startswith("VmPeak:")]
            self.assertLess(int(peak), 600_000)  # KiB; 1,300,000 with a heap for each thread
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(60), 75, process.stdout.read())
        self.assertFalse(leftovers(run))

    def test_an_agent_without_memory_says_so(self):
        """The limit is set once the run trains, so that no check can foresee it."""
        run, process = self.start("run", "--train.global_batch_size=4", "--train.max_steps=1000000", "--supervision.max_restarts=0",
                                  "--cluster.join_timeout_ms=3000")
        self.wait_for(lambda: last_step(run) >= 3, "step 3")
        agent = status(run)["nodes"][0]["pid"]
        resource.prlimit(agent, resource.RLIMIT_AS, (1 << 20, 1 << 20))
        trainer = trainer_pids(run)["n0.0"]
        kill(trainer)  # the agent starts another one
        self.assertNotEqual(process.wait(60), 0)
        self.assertIn("the address space (ulimit -v)", process.stdout.read())

    def test_a_soft_limit_of_the_stack_is_raised(self):
        code, lines = self.limited("-S -s 64", "train", self.config, f"--run={self.folder / 'run'}", "--train.global_batch_size=4", "--train.max_steps=3")
        self.assertEqual(code, 0, lines)

    def test_a_program_that_does_not_fit_is_told(self):
        run = self.train("run", "--train.global_batch_size=4", "--train.max_steps=3")
        for command in ("generate", "evaluate"):
            code, lines = self.limited("-v 400000", command, run)
            self.assertEqual((code, len(lines)), (74, 1), lines)
            self.assertIn(f"{command} needs an address space (ulimit -v)", lines[0])
        code, lines = self.limited("-v 100000", "doctor")
        self.assertEqual(code, 74, lines)
        self.assertIn("the address space (ulimit -v) is limited to 100000 KiB", lines[-1])
        for words in (("status", run), ("verify", run), ("config", "show", self.config)):  # which need little
            self.assertEqual(self.limited("-n 16", *words)[0], 0)
            self.assertEqual(self.limited("-v 100000", *words)[0], 0)
