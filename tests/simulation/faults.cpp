#include "tests/simulation/faults.hpp"

#include <algorithm>
#include <iterator>
#include <set>
#include <vector>

#include "tests/simulation/cluster.hpp"

namespace simplescale::simulation {

namespace {

/// Makes one fault happen; returns how long it lasts.
using Make = Time (*)(Cluster&);

int any_node(Cluster& c) {
  return c.random.pick(c.options.nodes);
}
int any_trainer(Cluster& c) {
  return c.random.pick(static_cast<int>(c.trainers.size()));
}

/// Blocks messages between a node and another one; -1: all others.
void cut_off(Cluster& c, int node, int other, Time time) {
  const auto block = [&c, node, other](bool blocked) {
    c.block(node, other, blocked);
    c.block(other, node, blocked);
  };
  block(true);
  c.after(time, [block] { block(false); });
}

/// A user ends a pause. Repeated: there may be no supervisor for longer than a minute.
void end_pause(Cluster& c, Time when) {
  for (int i = 0; i < 30; ++i)
    c.after(when + std::min(i, 20) * second + std::max(i - 20, 0) * 10 * second, [&c] {
      c.request(job::PauseRequested{false, "a user"});
    });
}

struct Kind {
  const char* name;
  int weight;
  Make make;
  int causes = 1;  // how often it may make one node fail
};

const Kind kinds[] = {
    {"kill_trainer", 20,
     [](Cluster& c) -> Time {
       c.kill_trainer(any_trainer(c), 0);
       return 0;
     }},
    {"kill_trainer_for_long", 4,
     [](Cluster& c) -> Time {
       const Time away = c.random.between(3, 20) * second;
       c.kill_trainer(any_trainer(c), away);
       return away;
     }},
    {"flaky_trainer", 4,
     [](Cluster& c) -> Time {
       const int t = any_trainer(c);
       for (int i = 0; i < 10; ++i)
         c.after(i * c.random.between(800, 3500) * ms, [&c, t] { c.kill_trainer(t, 0); });
       return 35 * second;
     },
     10},
    {"hang_trainer", 10,
     [](Cluster& c) -> Time {
       const Time time = c.random.between(100, 6000) * ms;
       c.hang_trainer(any_trainer(c), time);
       return time;
     }},
    {"hung_trainer", 6,  // or a false alarm: the supervisor says so of a trainer that is well
     [](Cluster& c) -> Time {
       const int t = any_trainer(c);
       const Time time = c.random.chance(50) ? c.random.between(2, 10) * second : 0;
       c.stall_trainer(t, time);
       for (const Time after : {Time{0}, time / 2})
         c.after(after, [&c, t] {
           if (const Supervisor* supervisor = c.leader())
             c.request(job::TrainerHung{c.trainers[t].name, supervisor->job.generation,
                                        "it computes nothing"});
         });
       return time;
     },
     2},
    {"kill_node", 12,
     [](Cluster& c) -> Time {
       const Time away = c.random.between(200, 15'000) * ms;
       c.kill_node(any_node(c), away);
       return away;
     }},
    {"power_failure", 8,  // of most nodes, perhaps twice; the disk may be behind when it happens
     [](Cluster& c) -> Time {
       if (c.random.chance(60)) c.disk.hung_until = c.now + c.random.between(500, 4000) * ms;
       const Time first = c.random.between(0, 4000) * ms;
       const Time second_one = c.random.chance(50) ? c.random.between(500, 9000) * ms : 0;
       const int share = c.random.chance(60) ? 100 : 80;
       for (int n = 0; n < c.options.nodes; ++n)
         for (const Time when : {first, second_one}) {
           if (when == 0 || !c.random.chance(share)) continue;
           const Time away = c.random.between(200, 2500) * ms;
           c.after(when + c.random.between(0, 300) * ms, [&c, n, away] { c.kill_node(n, away); });
         }
       return 12 * second;
     },
     2},
    {"hang_node", 8,
     [](Cluster& c) -> Time {
       const Time time = c.random.between(200, 8000) * ms;
       c.hang_node(any_node(c), time);
       return time;
     }},
    {"partition", 6,
     [](Cluster& c) -> Time {
       const Time time = c.random.between(300, 8000) * ms;
       cut_off(c, any_node(c), -1, time);
       return time;
     }},
    {"split", 3,
     [](Cluster& c) -> Time {
       const Time time = c.random.between(2000, 12'000) * ms;
       std::set<int> side;
       for (int n = 0; n < c.options.nodes; ++n)
         if (c.random.chance(50)) side.insert(n);
       const auto cut = [&c, side](bool blocked) {
         for (const int a : side)
           for (int b = 0; b < c.options.nodes; ++b)
             if (!side.contains(b)) {
               c.block(a, b, blocked);
               c.block(b, a, blocked);
             }
       };
       cut(true);
       c.after(time, [cut] { cut(false); });
       return time;
     }},
    {"one_way_partition", 6,
     [](Cluster& c) -> Time {
       const Time time = c.random.between(300, 8000) * ms;
       const int n = any_node(c);
       const bool out = c.random.chance(50);
       c.block(out ? n : -1, out ? -1 : n, true);
       c.after(time, [&c, n, out] { c.block(out ? n : -1, out ? -1 : n, false); });
       return time;
     }},
    {"broken_pair", 4,
     [](Cluster& c) -> Time {
       const Time time = c.random.between(300, 8000) * ms;
       const int a = any_node(c), b = any_node(c);
       if (a == b) return 0;
       c.block(a, b, true);
       c.after(time, [&c, a, b] { c.block(a, b, false); });
       return time;
     }},
    {"left_behind", 5,
     [](Cluster& c) -> Time {
       c.cut_off_due = true;
       c.after(3 * second, [&c] { c.cut_off_due = false; });
       return 11 * second;
     },
     5},
    {"slow_node", 4,
     [](Cluster& c) -> Time {
       const Time time = c.random.between(1, c.random.chance(30) ? 60 : 10) * second;
       const int n = any_node(c);
       c.nodes[n].slow = static_cast<int>(c.random.between(2, 8));
       c.after(time, [&c, n] { c.nodes[n].slow = 1; });
       if (c.random.chance(50))
         c.request(job::Suspected{trainer_name(c.nodes[n].name, 0), "slower than the others"});
       return time;
     }},
    {"delayed_messages", 6,
     [](Cluster& c) -> Time {
       const Time time = c.random.between(1, 8) * second;
       c.slow_links_until = c.now + time;
       return time;
     }},
    {"stale_messages", 8,
     [](Cluster& c) -> Time {
       for (int i = 0; i < 6; ++i)
         c.after(c.random.between(0, 3000) * ms, [&c] { c.replay_stale(); });
       return 3 * second;
     }},
    {"damaged_copy", 5,
     [](Cluster& c) -> Time {
       for (int n = 0; n < c.options.nodes; ++n)
         if (c.random.chance(40)) c.damage_peer_copy(n);
       return 0;
     }},
    {"damaged_transfer", 4,
     [](Cluster& c) -> Time {
       c.transit_damage_due = static_cast<int>(c.random.chance(70) ? 1 : c.random.between(2, 6));
       c.causes += static_cast<size_t>(c.transit_damage_due - 1);
       c.after(5 * second, [&c] { c.transit_damage_due = 0; });
       return 5 * second;
     }},
    {"wrong_result", 6,
     [](Cluster& c) -> Time {
       c.mismatch_due = true;
       c.after(2 * second, [&c] { c.mismatch_due = false; });
       if (c.random.chance(60))
         c.after(c.random.between(0, 2000) * ms, [&c] { c.kill_trainer(any_trainer(c), 0); });
       return 2 * second;
     },
     2},
    {"sick_node", 4,
     [](Cluster& c) -> Time {
       if (c.options.spares == 0 && c.options.nodes < 2 * c.options.domain_nodes) return 0;
       const int n = any_node(c);
       const Time time = c.random.between(2, 10) * second;
       c.nodes[n].sick = true;
       c.request(job::Suspected{trainer_name(c.nodes[n].name, 0), "its device complains"});
       c.after(time, [&c, n] {
         c.nodes[n].sick = false;
         c.request(job::DrainRequested{c.nodes[n].name, false, "repaired"});
       });
       return time;
     }},
    {"disk_full", 4,
     [](Cluster& c) -> Time {
       const Time time = c.random.between(1, 10) * second;
       c.disk.failing_until = c.now + time;
       return time;
     }},
    {"disk_hangs", 3,
     [](Cluster& c) -> Time {
       const Time time = c.random.between(1, 10) * second;
       c.disk.hung_until = c.now + time;
       return time;
     }},
    {"disk_full_for_long", 1,  // no process can claim a term for longer than agents wait
     [](Cluster& c) -> Time {
       const Time time = c.random.between(25, 60) * second;
       c.disk.failing_until = c.now + time;
       c.kill_standby();
       c.kill_supervisor();
       return time;
     }},
    {"reads_fail", 4,  // at once, or after the next claim
     [](Cluster& c) -> Time {
       const Time time = c.random.between(1, 25) * second;
       const int what = c.random.pick(3);
       const Unreadable fails{what != 1 ? time : 0, what != 0 ? time : 0};
       if (c.random.chance(30)) {
         Unreadable& at = c.random.chance(50) ? c.disk.unreadable : c.nodes[any_node(c)].unreadable;
         at = {fails.page + c.now, fails.records + c.now};
         return time;
       }
       c.unreadable_due = fails;
       c.after(10 * second, [&c] { c.unreadable_due.reset(); });
       if (c.random.chance(50)) {
         if (c.random.chance(50)) c.kill_standby();
         c.kill_supervisor();
       } else {  // whose last decisions the disk does not take
         c.disk.failing_until = c.now + c.random.between(500, 3000) * ms;
         c.kill_trainer(any_trainer(c), 0);
         c.after(c.random.between(100, 500) * ms, [&c] { c.kill_supervisor(); });
       }
       return time + 10 * second;
     }},
    {"damaged_number", 1,
     [](Cluster& c) -> Time {
       if (c.random.chance(80)) return 0;
       c.disk.number_damaged = true;
       c.kill_supervisor();
       return 0;
     }},
    {"launcher_dies", 1,
     [](Cluster& c) -> Time {
       if (c.random.chance(80)) return 0;
       c.request(job::StopRequested{Code::ok, "the launcher has ended", false});
       c.after(c.random.between(0, 3000) * ms, [&c] { c.train_again(); });
       return 3 * second;
     },
     2},
    {"kill_supervisor", 8,
     [](Cluster& c) -> Time {
       c.kill_supervisor();
       return 0;
     }},
    {"kill_supervisor_and_standby", 4,
     [](Cluster& c) -> Time {
       c.kill_standby();
       c.kill_supervisor();
       return 0;
     }},
    {"hang_supervisor", 6,
     [](Cluster& c) -> Time {
       const Time time = c.random.between(200, 6000) * ms;
       c.hang_supervisor(time);
       return time;
     }},
    {"frozen_publisher", 6,
     [](Cluster& c) -> Time {
       c.freeze_publisher_due = true;
       c.after(8 * second, [&c] { c.freeze_publisher_due = false; });
       return 18 * second;
     }},
    {"frozen_journal", 5,
     [](Cluster& c) -> Time {
       c.freeze_journal_due = true;
       c.after(5 * second, [&c] { c.freeze_journal_due = false; });
       return 14 * second;
     }},
    {"folder_lost", 6,  // on one host, perhaps the supervisor's, or on all; perhaps with its links
     [](Cluster& c) -> Time {
       const Time time = c.random.chance(15) ? c.random.between(30, 70) * second
                                             : c.random.between(500, 12'000) * ms;
       const Supervisor* leader = c.leader();
       const int host = leader && c.random.chance(60) ? leader->host : any_node(c);
       const bool all = c.random.chance(25);
       for (int n = 0; n < c.options.nodes; ++n)
         if (all || n == host) c.nodes[n].folder_hung_until = c.now + time;
       if (c.random.chance(40)) return time;
       const int other = c.random.chance(50) ? -1 : any_node(c);
       cut_off(c, host, other, c.random.between(500, time / ms) * ms);
       return time;
     },
     2},
    {"frozen_claim",
     4,  // a supervisor is frozen before its first act, and its successor leads then
     [](Cluster& c) -> Time {
       c.freeze_claim_due = true;
       c.after(10 * second, [&c] { c.freeze_claim_due = false; });
       c.kill_standby();
       c.kill_supervisor();
       return 18 * second;
     }},
    {"started_twice", 4,
     [](Cluster& c) -> Time {
       c.start_twice(any_node(c));
       if (c.random.chance(50))
         c.after(c.random.between(0, 200) * ms, [&c] { c.start_twice(any_node(c)); });
       return 2 * second;
     },
     2},
    {"damaged_checkpoint", 3,
     [](Cluster& c) -> Time {
       c.damage_checkpoint();
       return 0;
     }},
    {"pause", 2,
     [](Cluster& c) -> Time {
       const Time time = c.random.between(500, 5000) * ms;
       c.request(job::PauseRequested{true, "a user"});
       end_pause(c, time);
       return time + 20 * second;
     }},
    {"diagnosis", 3,
     [](Cluster& c) -> Time {
       job::DiagnoseRequested request{{}, "a user"};
       const bool all = c.random.chance(50);
       const int one = any_node(c);
       for (int n = 0; n < c.options.nodes; ++n)
         if (all || n == one) request.nodes.push_back(c.nodes[n].name);
       c.request(request);
       return 5 * second;
     }},
    {"drain", 3,
     [](Cluster& c) -> Time {
       const int n = any_node(c);
       const Time time = c.random.between(1, 10) * second;
       c.request(job::DrainRequested{c.nodes[n].name, true, "maintenance"});
       c.after(time, [&c, n] {
         c.request(job::DrainRequested{c.nodes[n].name, false, "maintenance is over"});
       });
       return time;
     }},
    {"stop", 1,
     [](Cluster& c) -> Time {
       if (!c.random.chance(20)) return 0;
       c.request(job::StopRequested{Code::ok, "enough", false});
       return 0;
     }},
};

/// The weights of the kinds in this history. Swarm testing (Groce et al., ISSTA 2012): half of the
/// histories have few kinds of faults, which then meet more often. Drawn by themselves.
std::vector<int> weights_of(const Cluster& c) {
  Random random(c.options.seed ^ 0x5a);
  const bool swarm = random.chance(50);
  const int share = static_cast<int>(random.between(8, 30));
  std::vector<int> weights;
  for (const Kind& kind : kinds)
    weights.push_back(!swarm ? kind.weight : random.chance(share) ? 1 : 0);
  return weights;
}

void make_fault(Cluster& c, const std::vector<int>& weights) {
  int total = 0;
  for (const int weight : weights) total += weight;
  if (total == 0) return;
  int chosen = c.random.pick(total);
  for (size_t i = 0; i < weights.size(); ++i) {
    if ((chosen -= weights[i]) >= 0) continue;
    ++c.faults[kinds[i].name];
    if (c.logging()) c.log_line(std::string("--- ") + kinds[i].name);
    c.causes += kinds[i].causes;
    c.quiet_at = std::max(c.quiet_at, c.now + kinds[i].make(c) + 5 * second);
    return;
  }
}

/// In some histories, the trainers of a node die and do not start for longer than the supervisor
/// waits for anything, or for longer than a run may take to go on without them; a pause may come
/// first. Drawn by themselves: the other faults are those of every history with this seed.
void keep_trainers_down(Cluster& c) {
  Random random(c.options.seed ^ 0xd0);
  if (!random.chance(10)) return;
  const int first = random.pick(c.options.nodes) * c.options.trainers;
  const Time when = random.between(1, static_cast<int64_t>(c.options.steps)) * c.step_time;
  Time away = random.between(35, 70) * second, ends = when + away;
  // Without this node there are enough for a group.
  if (c.options.nodes > c.options.domain_nodes && random.chance(50))
    away = 3600 * second, ends = when;
  if (random.chance(50)) {
    const auto pause = [&c](bool on) { c.request(job::PauseRequested{on, "a user"}); };
    c.after(when - random.between(0, 2000) * ms, [pause] { pause(true); });
    end_pause(c, when + second);
    ends = std::max(ends, when + 20 * second);
  }
  c.after(when, [&c, first, away] {
    ++c.faults["trainers_do_not_start"];
    c.causes += 1;
    for (int t = first; t < first + c.options.trainers; ++t) c.kill_trainer(t, away);
  });
  c.quiet_at = std::max(c.quiet_at, ends + 5 * second);
}

/// In some histories one host, or all, find an old state page, and a supervisor dies meanwhile with
/// its standby. Drawn by themselves, too.
void keep_old_pages(Cluster& c) {
  Random random(c.options.seed ^ 0x01d);
  if (!random.chance(10)) return;
  const Time when = random.between(1, static_cast<int64_t>(c.options.steps)) * c.step_time;
  const Time lasts = random.between(1, 30) * second;
  const int host = random.chance(50) ? -1 : random.pick(c.options.nodes);
  c.after(when, [&c, host, lasts] {
    ++c.faults["old_page"];
    c.causes += 2;
    for (int n = 0; n < c.options.nodes; ++n)
      if (host < 0 || n == host) c.keep_old_page(n, lasts);
  });
  c.after(when + random.between(0, std::min<Time>(lasts, 10 * second)), [&c] {
    c.kill_standby();
    c.kill_supervisor();
  });
  c.quiet_at = std::max(c.quiet_at, when + lasts + 5 * second);
}

/// In some histories all processes are stopped for long when a node has just been lost. Drawn by
/// themselves, too.
void stop_all_once(Cluster& c) {
  Random random(c.options.seed ^ 0x57);
  if (!random.chance(10)) return;
  const Time when = random.between(1, static_cast<int64_t>(c.options.steps)) * c.step_time;
  const int node = random.pick(c.options.nodes);
  c.after(when, [&c, node] {
    ++c.faults["stop_all"];
    c.causes += 2;
    c.stop_due = true;
    c.hang_node(node, 3 * second);
  });
  c.after(when + 3 * second, [&c] { c.stop_due = false; });
  c.quiet_at = std::max(c.quiet_at, when + 8 * second);
}

/// In some histories the agent of one node, or one trainer, is stopped for much longer than silence
/// is tolerated, and then goes on. Drawn by themselves, too.
void stop_and_continue(Cluster& c) {
  Random random(c.options.seed ^ 0x5709);
  if (!random.chance(10)) return;
  const Time when = random.between(1, static_cast<int64_t>(c.options.steps)) * c.step_time;
  const Time lasts = random.between(5, 20) * second;
  const int node = random.pick(c.options.nodes);
  const int trainer = random.chance(50) ? node * c.options.trainers : -1;
  c.after(when, [&c, node, trainer, lasts] {
    ++c.faults["stop_and_continue"];
    ++c.causes;
    trainer < 0 ? c.hang_node(node, lasts) : c.hang_trainer(trainer, lasts);
  });
  c.quiet_at = std::max(c.quiet_at, when + lasts + 5 * second);
}

/// In some histories hosts join the run, some of them cut off from it, and users remove nodes for
/// good. Drawn by themselves, too.
void join_and_remove(Cluster& c) {
  if (c.options.joining == 0) return;
  Random random(c.options.seed ^ 0x701);
  const Time window = static_cast<Time>(c.options.steps) * c.step_time;
  const auto hosts = random.between(1, 2 * c.options.joining);
  const bool apart = random.chance(30);  // they find no supervisor, but may find each other's files
  Time when = random.between(0, window / 2);
  for (int i = 0; i < hosts; ++i) {
    when += random.chance(60) ? random.between(0, 1500) * ms : random.between(0, window / hosts);
    const Time cut_off = apart || random.chance(15) ? random.between(1, 12) * second : 0;
    c.after(when, [&c, cut_off] { c.join_host(cut_off); });
    c.quiet_at = std::max(c.quiet_at, when + cut_off + 8 * second);
  }
  for (auto i = random.between(0, 4); i > 0; --i) {
    const Time at = random.between(0, window);
    const int node = random.pick(c.options.nodes);
    if (random.chance(40))  // it hears of it late
      c.after(at - std::min<Time>(at, random.between(0, 500) * ms),
              [&c, node] { cut_off(c, node, -1, 4 * second); });
    c.after(at, [&c, node] {
      c.request(job::DrainRequested{c.nodes[node].name, true, "a user", true});
    });
    c.causes += 2;
    c.quiet_at = std::max(c.quiet_at, at + 12 * second);
  }
}

/// In some histories of which the groups may change their size, nodes are lost so that they do, and
/// something dies while the new groups begin. Drawn by themselves, too.
void interrupt_restores(Cluster& c) {
  Random random(c.options.seed ^ 0x12e5);
  if (c.options.sizes.empty() || !random.chance(60)) return;
  for (auto i = random.between(1, 3); i > 0; --i) {
    const Time when = random.between(1, static_cast<int64_t>(c.options.steps)) * c.step_time;
    const Time away = random.between(2, 25) * second;
    const int node = random.pick(c.options.nodes);
    const bool interrupts = random.chance(70);
    c.after(when, [&c, node, away, interrupts] {
      ++c.faults["lost_for_reshape"];
      c.causes += 2;
      c.interrupt_due = interrupts;
      c.kill_node(node, away);
    });
    c.quiet_at = std::max(c.quiet_at, when + away + 20 * second);
  }
}

}  // namespace

void schedule_faults(Cluster& c) {
  const bool large = c.options.large();
  const int count = c.random.chance(5) ? 0 : static_cast<int>(c.random.between(1, large ? 5 : 14));
  const Time window = static_cast<Time>(c.options.steps) * c.step_time;
  const std::vector<int> weights = weights_of(c);
  Time when = c.random.between(0, 2000) * ms;
  for (int i = 0; i < count; ++i) {
    // Half of the faults follow the last one closely: during the recovery from it, or at once.
    when += c.random.chance(50) ? c.random.between(0, 1500) * ms
                                : c.random.between(0, std::max<Time>(window / count, ms));
    c.after(when, [&c, weights] { make_fault(c, weights); });
  }
  c.quiet_at = when + 5 * second;
  keep_trainers_down(c);
  keep_old_pages(c);
  stop_all_once(c);
  stop_and_continue(c);
  join_and_remove(c);
  interrupt_restores(c);
}

}  // namespace simplescale::simulation
