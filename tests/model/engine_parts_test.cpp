// The engine's parts: initial values, decay runs and the vote.
#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <map>
#include <random>
#include <thread>

#include "model/engine/optimizer.hpp"
#include "model/engine/vote.hpp"
#include "runtime/training/initial_values.hpp"
#include "tests/model/engine_world.hpp"
#include "tests/must.hpp"

using namespace simplescale;

TEST_SUITE("engine_parts") {
  TEST_CASE("initial values: any cut of a unit into pieces gives the same values") {
    const std::vector<Unit> units = units_of(test_shape());
    for (const Unit& unit : units) {
      std::vector<float> whole(unit.count + 100);
      initial_values(unit, 7, 0, whole);
      for (size_t piece : {size_t{1}, size_t{37}, size_t{1024}}) {
        std::vector<float> pieces(whole.size(), -1.0f);
        for (size_t first = 0; first < whole.size(); first += piece)
          initial_values(unit, 7, first,
                         std::span(pieces).subspan(first, std::min(piece, whole.size() - first)));
        CHECK(pieces == whole);
      }
      for (size_t i = unit.count; i < whole.size(); ++i) REQUIRE(whole[i] == 0);
      for (const Parameter& parameter : unit.parameters)
        if (!parameter.is_matrix())
          for (size_t i = 0; i < parameter.count; ++i) REQUIRE(whole[parameter.offset + i] == 1);
    }
    std::vector<float> a(256), b(256), c(256);
    initial_values(units[0], 7, 0, a);
    initial_values(units[0], 8, 0, b);
    initial_values(units.back(), 7, units.back().parameters[1].offset, c);
    CHECK(a != b);
    CHECK(a != c);
  }

  TEST_CASE("initial values and decay: biases begin at zero and do not decay") {
    ModelShape shape = test_shape();
    shape.qkv_bias = true, shape.qk_norm = QkNorm::head;
    const std::vector<Unit> units = units_of(shape);
    const ShardLayout layout = shard_layout(units, 1);
    const auto runs = parameter_runs(units, layout, 0, {}, 0.1f);
    size_t biases = 0, norms = 0;
    for (size_t u = 0; u < units.size(); ++u) {
      std::vector<float> values(units[u].count);
      initial_values(units[u], 7, 0, values);
      for (const Parameter& parameter : units[u].parameters) {
        if (parameter.is_matrix()) continue;
        (parameter.is_bias() ? biases : norms) += 1;
        for (size_t i = 0; i < parameter.count; ++i) {
          REQUIRE(values[parameter.offset + i] == (parameter.is_bias() ? 0 : 1));
          const size_t at = layout.offset[u] + parameter.offset + i;
          for (const ParameterRun& run : runs)
            if (at >= run.first && at < run.first + run.count) REQUIRE(run.weight_decay == 0);
        }
      }
    }
    CHECK(biases == 3 * static_cast<size_t>(shape.layers));
    CHECK(norms == 4 * static_cast<size_t>(shape.layers) + 1);
  }

  TEST_CASE("initial values: moments and tails are those of a normal distribution") {
    const size_t count = 1'000'000;
    double sum = 0, square = 0, fourth = 0, neighbours = 0, previous = 0;
    size_t beyond_two = 0;
    for (size_t i = 0; i < count; ++i) {
      const double x = normal_at(12345, i);
      sum += x;
      square += x * x;
      fourth += x * x * x * x;
      neighbours += x * previous;
      previous = x;
      beyond_two += std::abs(x) > 2;
    }
    CHECK(std::abs(sum / count) < 0.004);
    CHECK(square / count == doctest::Approx(1).epsilon(0.005));
    CHECK(fourth / count == doctest::Approx(3).epsilon(0.02));
    CHECK(std::abs(neighbours / count) < 0.004);
    CHECK(static_cast<double>(beyond_two) / count == doctest::Approx(0.0455).epsilon(0.03));
  }

  TEST_CASE("initial values: a seed gives these bits in every version") {
    const double expected[] = {normal_at(1, 0), normal_at(1, 1), normal_at(1, 1'000'003)};
    // Box-Muller with the mathematics library on the same splitmix64 values differs by less than
    // 1e-13.
    auto splitmix = [](uint64_t key, uint64_t n) {
      uint64_t z = key + (n + 1) * 0x9e3779b97f4a7c15u;
      z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
      z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
      return z ^ (z >> 31);
    };
    for (uint64_t n = 0; n < 10'000; ++n) {
      const double u1 = (static_cast<double>(splitmix(1, 2 * n) >> 11) + 0.5) * 0x1p-53;
      const double u2 = static_cast<double>(splitmix(1, 2 * n + 1) >> 11) * 0x1p-53;
      const double radius = std::sqrt(-2 * std::log(u1)), turn = 2 * 3.14159265358979323846 * u2;
      REQUIRE(std::abs(normal_at(1, 2 * n) - radius * std::cos(turn)) < 1e-13);
      REQUIRE(std::abs(normal_at(1, 2 * n + 1) - radius * std::sin(turn)) < 1e-13);
    }
    CHECK(expected[0] == -0x1.ced805e6872ddp-6);
    CHECK(expected[1] == -0x1.10cc5175fade7p+0);
    CHECK(expected[2] == -0x1.cdef632fc4909p+0);
  }

  TEST_CASE(
      "parameter runs: each parameter has its group's rates wherever a shard cuts it; padding and, "
      "without a group, norms never decay") {
    const std::vector<Unit> units = units_of(test_shape());
    const std::vector<ParameterGroup> none,
        some{{"*.mlp.*", 0.5, {}}, {"*norm*", 3, 0.25}, {"model.layers.1.*", 2, 0.0}};
    for (const std::vector<ParameterGroup>& groups : {none, some})
      for (size_t shards = 1; shards <= 4; ++shards) {
        const ShardLayout layout = shard_layout(units, shards);
        for (size_t shard = 0; shard < shards; ++shard) {
          std::vector<ParameterRates> rates(layout.total, {-1, -1});
          size_t at = 0;
          for (const ParameterRun& run : parameter_runs(units, layout, shard, groups, 0.1f)) {
            REQUIRE(run.first == at);
            at += run.count;
            std::fill_n(rates.begin() + static_cast<ptrdiff_t>(run.first), run.count,
                        ParameterRates{run.rate_factor, run.weight_decay});
          }
          CHECK(at == layout.total);
          for (const ParameterRun& run : parameter_runs(units, layout, shard, groups, 0.1f))
            for (size_t i = run.first; i < run.first + run.count; ++i) {
              size_t unit = 0;  // of the element; one shard has it at the same place
              while (unit + 1 < units.size() && i >= layout.offset[unit + 1]) ++unit;
              const size_t element = shard * layout.count[unit] + i - layout.offset[unit];
              if (element < units[unit].count)
                REQUIRE(run.element + i - run.first ==
                        shard_layout(units, 1).offset[unit] + element);
            }
          for (size_t unit = 0; unit < units.size(); ++unit) {
            for (size_t i = 0; i < layout.count[unit]; ++i) {
              const size_t element = shard * layout.count[unit] + i;
              ParameterRates expected;
              for (const Parameter& p : units[unit].parameters) {
                if (element < p.offset || element >= p.offset + p.count) continue;
                expected.weight_decay = p.is_matrix() ? 0.1f : 0;
                if (groups.empty()) continue;
                if (p.name.find(".mlp.") != std::string::npos)
                  expected.rate_factor = 0.5f;
                else if (p.name.find("norm") != std::string::npos)
                  expected = {3, 0.25f};
                else if (p.name.find("layers.1.") != std::string::npos)
                  expected = {2, 0};
              }
              REQUIRE(rates[layout.offset[unit] + i] == expected);
            }
          }
        }
      }
  }

  TEST_CASE(
      "vote: the norm has the same bits for any number of shards and is the square root of all "
      "squares") {
    const ModelShape shape{.dim = 64,
                           .hidden = 200,
                           .layers = 2,
                           .heads = 2,
                           .kv_heads = 1,
                           .vocab = 999,
                           .block_size = 8};
    const std::vector<Unit> units = units_of(shape);
    std::vector<std::vector<double>> squares;  // per unit and block without padding
    double plain = 0;
    for (const Unit& unit : units) {
      squares.emplace_back();
      for (size_t block = 0; block * kShardAlign < unit.count; ++block) {
        squares.back().push_back(std::exp(3 * normal_at(77, squares.size() * 1000 + block)));
        plain += squares.back().back();
      }
    }
    double expected = 0;
    for (int shards : {1, 2, 3, 4, 5, 7, 8, 16, 33}) {
      const ShardLayout layout = shard_layout(units, static_cast<size_t>(shards));
      ThreadCommunicator group(shards, 60'000);
      std::vector<double> norms(static_cast<size_t>(shards));
      std::vector<std::thread> threads;
      for (int rank = 0; rank < shards; ++rank) {
        threads.emplace_back([&, rank] {
          Ballot ballot{.step = 1, .losses = {2.0}};
          std::vector<double> blocks(layout.total / kShardAlign, -1);  // -1: padding
          for (size_t unit = 0; unit < units.size(); ++unit) {
            const size_t count = layout.count[unit] / kShardAlign,
                         first = static_cast<size_t>(rank) * count;
            for (size_t i = 0; i < count && first + i < squares[unit].size(); ++i)
              blocks[layout.offset[unit] / kShardAlign + i] = squares[unit][first + i];
          }
          ThreadCommunicator alone(1, 60'000);
          WaitClock wait;
          const Shares shares = Shares::even(static_cast<uint64_t>(shards), 1, layout.shards);
          Vote vote(units, layout, shares, axes_of(group.rank(rank), alone.rank(0)));
          for (const BlockTree& tree : vote.square_trees())
            ballot.squares.push_back(
                sum_in_tree_order(&blocks[static_cast<size_t>(tree.first)], tree.blocks()));
          const Result<Verdict> verdict = vote.hold(ballot, wait);
          norms[static_cast<size_t>(rank)] =
              verdict.ok() && verdict->status.ok() ? verdict->grad_norm : -1;
        });
      }
      for (std::thread& thread : threads) thread.join();
      if (shards == 1) expected = norms[0];
      for (double norm : norms) CHECK(norm == expected);
    }
    CHECK(expected == doctest::Approx(std::sqrt(plain)).epsilon(1e-12));
  }

  TEST_CASE("vote: over any axes all ranks come to the same verdict, in which every rank counts") {
    std::mt19937 random(11);
    const auto below = [&](size_t n) { return random() % n; };
    const std::vector<Unit> units = units_of(test_shape());
    for (int trial = 0; trial < 60; ++trial) {
      // The groups are two axes: a rank is its shard, plus shards times its place on the others.
      const std::vector<size_t> sizes = {1 + below(3), 1 + below(3), 1 + below(3)};
      const std::vector<std::string> names = {kShardAxis, kReplicateAxis, "cell"};
      const size_t shards = sizes[0], groups = sizes[1] * sizes[2], world = groups * shards;
      CAPTURE(trial);
      const ShardLayout layout = shard_layout(units, shards);
      const Shares shares = Shares::even(1 + below(3 * world), groups, shards, 1 + below(2));
      std::vector<std::map<size_t, std::unique_ptr<ThreadCommunicator>>> of_axis(sizes.size());
      std::vector<Axes> axes(world);
      for (size_t rank = 0; rank < world; ++rank)
        for (size_t axis = 0, stride = 1; axis < sizes.size(); stride *= sizes[axis++]) {
          const size_t place = rank / stride % sizes[axis];
          auto& members = of_axis[axis][rank - place * stride];
          if (!members)
            members = std::make_unique<ThreadCommunicator>(static_cast<int>(sizes[axis]), 60'000);
          axes[rank].push_back({names[axis], &members->rank(static_cast<int>(place))});
        }
      const size_t stops = below(world), fails = below(2 * world), damaged = below(3 * world);
      std::vector<Verdict> verdicts(world), compared(world);
      std::vector<std::thread> threads;
      for (size_t rank = 0; rank < world; ++rank)
        threads.emplace_back([&, rank] {
          const size_t group = rank / shards, shard = rank % shards;
          Vote vote(units, layout, shares, axes[rank]);
          Ballot ballot{.step = 5, .state_hash = {shard, rank == damaged}, .trained = 1 + rank};
          ballot.control.stop = rank == stops;
          if (rank == fails) ballot.failure = {Code::bad_data, "no tokens"};
          for (uint64_t k = 0; k < shares.count(group, shard); ++k)
            ballot.losses.push_back(static_cast<double>(1 + shares.leaf(group, shard, k)));
          ballot.squares.assign(vote.square_trees().size(), static_cast<double>(1 + shard));
          WaitClock wait;
          if (auto verdict = vote.hold(ballot, wait); verdict.ok()) verdicts[rank] = verdict.take();
          if (auto verdict = vote.compare(4, ballot.state_hash, wait); verdict.ok())
            compared[rank] = verdict.take();
        });
      for (std::thread& thread : threads) thread.join();
      const Verdict& first = verdicts[0];
      for (const Verdict& verdict : verdicts) {
        CHECK(verdict.status.message() == first.status.message());
        CHECK(verdict.suspect == first.suspect);
        CHECK(verdict.loss == first.loss);
        CHECK(verdict.grad_norm == first.grad_norm);
        CHECK(verdict.agreed == StepControl{.stop = true});
        CHECK(verdict.trained == world * (world + 1) / 2);
      }
      CHECK(first.loss == doctest::Approx(static_cast<double>(1 + shares.leaves()) / 2));
      CHECK(first.grad_norm > 0);
      const bool differs = damaged < world && groups > 1;
      if (fails < world) {
        CHECK(first.suspect == static_cast<int>(fails));
        CHECK(first.cause == "no tokens");
        CHECK(has(first.status, "trainer " + std::to_string(fails % shards) + ": no tokens"));
        CHECK(has(first.status, "group " + std::to_string(fails / shards % sizes[1])));
      } else if (differs) {
        CHECK(first.status.code() == Code::mismatch);
        if (groups > 2) CHECK(first.suspect == static_cast<int>(damaged));
      } else {
        CHECK(works(first.status));
      }
      for (const Verdict& verdict : compared)
        CHECK(verdict.status.code() == (differs ? Code::mismatch : Code::ok));
    }
  }

  TEST_CASE("vote: a mismatch of norms names both replicas") {
    const std::vector<Unit> units = units_of(test_shape());
    const ShardLayout layout = shard_layout(units, 1);
    ThreadCommunicator replicate(3, 60'000);
    std::vector<Status> statuses(3);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < 3; ++rank) {
      threads.emplace_back([&, rank] {
        Ballot ballot{.step = 4, .losses = {1.0}};
        ThreadCommunicator alone(1, 60'000);
        WaitClock wait;
        const Shares shares = Shares::even(3, 3, 1);
        Vote vote(units, layout, shares, axes_of(alone.rank(0), replicate.rank(rank)));
        ballot.squares.assign(vote.square_trees().size(), 0);
        ballot.squares[0] = rank == 2 ? 9 : 4;
        const Result<Verdict> verdict = vote.hold(ballot, wait);
        if (verdict.ok()) statuses[static_cast<size_t>(rank)] = verdict->status;
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (const Status& status : statuses) {
      CHECK(status.code() == Code::mismatch);
      CHECK(status.message() ==
            "step 4: the replicas computed different gradient norms: 2 in group 0, 3 in group 2");
    }
  }

  TEST_CASE("vote: a gradient norm that is not finite fails the step, also if the loss is finite") {
    const std::vector<Unit> units = units_of(test_shape());
    const ShardLayout layout = shard_layout(units, 1);
    ThreadCommunicator shard(1, 60'000), replicate(1, 60'000);
    for (const double square :
         {std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
      Ballot ballot{.step = 4, .losses = {1.0}};
      const Shares shares = Shares::even(1, 1, 1);
      Vote vote(units, layout, shares, axes_of(shard.rank(0), replicate.rank(0)));
      ballot.squares.assign(vote.square_trees().size(), 0);
      ballot.squares[0] = square;
      WaitClock wait;
      const Result<Verdict> verdict = must(vote.hold(ballot, wait));
      CHECK(verdict->status.code() == Code::bad_data);
      CHECK_FALSE(verdict->suspect);
    }
  }

  TEST_CASE("vote: a loss that is not finite names its rank, if it is the only one") {
    constexpr double nan = std::numeric_limits<double>::quiet_NaN();
    // Two groups of two trainers. Group 0 has leaves 0 to 3 and 6, group 1 has 4 and 5.
    const Shares shares({5, 2}, 2);
    const std::vector<double> fine(7, 1.0);
    auto suspect = [&](std::vector<size_t> leaves) {
      std::vector<double> losses = fine;
      for (const size_t leaf : leaves) losses[leaf] = nan;
      return suspect_of(losses, shares);
    };
    CHECK_FALSE(suspect({}));
    CHECK(suspect({1}) == 1);
    CHECK(suspect({1, 3}) == 1);
    CHECK(suspect({0, 2, 6}) == 0);
    CHECK(suspect({4}) == 2);
    CHECK(suspect({5}) == 3);
    CHECK_FALSE(suspect({0, 5}));
    CHECK_FALSE(suspect({4, 6}));
  }

  TEST_CASE("vote: a majority of replicas outvotes the rest; two replicas have no majority") {
    const Hash128 a{1, 2}, b{1, 3}, c{4, 2};
    CHECK_FALSE(find_mismatch(7, 2, std::vector{a, b, a, b, a, b}));
    CHECK_FALSE(find_mismatch(7, 1, std::vector{a}));
    const std::optional<Mismatch> three = find_mismatch(7, 2, std::vector{a, b, a, c, a, b});
    REQUIRE(three);
    CHECK(three->step == 7);
    CHECK(three->shard == 1);
    CHECK(three->of_group == std::vector{b, c, b});
    CHECK(three->wrong() == std::vector{1});
    CHECK(three->status().code() == Code::mismatch);
    CHECK(three->status().message() ==
          "the replicas of shard 1 differ after step 7: most agree, and not with that of group 1");
    const std::optional<Mismatch> two = find_mismatch(7, 1, std::vector{a, b});
    REQUIRE(two);
    CHECK(two->wrong().empty());
    CHECK(two->status().message() ==
          "the replicas of shard 0 differ after step 7; no majority shows which one is wrong, so "
          "the step is made again");
    CHECK_FALSE(find_mismatch(7, 1, std::vector{a, b, a, b})->right);
    const std::optional<Mismatch> five = find_mismatch(7, 1, std::vector{a, b, c, a, a});
    CHECK(five->wrong() == std::vector{1, 2});
    // Only a single lost_majority rank is a suspect: two of them may have got the same wrong data.
    CHECK(suspect_of(*three, 2) == 3);
    CHECK_FALSE(suspect_of(*two, 1));
    CHECK_FALSE(suspect_of(*five, 1));
  }
}
