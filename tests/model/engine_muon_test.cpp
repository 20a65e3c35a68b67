// Muon, groups of parameters, z-loss and the average of the parameters in the engine: the same bits
// for every layout, nothing committed after a failure, and PyTorch's parameters after 20 steps.
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include "tests/model/engine_world.hpp"
#include "tests/model/test_model.hpp"
#include "tests/must.hpp"
#include "tests/paths.hpp"
#include "tests/python.hpp"
#include "tests/temp_folder.hpp"

using namespace simplescale;

namespace {

struct Layout {
  int groups, shards;
};

EngineOptions muon_options(int leaves, DType precision = DType::f32) {
  EngineOptions options;
  options.shape = test_shape();
  options.precision = precision;
  options.leaves = leaves;
  options.micro_batch_size = 2;
  options.optimizer = Optimizer::muon;
  options.groups = {{"*.mlp.up_proj.*", 0.5, {}}, {"*norm*", 2, 0.05}, {"*.1.*", 1.5, 0.0}};
  options.z_loss = 1e-3f;
  return options;
}

std::string digest_after(World& world, uint64_t first, uint64_t last) {
  world.train(first, last);
  const std::string digest = world.digest();
  for (int group = 1; group < world.groups; ++group) CHECK(world.digest(group) == digest);
  for (Seat& seat : world.seats)
    if (auto* fake = dynamic_cast<FakeBackend*>(seat.backend.get())) CHECK(fake->mistakes == 0);
  return digest;
}

std::string digest_of(const EngineOptions& options, Layout layout, uint64_t steps,
                      const MakeBackend& make) {
  World world(options, layout.groups, layout.shards, make);
  world.initialize();
  return digest_after(world, 1, steps);
}

MakeBackend cpu_backends(int threads) {
  return [=](BackendOptions options) {
    options.threads = threads;
    Result<std::unique_ptr<Backend>> backend = must(make_cpu_backend(options));
    return backend.take();
  };
}

/// Aborts its rank's n-th all_reduce: in Muon's update, after the vote.
class AbortsUpdate : public ForwardingCollective {
 public:
  AbortsUpdate(Collective& inner, int after) : ForwardingCollective(inner), left_(after) {}
  WorkPtr all_reduce(void* data, size_t count, DType dtype) override {
    if (left_-- == 0) abort("the generation is over");
    return ForwardingCollective::all_reduce(data, count, dtype);
  }

 private:
  int left_;
};

/// As NCCL between GPUs: an operation on device memory that a peer aborts may end well, with wrong
/// numbers. Operations on host memory fail.
class EndsWell : public ForwardingCollective {
 public:
  using ForwardingCollective::ForwardingCollective;
  WorkPtr all_gather(const void* shard, void* full, size_t count, DType dtype) override {
    return well(ForwardingCollective::all_gather(shard, full, count, dtype));
  }
  WorkPtr reduce_scatter(const void* full, void* shard, size_t count, DType dtype) override {
    return well(ForwardingCollective::reduce_scatter(full, shard, count, dtype));
  }
  WorkPtr all_reduce(void* data, size_t count, DType dtype) override {
    return well(ForwardingCollective::all_reduce(data, count, dtype));
  }

 private:
  struct Well : Work {
    explicit Well(WorkPtr work) : inner(std::move(work)) {}
    Status wait() override {
      (void)inner->wait();
      return {};
    }
    WorkPtr inner;
  };
  static WorkPtr well(WorkPtr work) { return std::make_unique<Well>(std::move(work)); }
};

/// The elements of a part of the state, unit by unit, without padding.
std::vector<float> part_of(World& world, StateKind kind) {
  const std::vector<Unit> units = units_of(world.options.shape);
  const ShardLayout layout = shard_layout(units, static_cast<size_t>(world.shards));
  std::vector<float> all;
  for (size_t unit = 0; unit < units.size(); ++unit) {
    std::vector<float> whole;
    for (int shard = 0; shard < world.shards; ++shard) {
      const TrainState::Side side = world.states[static_cast<size_t>(shard)].committed();
      const std::vector<float> part = values_of(side, kind);
      const auto first = part.begin() + static_cast<ptrdiff_t>(layout.offset[unit]);
      whole.insert(whole.end(), first, first + static_cast<ptrdiff_t>(layout.count[unit]));
    }
    all.insert(all.end(), whole.begin(), whole.begin() + static_cast<ptrdiff_t>(units[unit].count));
  }
  return all;
}

template <class E>
void write_file(const std::filesystem::path& path, const std::vector<E>& values) {
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(values.data()),
             static_cast<std::streamsize>(values.size() * sizeof(E)));
}

/// What a step of a test has besides EngineOptions.
struct Besides {
  StateKind kind = StateKind::params;  // that is compared
  float router_z_loss = 0, router_balance_loss = 0;
  bool documents = false;
};

std::string names_json(const std::vector<Unit>& units) {
  std::string names;
  for (const Unit& unit : units)
    for (const Parameter& parameter : unit.parameters)
      names += (names.empty() ? "[\"" : ",\"") + parameter.name + "\"";
  return names + "]";
}

/// |ours - torch's| / |torch's - initial| of a part of the state after 20 steps; nothing without
/// torch.
std::optional<double> distance_to_torch(const EngineOptions& options, const char* optimizer,
                                        const Besides& besides = {}) {
  test::Python* const python = test::Python::with({"torch", "numpy"});
  if (!python) {
    MESSAGE("skipped: no Python with torch");
    return {};
  }
  constexpr uint64_t steps = 20;
  World world(options, 2, 2, [&](BackendOptions of) {
    of.router_z_loss = besides.router_z_loss, of.router_balance_loss = besides.router_balance_loss;
    return cpu_backends(1)(of);
  });
  world.documents = besides.documents;
  world.initialize();
  const std::vector<float> initial = part_of(world, StateKind::params);
  std::vector<int32_t> tokens;
  for (uint64_t step = 1; step <= steps; ++step)
    for (uint64_t leaf = 0; leaf < static_cast<uint64_t>(options.leaves); ++leaf) {
      const std::vector<int32_t> part = test_tokens(options, step, leaf, besides.documents);
      tokens.insert(tokens.end(), part.begin(), part.end());
    }
  const test::TempFolder folder;
  const std::string& name = folder.path;
  write_file(name + "/params.bin", initial);
  write_file(name + "/tokens.bin", tokens);
  const ModelShape& s = options.shape;
  std::ostringstream settings;
  settings << R"({"steps":)" << steps << R"(,"samples":)"
           << options.leaves * options.micro_batch_size << R"(,"optimizer":")" << optimizer
           << R"(","momentum":)" << options.muon_momentum << R"(,"weight_decay":)"
           << options.weight_decay << R"(,"grad_clip":)" << options.grad_clip << R"(,"z_loss":)"
           << options.z_loss << R"(,"ema_decay":)" << options.ema_decay << R"(,"router_bias_rate":)"
           << options.router_bias_rate << R"(,"router_z_loss":)" << besides.router_z_loss
           << R"(,"router_balance_loss":)" << besides.router_balance_loss << R"(,"experts":)"
           << testing::experts_json(s.experts) << R"(,"names":)" << names_json(units_of(s))
           << R"(,"dim":)" << s.dim << R"(,"hidden":)" << s.hidden << R"(,"layers":)" << s.layers
           << R"(,"heads":)" << s.heads << R"(,"kv_heads":)" << s.kv_heads << R"(,"vocab":)"
           << s.vocab << R"(,"block_size":)" << s.block_size << R"(,"head_dim":)" << s.head_dim()
           << R"(,"rope_theta":)" << s.rope_theta << R"(,"tie_embeddings":)" << s.tie_embeddings
           << R"(,"norm":"pre","qk_norm":"none","qkv_bias":0,"sliding_window":0,)"
           << R"("rope_scaling":"none","groups":[[".*mlp.up_proj.*",{"learning_rate_factor":0.5}],)"
           << R"([".*norm.*",{"learning_rate_factor":2,"weight_decay":0.05}],)"
           << R"([".*[.]1[.].*",{"learning_rate_factor":1.5,"weight_decay":0}]]})";
  REQUIRE_MESSAGE(python->run(source_dir() + "/tests/model/reference_steps.py", name,
                              name + "/output", {name, settings.str()}) == 0,
                  test::contents(name + "/output"));
  std::vector<float> theirs(initial.size());
  std::ifstream(name + "/" + to_string(besides.kind) + ".out", std::ios::binary)
      .read(reinterpret_cast<char*>(theirs.data()),
            static_cast<std::streamsize>(theirs.size() * sizeof(float)));

  world.train(1, steps);
  const std::vector<float> ours = part_of(world, besides.kind);
  double difference = 0, change = 0;
  for (size_t i = 0; i < ours.size(); ++i) {
    difference += std::pow(double{ours[i]} - double{theirs[i]}, 2);
    change += std::pow(double{theirs[i]} - double{initial[i]}, 2);
  }
  return std::sqrt(difference / change);
}

}  // namespace

TEST_SUITE("engine_muon") {
  TEST_CASE("engine: ENGINE-3 holds with Muon, for every layout, host and device memory") {
    const Layout layouts[] = {{1, 1}, {1, 2}, {1, 3}, {1, 6}, {2, 1}, {2, 2}, {2, 3},
                              {3, 1}, {3, 2}, {4, 1}, {4, 3}, {6, 1}, {12, 1}};
    for (const DType precision : {DType::f32, DType::bf16})
      for (const bool tied : {false, true}) {
        EngineOptions options = muon_options(12, precision);
        options.shape.tie_embeddings = tied;
        const std::string expected = digest_of(options, {1, 1}, 3, fake_backends());
        EngineOptions plain = options;
        plain.optimizer = Optimizer::adamw;
        CHECK(digest_of(plain, {1, 1}, 3, fake_backends()) != expected);
        for (const Layout& layout : layouts)
          for (const bool host : {true, false}) {
            INFO("layout.groups = ", layout.groups, ", layout.shards = ", layout.shards);
            options.sharding = host ? Sharding::full_shard : Sharding::shard_grad_op;
            CHECK(digest_of(options, layout, 3, fake_backends(host)) == expected);
          }
      }
  }

  TEST_CASE("engine: ENGINE-3 holds with Muon on the CPU, for layouts and threads") {
    for (const DType precision : {DType::f32, DType::bf16}) {
      EngineOptions options = muon_options(12, precision);
      options.shape.dim = 96, options.shape.hidden = 200, options.shape.heads = 4;
      const std::string expected = digest_of(options, {1, 1}, 3, cpu_backends(1));
      for (const Layout& layout : {Layout{1, 3}, {2, 2}, {4, 1}, {3, 2}}) {
        CAPTURE(layout.groups);
        CHECK(digest_of(options, layout, 3, cpu_backends(2)) == expected);
      }
    }
  }

  TEST_CASE("engine: the ranks of the world share Muon's matrices") {
    World world(muon_options(12), 2, 2);
    world.initialize();
    world.train(1, 2);
    int sum = 0;
    for (Seat& seat : world.seats) {
      CHECK(seat.fake().orthogonalized >= 2 * 3);
      CHECK(seat.fake().orthogonalized <= 2 * 9);
      sum += seat.fake().orthogonalized;
    }
    CHECK(sum == 2 * 7 * 3);
  }

  TEST_CASE("engine: a state that Muon continues from gives the same bits as never stopping") {
    const EngineOptions options = muon_options(12);
    const std::string expected = digest_of(options, {2, 2}, 5, fake_backends());
    for (const bool host : {true, false}) {
      World first(options, 2, 2, fake_backends(host));
      first.initialize();
      first.train(1, 3);
      World second(options, 2, 2, fake_backends(host), std::move(first.states));
      CHECK(digest_after(second, 4, 5) == expected);
    }
  }

  TEST_CASE(
      "engine: ENGINE-2, a rank that aborts in Muon's update commits nothing, nor do its replicas, "
      "and the step can be made again with the same bits") {
    const EngineOptions options = muon_options(12);
    const std::string expected = digest_of(options, {2, 2}, 4, fake_backends());
    for (const int unit : {0, 2})
      for (const bool host : {true, false}) {
        World world(options, 2, 2, fake_backends(host), {}, 500);
        world.initialize();
        world.train(1, 2);
        for (Seat& seat : world.seats) REQUIRE(seat.engine->wait_for_commit().ok());
        std::vector<EndsWell> shard, replicate;
        for (Seat& seat : world.seats) shard.emplace_back(world.shard_communicator(seat));
        for (Seat& seat : world.seats) replicate.emplace_back(world.replicate_communicator(seat));
        AbortsUpdate aborting(replicate[1], unit);
        for (size_t rank = 0; rank < world.seats.size(); ++rank) {
          Seat& seat = world.seats[rank];
          seat.engine.reset();
          seat.engine = must(Engine::create(
                                 options, *seat.backend,
                                 axes_of(shard[rank], rank == 1 ? static_cast<Collective&>(aborting)
                                                                : replicate[rank]),
                                 *seat.state))
                            .take();
          REQUIRE(seat.engine->attach().ok());
        }
        world.each([&](Seat& seat) {
          const bool ok = world.step(seat, 3).ok();
          (void)seat.engine->wait_for_commit();
          CHECK(seat.state->step() == (ok ? 3 : 2));
        });
        CHECK(world.states[1].step() == 2);
        CHECK(world.states[3].step() == 2);  // its replica
        for (Seat& seat : world.seats) {     // shard 0 has the right numbers and may have committed
          seat.engine.reset();
          REQUIRE(seat.state->rewind(2).ok());
        }
        World next(options, 2, 2, fake_backends(host), std::move(world.states));
        CHECK(digest_after(next, 3, 4) == expected);
      }
  }

  TEST_CASE(
      "engine: 20 steps with Muon, groups and z-loss give the parameters of a plain PyTorch "
      "Muon") {
    EngineOptions options = muon_options(4);
    options.shape.tie_embeddings = false;
    if (const auto distance = distance_to_torch(options, "muon")) CHECK(*distance < 1e-3);
    if (const auto distance = distance_to_torch(options, "torch.optim.Muon"))
      CHECK(*distance < 0.05);  // its products are bf16
    options.optimizer = Optimizer::adamw;
    if (const auto distance = distance_to_torch(options, "adamw")) CHECK(*distance < 1e-3);
    options.moments = DType::bf16;  // torch's moments are fp32
    if (const auto distance = distance_to_torch(options, "adamw")) {
      CHECK(*distance > 1e-3);
      CHECK(*distance < 0.02);
    }
    options.moments = DType::f32;
    options.ema_decay = 0.9;
    if (const auto distance = distance_to_torch(options, "adamw", {.kind = StateKind::ema}))
      CHECK(*distance < 1e-3);
  }

  TEST_CASE("engine: 20 steps of a model with experts give PyTorch's parameters and average") {
    EngineOptions options = muon_options(1);  // a router's losses are those of a micro-batch
    options.micro_batch_size = 8;
    options.shape.experts = {.count = 4,
                             .per_token = 2,
                             .hidden = 24,
                             .shared = 1,
                             .dense_layers = 1,
                             .score = RouterScore::sigmoid,
                             .bias = true};
    options.shape = canonical(options.shape);
    options.grad_clip = 0.1f;
    options.ema_decay = 0.9;
    options.router_bias_rate = 0.01f;
    for (const std::string optimizer : {"adamw", "muon"})
      for (const StateKind kind : {StateKind::params, StateKind::ema})
        for (const bool documents : {false, true}) {
          INFO(optimizer, ", documents = ", documents);
          options.optimizer = optimizer == "muon" ? Optimizer::muon : Optimizer::adamw;
          if (const auto distance =
                  distance_to_torch(options, optimizer.c_str(), {kind, 0.01f, 0.1f, documents}))
            CHECK(*distance < 0.02);  // 1e-3, but for a token whose choice is close
        }
  }

  TEST_CASE("engine: ENGINE-3 holds for the average, which begins with the initial parameters") {
    const float weight = 1 - 0.75f;
    for (const Optimizer optimizer : {Optimizer::adamw, Optimizer::muon})
      for (const auto& make : {fake_backends(true), fake_backends(false), cpu_backends(2)}) {
        EngineOptions options = muon_options(12);
        options.optimizer = optimizer;
        std::vector<std::string> digests;
        for (const Layout& layout : {Layout{1, 1}, {2, 2}, {1, 3}, {4, 1}}) {
          options.ema_decay = 0;
          World without(options, layout.groups, layout.shards, make);
          options.ema_decay = 0.75;
          World world(options, layout.groups, layout.shards, make);
          without.initialize();
          world.initialize();
          std::vector<float> mean = part_of(world, StateKind::ema);
          CHECK(mean == part_of(world, StateKind::params));
          for (uint64_t step = 1; step <= 3; ++step) {
            without.train(step, step);
            world.train(step, step);
            for (World* each : {&without, &world})
              for (Seat& seat : each->seats) REQUIRE(seat.engine->wait_for_commit().ok());
            const std::vector<float> params = part_of(world, StateKind::params);
            CHECK(params == part_of(without, StateKind::params));  // it changes no other bit
            for (size_t i = 0; i < mean.size(); ++i) mean[i] += weight * (params[i] - mean[i]);
            CHECK(mean == part_of(world, StateKind::ema));
            CHECK(mean != params);
          }
          digests.push_back(world.digest());
          World again(options, layout.groups, layout.shards, make, std::move(world.states));
          CHECK(digest_after(again, 4, 5) != digests.back());
          digests.push_back(again.digest());
        }
        for (size_t i = 2; i < digests.size(); ++i) CHECK(digests[i] == digests[i % 2]);
      }
  }

  TEST_CASE("engine: ENGINE-3 holds for moments in bf16, in host and device memory") {
    for (const Optimizer optimizer : {Optimizer::adamw, Optimizer::muon})
      for (const auto& make : {fake_backends(true), fake_backends(false), cpu_backends(2)}) {
        EngineOptions options = muon_options(12);
        options.optimizer = optimizer;
        const std::string with_fp32 = digest_of(options, {1, 1}, 3, make);
        options.moments = DType::bf16;
        const std::string expected = digest_of(options, {1, 1}, 3, make);
        CHECK(expected != with_fp32);
        for (const Layout& layout : {Layout{1, 2}, {2, 1}, {2, 2}, {1, 3}, {3, 4}}) {
          World world(options, layout.groups, layout.shards, make);
          world.initialize();
          digest_after(world, 1, 2);
          World again(options, layout.groups, layout.shards, make, std::move(world.states));
          CHECK(digest_after(again, 3, 3) == expected);
          CHECK(again.states[0].side(0).exp_avg.size() * 2 ==
                again.states[0].side(0).params.size());
        }
        options.seed += 1;  // of the rounding, too
        CHECK(digest_of(options, {1, 1}, 3, make) != expected);
      }
  }

  TEST_CASE("engine: moments in bf16 train as moments in fp32 do") {
    EngineOptions options = muon_options(4);
    options.optimizer = Optimizer::adamw;
    options.beta2 = 0.999f;
    std::vector<float> initial, params[2];
    std::vector<StepResult> results[2];
    for (const DType moments : {DType::f32, DType::bf16}) {
      options.moments = moments;
      World world(options, 1, 1, cpu_backends(2));
      world.initialize();
      initial = part_of(world, StateKind::params);
      results[moments == DType::bf16] = world.train(1, 150);
      params[moments == DType::bf16] = part_of(world, StateKind::params);
    }
    for (size_t i = 0; i < 150; ++i)
      CHECK(results[1][i].loss == doctest::Approx(results[0][i].loss).epsilon(0.01));
    double difference = 0, change = 0;
    for (size_t i = 0; i < initial.size(); ++i) {
      difference += std::pow(double{params[1][i]} - double{params[0][i]}, 2);
      change += std::pow(double{params[0][i]} - double{initial[i]}, 2);
    }
    CHECK(difference > 0);
    CHECK(std::sqrt(difference / change) < 0.05);
  }

  TEST_CASE("engine: a state that does not fit train.moments_precision is refused") {
    EngineOptions options = muon_options(2);
    World world(options, 1, 1);
    options.moments = DType::bf16;
    Seat& seat = world.seats[0];
    CHECK(
        Engine::create(options, *seat.backend, world.axes(seat), *seat.state).status().message() ==
        "the training state has moments in float32, not in bfloat16");
  }

  TEST_CASE("engine: a state that does not fit train.ema_decay is refused") {
    for (const double decay : {0.0, 0.9}) {
      EngineOptions options = muon_options(2);
      options.ema_decay = decay;
      World world(options, 1, 1);
      options.ema_decay = 0.9 - decay;
      Seat& seat = world.seats[0];
      const Status refused =
          Engine::create(options, *seat.backend, world.axes(seat), *seat.state).status();
      CHECK(refused.code() == Code::bad_config);
      CHECK(refused.message() == std::string("the training state has ") +
                                     (decay == 0 ? "no" : "an") + " average of the parameters");
    }
  }
}
