"""Strangers between network namespaces, as on several hosts: one that attacks all ports, one on the path, a process of another
run. Each run trains meanwhile, and its bits are those of a run without a stranger."""

import fcntl
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import zlib

from common import PROGRAM, last_step, leftovers
from namespaces import NODES, NetworkCase

ROGUE = pathlib.Path(__file__).with_name("rogue.py")
# Sends each recorded connection's first bytes again and prints how many bytes come back.
REPLAY = """
import socket, sys
for name in sys.argv[1:]:
    _, host, port = name.rpartition("/")[2][:-3].split("-")
    again, got = socket.create_connection((host, int(port)), 5), 0
    again.settimeout(10)
    try:
        again.sendall(open(name, "rb").read(1 << 20))
        again.shutdown(socket.SHUT_WR)
        while data := again.recv(1 << 16):
            got += len(data)
    except OSError:
        pass
    print(got)
"""


def use_of(pid):
    """Private memory in MB, and descriptors."""
    fields = dict(line.split(":", 1) for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines())
    return int(fields["RssAnon"].split()[0]) >> 10, len(os.listdir(f"/proc/{pid}/fd"))


class Strangers(NetworkCase):
    def kill_later(self, process):
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process

    def check_undisturbed(self):
        self.check()
        self.assertEqual(self.events("node_lost", "trainer_lost", "resigned", "gave_up"), [])

    def test_a_host_that_attacks_all_ports_while_the_run_trains(self):
        """The same rogue ends every agent and trainer of a run with transport.trusted_networks within a second, through UCX."""
        self.begin(200, NODES, "--supervision.warm_processes=1", strangers=1, slow=0)
        nodes = range(NODES)
        # Of agents and trainers, warm ones too, two each; of supervisor and standby one. A process that still starts has none.
        self.wait_for(lambda: len(self.network.ports(nodes)) == 2 * 3 * NODES + 2, "all processes to listen")
        ports = self.network.ports(nodes)
        seen = []  # warm processes still load libraries

        def settled():
            seen.append(sum(use_of(pid)[0] for pid in leftovers(self.run_folder)))
            return len(seen) > 60 and max(seen[-60:]) < min(seen[-60:]) + 4
        self.wait_for(settled, "memory that does not grow")
        rogue = self.kill_later(subprocess.Popen(
            ["ip", "netns", "exec", self.network.spaces[NODES], sys.executable, ROGUE, "100", "300", *ports],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        before = {pid: use_of(pid) for pid in leftovers(self.run_folder)}
        first = None
        for wave in range(4):
            rogue.stdin.write("\n")
            rogue.stdin.flush()
            half_open, made = map(int, rogue.stdout.readline().split())
            self.assertEqual((half_open, made), (300 * len(ports), 100 * len(ports)))
            during = {pid: use_of(pid) for pid in before}  # no process has ended
            first = first or during
            for pid, (memory, descriptors) in during.items():
                self.assertLess(memory, before[pid][0] + 16, (wave, pid))  # a trainer's caches grow, too
                self.assertLess(memory, first[pid][0] + 8, (wave, pid))
                self.assertLess(descriptors, before[pid][1] + 2 * 256 + 50, (wave, pid))
            self.more_steps(5, "steps while half-open connections stay")
        self.assertGreater(max(descriptors for _, descriptors in during.values()), 256, "the attack has reached nothing")
        rogue.stdin.close()
        rogue.wait()
        self.wait_for(lambda: all(use_of(pid)[1] <= before[pid][1] + 10 for pid in before), "the descriptors to be free")
        self.go_on()
        self.check_undisturbed()

    def test_a_process_of_another_run_that_keeps_calling(self):
        """It has the addresses of this run, and a key of its own."""
        self.begin(200, 2, strangers=1, slow=0)
        other = self.folder / "other"
        (other / "control").mkdir(parents=True, mode=0o700)
        for file in (self.run_folder / "control").iterdir():
            if file.is_file():
                shutil.copy(file, other / "control")
        shutil.copy(self.run_folder / "config.toml", other)
        lock = (other / "control/lock").open("w")
        self.addCleanup(lock.close)
        fcntl.flock(lock, fcntl.LOCK_EX)  # as if a launcher lived
        words = ["ip", "netns", "exec", self.network.spaces[2], PROGRAM, "console", other, "-c", "pause"]
        (other / "control/key").write_bytes(os.urandom(32))
        stranger = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.addCleanup(stranger.wait)
        self.addCleanup(stranger.kill)

        def calls():
            names, values = (line.split() for line in self.network.nft(2, "grep ^Tcp: /proc/net/snmp").stdout.splitlines())
            return int(values[names.index("ActiveOpens")])
        self.wait_for(lambda: calls() >= 3, "three connections of the stranger")
        self.more_steps(5, "steps while the stranger calls")
        self.assertIsNone(stranger.poll(), "the stranger has been answered")
        self.go_on()
        self.check_undisturbed()
        self.assertEqual(self.events("paused"), [])

    def test_a_frozen_host_wakes_with_processes_of_an_old_generation(self):
        self.begin(200, slow=0)
        frozen = self.network.processes(2)
        for pid in frozen:
            os.kill(pid, signal.SIGSTOP)
        self.lost("n2")
        self.more_steps(5, "steps of the others")
        for pid in frozen:
            os.kill(pid, signal.SIGCONT)
        self.wait_until_all_nodes_train()
        self.check()
        self.assertEqual({e["subject"] for e in self.events("node_lost")}, {"n2"})
        self.assertEqual([e for e in self.events("trainer_lost") if not e["subject"].startswith("n2")], [])

    def test_a_relay_that_changes_bytes_of_collectives(self):
        """A changed byte ends a connection and a generation. No trainer commits an altered sum: the bits are those without a relay.
        Left out bytes that no others follow end a generation by the collective's deadline."""
        for how in ("flip", "repeat", "drop"):
            with self.subTest(how=how):
                self.begin(200, 3, prepare=lambda how=how: self.relay(1, how, 1_000_000, 3))
                self.check()
                text = (self.run_folder / "events.jsonl").read_text() + "".join(p.read_text() for p in (self.run_folder / "logs").glob("*.log"))
                late = "|did not take part in .* within" if how == "drop" else ""
                self.assertRegex(text, "bytes were changed on the way" + late)
                self.end_of_relay(3)

    def test_a_relay_that_changes_bytes_of_handshakes_and_messages(self):
        for first in (0, 50, 100, 500):
            with self.subTest(first=first):
                self.begin(60, 2, prepare=lambda first=first: self.relay(1, "flip", first, 4))
                self.check()
                self.end_of_relay(4)

    def relay(self, *words):
        self.altering = self.kill_later(self.network.alter(*words))

    def end_of_relay(self, changes):
        self.altering.kill()
        self.assertEqual(self.altering.stdout.read().split(), ["changed"] * changes)
        self.network.close()
        shutil.rmtree(self.run_folder)

    def test_a_relay_that_records_learns_nothing_and_replays_in_vain(self):
        record = self.folder / "record"
        record.mkdir()
        self.begin(200, 2, prepare=lambda: self.relay(1, "flip", 0, 0, record), slow=0)
        key = (self.run_folder / "control/key").read_bytes()
        self.wait_for(lambda: last_step(self.run_folder) >= 20, "step 20")
        recorded = sorted(record.glob("*.up"))
        self.assertGreater(len(recorded), 2)
        words = ["ip", "netns", "exec", self.network.spaces[0], sys.executable, "-c", REPLAY, *map(str, recorded)]
        answers = subprocess.run(words, capture_output=True, text=True, timeout=120, check=True).stdout.split()
        self.assertEqual(len(answers), len(recorded))
        self.assertLessEqual(max(map(int, answers)), 64)  # a fresh public key and a hash
        self.more_steps(5, "steps after the replay")
        self.go_on()
        self.check_undisturbed()
        bytes_of = {file: file.read_bytes() for file in record.iterdir()}
        for file, data in bytes_of.items():
            for secret in (key, key.hex().encode(), self.folder.name.encode(), b"StepDone", b"n1.0/p1"):
                self.assertNotIn(secret, data, file)
        large = max(bytes_of.values(), key=len)[:4 << 20]
        self.assertGreater(len(large), 1 << 20)  # tensors
        self.assertGreater(len(zlib.compress(large)), 0.99 * len(large), "what was sent is not random")
