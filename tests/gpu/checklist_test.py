"""The checklist itself, without a GPU: what it says of unfit machines, and what its report keeps if a part goes wrong."""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import checklist
import machine
import products
import processes

H100 = {"cuda": 13000, "name": "NVIDIA H100 80GB HBM3", "memory_mib": 81079, "major": 9, "minor": 0, "compute_mode": 0}
# A process that holds the pipes of the command that started it, and outlives it.
HANGS = ["sh", "-c", "setsid sleep 600 & echo $!; exec sleep 600"]


def running(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


class Parts(checklist.Checklist):
    """Parts that go wrong."""

    def tests(self):
        self.figures["first"] = 1
        processes.expect(False, "the second figure is wrong")

    def speed(self):
        self.figures["first"] = 2
        processes.call(HANGS, 5)

    def nccl(self):
        self.figures["child"] = subprocess.Popen(["sleep", "600"], start_new_session=True).pid

    def kernels(self):
        """A program that makes its step and does not end."""
        self.program.parent.mkdir()
        self.program.write_text("#!/bin/sh\nmkdir ${3#--run=} && echo {} > ${3#--run=}/metrics.jsonl && exec sleep 600\n")
        self.program.chmod(0o755)
        _, metrics, self.figures["save_s"] = self.train("micro", 64, 1, save_seconds=0.1)
        self.figures["steps"] = len(metrics)

    def memory(self):
        self.figures["first"] = 3
        os.kill(os.getpid(), signal.SIGTERM)

    def sanitizer(self):
        raise AssertionError("this part must not run")


class ReportTest(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))

    def code(self, out, names, gpu):
        return f"import sys; sys.path.insert(0, {str(pathlib.Path(__file__).parent)!r}); import checklist_test as t; " \
               f"t.run({str(self.folder / out)!r}, {names!r}, {gpu!r})"

    def run_parts(self, *names, gpu="a GPU", out="out.json"):
        """In a process of its own, as signals and children belong to a process. Its report and what it prints."""
        code = self.code(out, names, gpu)
        done = subprocess.run([sys.executable, "-B", "-c", code], capture_output=True, text=True, timeout=60)
        self.assertEqual(done.stderr, "")
        path = self.folder / out
        parts = json.loads(path.read_text())["parts"] if path.exists() else []
        return {part["part"]: part for part in parts}, done.stdout

    def test_a_failed_part_keeps_its_figures_and_the_next_part_runs(self):
        parts, _ = self.run_parts("tests", "nccl")
        self.assertEqual((parts["tests"]["verdict"], parts["tests"]["figures"]), ("FAILED", {"first": 1}))
        self.assertEqual(parts["tests"]["why"], "the second figure is wrong")
        self.assertEqual(parts["nccl"]["verdict"], "ok")

    def test_a_part_that_hangs_ends_with_all_its_processes(self):
        parts, _ = self.run_parts("speed")
        self.assertEqual((parts["speed"]["verdict"], parts["speed"]["figures"]), ("FAILED", {"first": 2}))
        self.assertIn("no end after 5 s", parts["speed"]["why"])
        self.assertFalse(running(int(parts["speed"]["why"].splitlines()[1])))

    def test_a_process_that_a_part_leaves_is_killed(self):
        parts, _ = self.run_parts("nccl")
        self.assertEqual(parts["nccl"]["figures"]["killed_processes"], 1)
        self.assertFalse(running(parts["nccl"]["figures"]["child"]))

    def test_the_steps_of_a_run_count_also_if_its_save_takes_too_long(self):
        parts, _ = self.run_parts("kernels")
        self.assertEqual((parts["kernels"]["why"], parts["kernels"]["figures"]), ("", {"save_s": None, "steps": 1}))

    def test_a_signal_ends_the_checklist_and_the_report_is_whole(self):
        parts, _ = self.run_parts("tests", "memory", "sanitizer")
        self.assertEqual([part["verdict"] for part in parts.values()], ["FAILED", "STOPPED"])
        self.assertEqual(parts["memory"]["figures"], {"first": 3})
        self.assertIn("SIGTERM", parts["memory"]["why"])

    def test_a_report_that_cannot_be_written_is_printed(self):
        parts, out = self.run_parts("tests", out="missing/out.json")
        self.assertEqual(parts, {})
        self.assertIn("cannot write", out)
        self.assertIn('"first": 1', out.splitlines()[-1])

    def test_a_terminal_that_is_gone_ends_nothing(self):
        reading, writing = os.pipe()
        os.close(reading)
        code = self.code("out.json", ("tests", "nccl"), "a GPU")
        done = subprocess.run([sys.executable, "-B", "-c", code], stdout=writing, stderr=subprocess.PIPE, text=True, timeout=60)
        os.close(writing)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        parts = json.loads((self.folder / "out.json").read_text())["parts"]
        self.assertEqual([part["verdict"] for part in parts], ["FAILED", "ok"])

    def test_without_a_gpu_every_part_is_skipped(self):
        parts, _ = self.run_parts("tests", "sanitizer", gpu=None)
        self.assertEqual({(part["verdict"], part["why"]) for part in parts.values()}, {("SKIPPED", "no GPU")})

    def test_an_unfit_machine_skips_the_other_parts_with_one_reason(self):
        parts, _ = self.run_parts("machine", "tests")  # bin/ is empty
        self.assertIn("has no simplescale", parts["machine"]["why"])
        self.assertIn("cores", parts["machine"]["figures"])
        self.assertEqual(parts["tests"]["why"], "the part `machine` failed")


def run(out, names, gpu):
    """Called in the process of run_parts()."""
    machine.driver = lambda: dict(H100)
    processes.prepare()
    folder = pathlib.Path(out).parent
    flags = type("Flags", (), {"build": folder, "rehearse": False, "seconds": 100})
    report = checklist.Report(pathlib.Path(out), gpu=gpu)
    checklist.run_parts(Parts(flags, gpu), report, [part for part in checklist.PARTS if part[0] in names], checklist.time.monotonic())
    if not report.written:
        print(json.dumps(report.content))


class ProductsTest(unittest.TestCase):
    def test_what_a_trainer_says_of_its_products(self):
        text = ("n0.0 product 8 x 4 x 2, bf16, nt: 1 (id 6, tile 2, parts of k 1) 4.0 ms; 2 (id 7, tile 2, parts of k 3) fails: no: 5 ms; "
                "3 (id 8, tile 2, parts of k 1) 3.2 ms; 3 (id 8, tile 2, parts of k 1) is used\nattention of 1 x 2: flash 1.0 ms; flash is used\n")
        chosen = products.chosen(2 * text)
        self.assertEqual(chosen[0], {"product": "8 x 4 x 2, bf16, nt", "algorithm": "3 (id 8, tile 2, parts of k 1)", "measured": 2, "ms": 3.2,
                                     "first_ms": 4.0})
        self.assertEqual((len(chosen), products.gain(chosen), products.gain([])), (2, 0.25, None))
        self.assertIn("25.0 % faster", products.table(chosen)[0])


class MachineTest(unittest.TestCase):
    def test_a_cold_disk_does_not_make_a_machine_unfit(self):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            checks = checklist.Checklist(type("Flags", (), {"build": folder, "rehearse": False}), "a GPU")
            checks.bin.mkdir()
            for file in ("simplescale", "simplescale-compute", "libsimplescale_cuda.so", "libsimplescale_nccl.so"):
                (checks.bin / file).touch()
            with mock.patch.object(machine, "driver", return_value=H100), mock.patch.object(checklist, "call", side_effect=processes.Late("no end")):
                checks.machine()
            self.assertEqual(checks.figures["ldd"], "no end")
            shutil.rmtree(checks.folder)

    def test_what_it_says_of_drivers_and_gpus(self):
        self.assertEqual(machine.problem(H100), "")
        self.assertIn("driver is for CUDA 12.8", machine.problem({"cuda": 12080, "error": [804, "CUDA_ERROR_COMPAT"]}))
        self.assertIn("nvidia-fabricmanager", machine.problem({"cuda": 13000, "error": [802, "CUDA_ERROR_SYSTEM_NOT_READY"]}))
        self.assertIn("compute capability 7.5", machine.problem({**H100, "name": "Tesla T4", "major": 7, "minor": 5}))
        self.assertFalse(machine.has_gpu({"error": [-1, "libcuda.so.1: cannot open"]}))
        self.assertFalse(machine.has_gpu({"cuda": 13000, "error": [100, "CUDA_ERROR_NO_DEVICE"]}))
        self.assertTrue(machine.has_gpu({"cuda": 12080, "error": [804, "CUDA_ERROR_COMPAT"]}))

    def test_the_model_is_the_largest_that_has_room(self):
        gib = 2**30
        chosen = lambda *gibs: machine.choose_model(*(g * gib for g in gibs))
        self.assertEqual(chosen(64, 128, 50)[0][::3], ("tinyllama", True))
        self.assertEqual(chosen(1 / 16, 128, 50)[0][::3], ("tinyllama", False))  # Docker's /dev/shm
        model, why = chosen(10, 128, 10)
        self.assertEqual(model[0], "small")
        self.assertIn("tinyllama needs 30.6 GiB of memory (this host has 128.0)", why)
        self.assertEqual(chosen(64, 16, 50)[0][0], "small")
        model, why = chosen(1 / 16, 128, 0)
        self.assertIsNone(model)
        self.assertIn("of disk", why)

    def test_presets_are_those_of_the_program(self):
        text = (machine.ROOT / "runtime/config/model_presets.cpp").read_text()
        for name, _, vocab in machine.MODELS:
            self.assertIn(str(vocab), text.split(f'{{"{name}", ')[1].split("}}")[0].replace("'", ""))

    def test_a_small_shared_memory_is_replaced_by_one_that_only_the_checklist_sees(self):
        full = shutil.disk_usage("/dev/shm")._replace(free=0)
        with mock.patch.object(machine.shutil, "disk_usage", return_value=full):
            command = machine.own_shared_memory(["sh", "-c", "find /dev/shm -mindepth 1; exit 3"])
        if not command:
            self.skipTest("the system makes no other /dev/shm")
        done = subprocess.run(command, capture_output=True)
        self.assertEqual((done.returncode, done.stdout), (3, b""))

    def test_python_has_the_torch_of_our_libraries(self):
        self.assertRegex(machine.our_torch(), r"^\d+\.\d+\.\d+$")
        with tempfile.TemporaryDirectory() as folder:
            (pathlib.Path(folder) / "TORCH").write_text("torch==2.11.0 --hash=sha256:7\n")
            self.assertEqual(machine.our_torch(pathlib.Path(folder)), "2.11.0")
        self.assertIsNone(machine.find_python("0.0.1"))


if __name__ == "__main__":
    unittest.main()
