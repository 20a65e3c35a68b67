"""Groups over several hosts (network namespaces) with two trainers each: the same bits as one process, and as few bytes between hosts
as in a ring of hosts. Needs root, ip and nft; skips visibly without them."""

import os
import unittest.mock

from common import TINY, leftovers
from namespaces import Network, NetworkCase

STEPS, BATCH = 4, 16
DIM, HIDDEN, LAYERS, VOCAB = 192, 512, 3, 211
PARAMETERS = LAYERS * (3 * DIM * DIM + 3 * DIM * HIDDEN + 2 * DIM) + DIM + 2 * VOCAB * DIM  # half of the heads are for keys, values


class Levels(NetworkCase):
    def setUp(self):
        super().setUp()
        self.write_config({**TINY, "model.dim": DIM, "model.hidden": HIDDEN, "model.layers": LAYERS, "model.tie_embeddings": False,
                           "train.validation_samples": 0})

    def against_ring(self, hosts, name):
        """Trains one group over all hosts. Returns the bytes that left them, against those of a ring in which each host sends its
        part of the parameters once a step, and of the sums once a micro-batch of its trainers, in fp32."""
        self.network = Network(hosts)
        self.addCleanup(self.network.close)
        self.addCleanup(self.end_all)
        self.steps = STEPS
        batch = f"--train.global_batch_size={BATCH}"
        self.keys = [batch, f"--cluster.nodes={hosts}", "--cluster.trainers_per_node=2", "--parallel.strategy=shard_grad_op",
                     "--parallel.wave=1", "--checkpoint.peer_every_steps=0",
                     "--supervision.silence_ms=10000"]
        run = self.folder / name
        tasks = [self.task(run, i, hosts, i) for i in range(hosts)]
        for i, task in enumerate(tasks):
            self.assertEqual(task.wait(300), 0, f"n{i}: {(self.folder / f'task-{i}.err').read_text()}")
        self.assertEqual(self.digest(run), self.undisturbed(batch, f"--train.max_steps={STEPS}"))
        sent = sum(self.network.sent())
        self.wait_for(lambda: not leftovers(run), "all processes of the run to end")
        self.network.close()
        copies = 1 + BATCH // (2 * hosts)
        return sent / (STEPS * copies * PARAMETERS * 4 * (hosts - 1))

    def test_hosts_send_as_few_bytes_as_in_a_ring(self):
        for hosts in (2, 4, 8):
            ratio = self.against_ring(hosts, f"run-{hosts}")
            print(f"{hosts} hosts: {ratio:.3f} of the bytes of a ring")
            self.assertGreater(ratio, 1)
            self.assertLess(ratio, 1.15)

    def test_one_level_sends_each_trainer_a_copy(self):
        with unittest.mock.patch.dict(os.environ, SIMPLESCALE_ONE_LEVEL="1"):
            self.assertGreater(self.against_ring(2, "run"), 2)
