"""Commands under limits (ulimit) that are too low for them end soon, with a sentence that names the limit."""

import subprocess
import unittest

from common import PROGRAM, Case


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


if __name__ == "__main__":
    unittest.main()
