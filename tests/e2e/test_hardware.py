"""GPUs and network cards of a simulated /sys: `doctor` shows them, and trainers run on the CPUs near their GPUs."""

import json
import os

from common import Case, last_step, trainer_pids


class Hardware(Case):
    def setUp(self):
        super().setUp()
        self.root = self.folder / "root"
        self.numa = self.folder / "numa"
        setting = self.root / "sys/kernel/mm/transparent_hugepage/shmem_enabled"
        setting.parent.mkdir(parents=True)
        setting.write_text("always [within_size] advise never deny force\n")
        os.environ["SIMPLESCALE_HARDWARE"] = str(self.root)
        os.environ["SIMPLESCALE_NUMA"] = str(self.numa)
        self.addCleanup(os.environ.pop, "SIMPLESCALE_HARDWARE")
        self.addCleanup(os.environ.pop, "SIMPLESCALE_NUMA")

    def add_gpu(self, number, node, cpu):
        device = self.root / f"sys/bus/pci/devices/0000:{number + 1:02}:00.0"
        device.mkdir(parents=True)
        for name, text in {"vendor": "0x10de", "class": "0x030200", "device": "0x2330", "numa_node": node, "local_cpulist": cpu,
                           "current_link_speed": "32.0 GT/s PCIe", "current_link_width": 8, "max_link_width": 16}.items():
            (device / name).write_text(f"{text}\n")
        (self.numa / f"node{node}").mkdir(parents=True, exist_ok=True)
        (self.numa / f"node{node}/cpulist").write_text(f"{cpu}\n")

    def test_doctor_shows_gpus_and_what_will_be_slow(self):
        self.add_gpu(0, 1, "4-7")
        shown = self.command("doctor", self.config, "--train.max_steps=5")
        self.assertIn("GPU 0        0000:01:00.0 10de:2330, NUMA node 1, CPUs 4-7, 32.0 GT/s PCIe x8\nGPUDirect    by nothing\n", shown)
        slow = "GPU 0 (0000:01:00.0) has fewer lanes than it could have: 32.0 GT/s PCIe x8"
        self.assertIn(f"slow: {slow}\n", shown)
        self.assertIn("this machine is fit to train", shown)
        found = json.loads(self.command("doctor", "--json"))["hardware"]
        self.assertEqual((found["gpus"][0]["cpus"], found["slow"]), ("4-7", [slow]))
        task = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_PROCID": "0", "SLURM_NTASKS": "2", "SLURMD_NODENAME": "node1"}
        fleet = self.command("doctor", self.config, f"--run={self.folder / 'run'}", "--cluster.join_timeout_ms=1000", env=task, code=3)
        self.assertIn(f"slow: node1: {slow}\n", fleet)

    def test_gpus_that_auto_cannot_use_are_told(self):
        """libcuda.so.1 is a file that is no library, also on a machine with GPUs."""
        self.add_gpu(0, 1, "4-7")
        (self.folder / "libcuda.so.1").write_text("")
        no_driver = {"LD_LIBRARY_PATH": str(self.folder)}
        keys = ["--train.global_batch_size=4", "--train.max_steps=1"]
        told = "warning: {}this host has GPUs, but trains on its CPUs: no NVIDIA driver: "
        for device, expected in (("auto", True), ("cpu", False)):
            self.command("train", self.config, f"--run={self.folder / device}", *keys, f"--cluster.device={device}", env=no_driver)
            self.assertEqual(told.format("") in self.stderr, expected, self.stderr)
        task = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_PROCID": "0", "SLURM_NTASKS": "1", **no_driver}
        self.command("train", self.config, f"--run={self.folder / 'task'}", *keys, "--cluster.device=auto", env=task)
        self.assertIn(told.format("n0: "), self.stderr)

    def test_trainers_run_on_the_cpus_near_their_gpus(self):
        first, *_, last = sorted(os.sched_getaffinity(0)) * 2
        if first == last:
            self.skipTest("needs two CPUs")
        self.addCleanup(os.sched_setaffinity, 0, os.sched_getaffinity(0))
        os.sched_setaffinity(0, {first, last})
        self.add_gpu(0, 1, last)  # the other way round than in order
        self.add_gpu(1, 0, first)
        for other in (2, 3):
            self.add_gpu(other, 0, first)
        # What CUDA shows of them. Without a driver the command has nothing else to tell its agents.
        (self.folder / "libcuda.so.1").write_text("")
        for name, value in (("SIMPLESCALE_GPUS", "0000:01:00.0,0000:02:00.0"), ("LD_LIBRARY_PATH", str(self.folder))):
            os.environ[name] = value
            self.addCleanup(os.environ.pop, name)
        run, process = self.start("run", *self.layout(1, 2), "--train.global_batch_size=4", "--train.max_steps=1000000",
                                  "--cluster.device=auto")
        self.wait_for(lambda: last_step(run) >= 2, "two steps")
        near = {name: os.sched_getaffinity(pid) for name, pid in trainer_pids(run).items()}
        self.assertEqual(near, {"n0.0": {last}, "n0.1": {first}})
        process.terminate()
        process.communicate(timeout=60)
