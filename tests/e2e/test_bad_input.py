"""What is wrong is said in one line with its place, with the right exit code, before any process starts."""

import pathlib
import struct
import unittest

from common import Case


class BadInput(Case):
    def refused(self, code, *overrides, says=()):
        run = self.folder / "run"
        self.command("train", self.config, f"--run={run}", "--train.max_steps=2", *overrides, code=code, timeout=30)
        text = self.stderr.strip().splitlines()[-1]
        for word in says:
            self.assertIn(word, text)
        self.assertFalse((run / "metrics.jsonl").exists())

    def test_configuration(self):
        self.refused(78, "--train.micro_batch=3", says=["micro_batch_size"])
        self.refused(78, "--train.max_steps=many", says=["max_steps"])
        self.refused(78, "--parallel.strategy=fast", says=["strategy"])
        self.refused(78, "--model.heads=5", says=["heads"])
        self.refused(78, "--model.kv_heads=3", says=["kv_heads"])
        self.refused(78, "--train.global_batch_size=7", "--cluster.nodes=2", "--cluster.trainers_per_node=1")
        self.refused(78, "--parallel.group_nodes=4", "--cluster.nodes=2", "--parallel.strategy=hybrid_shard")

    def test_missing_config(self):
        self.command("train", self.folder / "nowhere.toml", code=78)
        self.command("train", code=64)
        self.command("no-such-command", code=64)

    def test_data(self):
        self.refused(65, f'--data.source="{self.folder}/nothing.bin"', says=["nothing.bin"])
        odd = self.folder / "odd.bin"
        odd.write_bytes(b"\x01\x00" * 500 + b"\x07")
        self.refused(65, f'--data.source="{odd}"', says=["odd.bin"])
        beyond = self.folder / "beyond.bin"
        beyond.write_bytes(b"\x01\x00" * 2000 + struct.pack("<H", 60000) + b"\x01\x00" * 2000)
        self.refused(65, f'--data.source="{beyond}"', says=["beyond.bin", "4000"])
        short = self.folder / "short.bin"
        short.write_bytes(b"\x01\x00" * 10)
        self.refused(65, f'--data.source="{short}"', says=["short.bin"])
        magic = self.folder / "magic.bin"
        magic.write_bytes(struct.pack("<256i", 20240520, 99, 5, *([0] * 253)) + b"\x01\x00" * 5)
        self.refused(65, f'--data.source="{magic}"', says=["magic.bin"])

    def test_folders(self):
        self.command("train", self.config, "--run=/proc/nowhere", code=78)
        self.command("digest", self.folder, code=65)
        self.command("status", self.folder / "none", code=65)


    def test_data_that_changed_since_the_run_began_is_refused(self):
        run = self.train("run", "--train.max_steps=4", "--checkpoint.disk_every_steps=2")
        data = bytearray(self.data.read_bytes())
        data[2000] ^= 1
        self.data.write_bytes(data)
        self.command("train", self.config, f"--run={run}", "--train.max_steps=4", "--checkpoint.disk_every_steps=2", code=65)
        self.assertIn("has changed since this run began", self.stderr)

    def test_a_device_that_is_not_there_is_refused_at_once(self):
        if pathlib.Path("/proc/driver/nvidia/version").exists():
            self.skipTest("SKIPPED: there is a GPU here")
        self.command("train", self.config, f"--run={self.folder / 'run'}", "--train.max_steps=4", "--cluster.device=cuda", code=78)
        self.assertIn("no NVIDIA driver", self.stderr)

    def test_damaged_checkpoints_are_named_where_people_look(self):
        keys = ["--train.max_steps=60", "--checkpoint.disk_every_steps=20"]
        run = self.train("run", *keys)
        shards = sorted((run / "checkpoints").glob("step-*/shard-*"))
        shards[-1].write_bytes(shards[-1].read_bytes()[:-9])
        self.command("train", self.config, f"--run={run}", *keys)
        self.assertIn("the next older checkpoint is used", self.stderr)
        for shard in (run / "checkpoints").glob("step-*/shard-*"):
            shard.write_bytes(shard.read_bytes()[:-9])
        self.command("train", self.config, f"--run={run}", *keys, code=65)
        self.assertIn("no valid checkpoint", self.stderr)


if __name__ == "__main__":
    unittest.main()
