"""A host whose name has 64 characters, the most that Linux allows: UCX cannot start there, so it is loaded only where it is used."""

import os
import shutil
import subprocess
import unittest
import unittest.mock

from common import BIN, PROGRAM, Case, last_step

NAMED = ["unshare", "--uts", *([] if os.geteuid() == 0 else ["--map-root-user"]), "sh", "-c",
         'printf %064d 0 >/proc/sys/kernel/hostname && exec "$@"', "sh"]
CAN_NAME = bool(shutil.which("unshare")) and subprocess.run([*NAMED, "true"], capture_output=True).returncode == 0


class HostName(Case):
    def named(self, *words, code=0):
        done = subprocess.run([*NAMED, PROGRAM, *map(str, words)], capture_output=True, text=True, timeout=120, cwd=self.folder)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done.stdout + done.stderr

    def test_the_programs_do_not_link_ucx(self):
        for program in ("simplescale", "simplescale-compute"):
            linked = subprocess.run([BIN / program], capture_output=True, text=True, env={**os.environ, "LD_TRACE_LOADED_OBJECTS": "1"}).stdout
            self.assertIn("libc.so.6", linked)
            self.assertNotIn("libuc", linked)

    @unittest.skipUnless(CAN_NAME, "the host's name cannot be changed here")
    def test_a_run_trains_on_a_host_with_a_long_name(self):
        run = self.folder / "run"
        self.named("train", self.config, f"--run={run}", *self.layout(2, 1), "--train.max_steps=3", "--train.global_batch_size=4")
        self.assertEqual(last_step(run), 3)
        self.assertIn("valid", self.named("verify", run))

    @unittest.skipUnless(CAN_NAME, "the host's name cannot be changed here")
    def test_a_trusted_network_is_refused_there_with_a_sentence(self):
        trusted = ("--transport.trusted_networks=127.0.0.0/8", "--train.max_steps=3")
        task = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_PROCID": "0", "SLURM_NTASKS": "2", "SLURMD_NODENAME": "node1"}
        with unittest.mock.patch.dict(os.environ, task):  # the other task is on another host
            said = self.named("train", self.config, f"--run={self.folder / 'run'}", *trusted, *self.layout(2, 1),
                              "--train.global_batch_size=4", code=78)
        self.assertIn("UCX cannot start on a host whose name has 64 characters", said)
        self.assertEqual(len(said.splitlines()), 1, said)
        self.assertIn("UCX cannot start", self.named("doctor", self.config, *trusted, code=3))
