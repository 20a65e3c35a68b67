"""The memory of a run needs no name and no room in /dev/shm, which RemoveIPC of logind and cleaners empty, and which containers keep
small: a run with 64 KiB of it survives kills of a trainer, an agent and the supervisor, and its bits are those of any other run."""

import os
import pathlib
import shutil
import signal
import subprocess
import unittest

from common import PROGRAM, Case, kill, last_step, leftovers, lines, status, trainer_pids

MOUNTS = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--map-root-user"]), "sh", "-c",
          'mount -t tmpfs -o size=64k tmpfs /dev/shm && exec "$@"', "sh"]
CAN_MOUNT = bool(shutil.which("unshare")) and subprocess.run([*MOUNTS, "true"], capture_output=True).returncode == 0


@unittest.skipUnless(CAN_MOUNT, "no other /dev/shm can be mounted here")
class NoNames(Case):
    warm = True
    layout_of_all = ["--train.global_batch_size=16", "--cluster.nodes=2", "--cluster.trainers_per_node=2", "--parallel.group_nodes=1",
                     "--parallel.strategy=hybrid_shard"]

    def start_confined(self, *overrides):
        run = self.folder / "run"
        process = subprocess.Popen([*MOUNTS, PROGRAM, "train", str(self.config), f"--run={run}", *self.layout_of_all, *overrides],
                                   cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.addCleanup(lambda: process.poll() is None and process.kill())
        return run, process

    def names(self, pid):
        """What lies in the /dev/shm of a process."""
        return os.listdir(f"/proc/{pid}/root/dev/shm")

    def test_faults_cost_no_step_and_change_no_bit(self):
        want = self.undisturbed(*self.layout_of_all, "--train.max_steps=200")
        faults = [(10, "kill_trainer", "n1.0"), (60, "kill_agent", "n0"), (120, "kill_supervisor", "supervisor"), (150, "kill_trainer", "n0.1")]
        keys = ", ".join(f'{{ step = {step}, kind = "{kind}", target = "{target}" }}' for step, kind, target in faults)
        run, process = self.start_confined("--train.max_steps=200", f"--inject.faults=[{keys}]")
        output, _ = process.communicate(timeout=170)
        self.assertEqual(process.returncode, 0, output)
        self.assertEqual(self.digest(run), want)
        self.assertIn("each sample exactly once", self.verify(run))
        self.assertEqual([m["step"] for m in lines(run / "metrics.jsonl")], list(range(1, 201)))
        self.assertFalse(leftovers(run))

    def test_what_lies_in_dev_shm_does_not_matter(self):
        run, process = self.start_confined("--train.max_steps=100000")
        self.wait_for(lambda: last_step(run) >= 5, "step 5")
        before = trainer_pids(run)
        self.assertEqual(self.names(before["n1.0"]), [])
        shared = pathlib.Path(f"/proc/{before['n1.0']}/root/dev/shm")
        subprocess.run(["sh", "-c", f"head -c 65536 /dev/zero >{shared}/full"], stderr=subprocess.DEVNULL)  # other programs fill it
        for trainer in ("n1.0", "n0.1"):
            step, old = last_step(run), trainer_pids(run)[trainer]
            kill(old)
            self.wait_for(lambda: trainer_pids(run).get(trainer) not in (old, 0, None), f"another process for {trainer}")
            self.wait_for(lambda: last_step(run) > step + 5, "further steps")
        self.assertEqual({t["name"] for n in status(run)["nodes"] for t in n["trainers"] if t["pid"]}, set(before))
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 0, output)
        steps = [m["step"] for m in lines(run / "metrics.jsonl")]
        self.assertEqual(steps, list(range(1, len(steps) + 1)), "no step was lost")
