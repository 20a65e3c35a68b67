// The node's link to the supervisor: which supervisor it obeys, and when it leaves a run that has
// none. Virtual time; the term files are played by messages.
#include "actors/node/supervisor_link.hpp"

#include <doctest/doctest.h>

#include <caf/actor_system_config.hpp>
#include <caf/scheduler/test_coordinator.hpp>
#include <caf/scoped_actor.hpp>

using namespace simplescale;
using namespace std::chrono_literals;

namespace {

constexpr int64_t kJoinTimeoutMs = 10'000;

struct TestConfig : caf::actor_system_config {
  TestConfig() { set("scheduler.policy", caf::atom("testing")); }
};

/// A link of n0, whose node is `node`. The supervisors "one" and "two" answer, others do not.
struct World {
  World()
      : system(config),
        scheduler(dynamic_cast<caf::scheduler::test_coordinator&>(system.scheduler())),
        node(system),
        one(system),
        two(system) {
    LinkOptions options;
    options.node = "n0";
    options.join_timeout_ms = kJoinTimeoutMs;
    options.watch = std::make_shared<TermWatch>(TermFiles({"/nonexistent"}, "a"), nullptr);
    options.lookup = [this](const std::string& address, auto done) {
      if (address == "one") return done(caf::actor_cast<caf::actor>(one));
      if (address == "two") return done(caf::actor_cast<caf::actor>(two));
      done(Status(Code::unavailable, "no answer"));
    };
    options.start_supervisor = [](const std::string&) { return Status(); };
    options.held = [this](const std::string&) { return held; };
    options.disconnect = [this](const caf::node_id&, const std::string& why) { left += why; };
    link = system.spawn(supervisor_link, std::move(options));
    node->send(link, NodeHello{.node = "n0"});
    run();
  }
  ~World() {
    caf::anon_send_exit(link, caf::exit_reason::kill);
    run();
  }
  void run() {
    while (scheduler.try_run_once()) {
    }
  }
  /// Lets time pass in steps, and polls the term files in each of them.
  void pass(int64_t ms, const local::TermsPolled& polled) {
    for (; ms > 0; ms -= 200) {
      caf::anon_send(link, polled);
      run();
      scheduler.advance_time(200ms);
      run();
    }
  }
  void poll(uint64_t number, const std::string& address) {
    caf::anon_send(link, local::TermsPolled{true, true, number, address, true, false});
    run();
  }
  /// True if the next message to this actor is a Message.
  template <class Message>
  static bool got(caf::scoped_actor& by) {
    bool found = false;
    by->receive([&](const Message&) { found = true; }, caf::after(0s) >> [] {});
    return found;
  }
  bool obeys(caf::scoped_actor& supervisor) {
    supervisor->send(link, FenceGeneration{7, ""});
    run();
    return got<FenceGeneration>(node);
  }
  TestConfig config;
  caf::actor_system system;
  caf::scheduler::test_coordinator& scheduler;
  caf::scoped_actor node, one, two;
  caf::actor link;
  std::vector<StateCopy> held;
  std::string left;  // what supervisors that the node has left were told
};

const local::TermsPolled kNone{true, true, 0, "", false, false};

}  // namespace

TEST_SUITE("supervisor link") {
  TEST_CASE("LEAD-1: a node leaves a supervisor that was replaced, though it still answers") {
    // The supervisor's host had lost the run folder and one node. All other nodes went on to obey
    // it, and two supervisors used the same generation number.
    World world;
    world.poll(1, "one");
    CHECK(World::got<NodeHello>(world.one));
    CHECK(world.obeys(world.one));
    CHECK(!world.obeys(world.two));
    world.poll(1, "one");
    CHECK(!World::got<NodeHello>(world.one));
    CHECK(world.left.empty());
    world.poll(2, "two");
    CHECK(world.left == "term 2 leads");  // else it would count on this node
    CHECK(World::got<NodeHello>(world.two));
    CHECK(!world.obeys(world.one));
    CHECK(world.obeys(world.two));
  }

  TEST_CASE("JOB-1: without a supervisor, a node stays while its memory holds a state") {
    // On a full disk no supervisor can claim a term. All nodes left after join_timeout_ms, and
    // the steps since the last checkpoint were gone with their memory.
    World world;
    world.held = {{0, 5, 1}};
    world.node->send(world.link, TrainerUp{.trainer = "n0.0", .pid = 7});
    world.pass(10 * kJoinTimeoutMs, kNone);
    CHECK(!World::got<Shutdown>(world.node));
    world.node->send(world.link, RequestStop{0, "Ctrl-C", false});
    world.pass(400, kNone);
    CHECK(World::got<Shutdown>(world.node));

    World copies;
    copies.node->send(copies.link, PeerCopies{"n0", {{}}});
    copies.pass(10 * kJoinTimeoutMs, kNone);
    CHECK(!World::got<Shutdown>(copies.node));
    copies.node->send(copies.link, RequestStop{0, "Ctrl-C twice", true});
    copies.run();
    CHECK(World::got<Shutdown>(copies.node));

    World empty;
    empty.pass(kJoinTimeoutMs, kNone);
    CHECK(!World::got<Shutdown>(empty.node));
    empty.pass(400, kNone);
    CHECK(World::got<Shutdown>(empty.node));
  }

  TEST_CASE("JOB-4: time in which a node was stopped is no time without a supervisor") {
    // `scontrol suspend` stopped a run that had just lost its supervisor. After `scontrol resume`
    // the nodes left at once.
    World world;
    world.pass(kJoinTimeoutMs - 1'000, kNone);
    world.scheduler.advance_time(1h);
    world.run();
    CHECK(!World::got<Shutdown>(world.node));
    world.pass(800, kNone);
    CHECK(!World::got<Shutdown>(world.node));
    world.pass(400, kNone);
    CHECK(World::got<Shutdown>(world.node));
  }

  TEST_CASE("supervisor link: old answers of the run folder are no new terms") {
    // An NFS client alternated between an old and a new listing. Each answer counted as another
    // term, and twenty of them as a run whose supervisors all end.
    World world;
    bool left = false;
    for (int64_t ms = 0; ms < 30'000; ms += 1'000) {
      world.pass(600, {true, true, 7, "none", true, false});
      world.pass(400, {true, true, 6, "none", true, false});
      left = left || World::got<Shutdown>(world.node);
    }
    CHECK(!left);
  }

  TEST_CASE("supervisor link: supervisors that all end at once do not keep a node for ever") {
    // Each claimed a term, failed and ended. Every new term counted as a sign of life.
    World world;
    uint64_t number = 0;
    bool left = false;
    for (int64_t ms = 0; ms < 60'000 && !left; ms += 1'000) {
      world.pass(1'000, {true, true, ++number, "none", true, false});
      left = World::got<Shutdown>(world.node);
    }
    CHECK(left);
    CHECK(number >= 20);
  }
}
