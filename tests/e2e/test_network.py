"""Nodes in separate network namespaces, as on several hosts, with network faults: partitions, one-way loss, random loss. The
shared run folder keeps working. Needs root, ip and nft; skips visibly without them."""

from common import leader, lines
from namespaces import NODES, NetworkCase

STEPS = 200


class Networks(NetworkCase):
    def test_a_partitioned_node_returns(self):
        """The partition may last longer than join_timeout_ms: the node sees in the run folder that the run continues."""
        self.begin(STEPS, NODES, "--cluster.join_timeout_ms=5000", slow=0)
        self.network.drop(2, out="", into="")
        self.lost("n2")
        lost_at = next(e["time"] for e in self.events("node_lost") if e["subject"] == "n2")
        self.wait_for(lambda: lines(self.run_folder / "metrics.jsonl")[-1]["time"] > lost_at + 7, "steps after join_timeout_ms", 30)
        self.network.heal(2)
        self.wait_until_all_nodes_train()
        self.check()

    def test_a_node_with_one_way_packet_loss_returns(self):
        self.begin(STEPS, slow=0)
        self.network.drop(1, out="")
        self.lost("n1")
        self.more_steps(5, "the others' steps")
        self.network.heal(1)
        self.wait_until_all_nodes_train()
        self.check()

    def test_random_packet_loss_has_no_effect(self):
        steps = 150
        self.begin(steps)
        for node in range(NODES):
            self.network.drop(node, out="numgen random mod 100 < 5")
        self.check()
        self.assertFalse(self.events("gave_up"))

    def test_the_supervisors_node_is_partitioned(self):
        """The supervisor resigns since most nodes cannot reach it; one of these nodes takes over."""
        self.begin(STEPS, slow=1)
        self.network.drop(0, out="", into="")
        self.lost("n0")
        self.more_steps(5, "steps of the others")
        self.assertIn(leader(self.run_folder)[2], ("n1", "n2"))
        self.assertEqual(len(self.events("resigned")), 1)
        self.assertFalse(self.events("steps_undone"))
        self.network.heal(0)
        self.wait_until_all_nodes_train()
        self.check()

    def test_the_supervisors_node_is_partitioned_from_the_rest_of_its_group(self):
        """The supervisor cannot train without the other half of its group; the other group takes over."""
        self.begin(STEPS, 4, "--parallel.group_nodes=2", "--supervision.heartbeat_ms=250", "--supervision.silence_ms=1500", slow=2)
        self.network.drop(0, into="")
        self.lost("n0")
        self.more_steps(3, "steps of the other group")
        self.assertNotEqual(leader(self.run_folder)[2], "n0")
        self.assertFalse(self.events("steps_undone"))
        self.network.heal(0)
        self.wait_until_all_nodes_train()
        self.check()
