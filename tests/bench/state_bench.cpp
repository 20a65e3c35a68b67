// bench state: cost of double-buffered state, its hash, its copy, sums in tree order.
//
//   ./simplescale bench state [micro] [mini]     default: both presets
//
// Measures alone what these guarantees cost, for a preset's whole model:
// * keeping the state of every step in shared memory, double-buffered and flipped at commit;
// * the hash of the state, which is computed at commit and again before the next vote;
// * a private copy of the state, as for a peer node;
// * the update of a state in host memory with both hashes in one pass, as of a GPU trainer with
//   parallel.offload;
// * gradient sums that do not depend on the layout (tree order).
// One thread. Prints one JSON line per row; snapshots.py relates the times to that of a step.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "model/backend.hpp"
#include "model/cpu/shard.hpp"
#include "runtime/training/sharding.hpp"
#include "runtime/training/state_hash.hpp"
#include "runtime/training/train_state.hpp"
#include "runtime/training/tree_sum.hpp"

using namespace simplescale;

namespace {

constexpr int kRounds = 9, kLeaves = 8;

struct Preset {
  const char* name;
  ModelShape shape;
};
const Preset kPresets[] = {{"micro", {128, 352, 4, 4, 2, 4096, 256, 10000.0, 1e-5, false}},
                           {"mini", {384, 1024, 6, 6, 2, 8192, 256, 10000.0, 1e-5, false}}};

struct Row {
  std::string name;
  std::function<void()> body;
  std::vector<double> ms;
};

double ms_of(const std::function<void()>& body) {
  using namespace std::chrono;
  const auto begun = steady_clock::now();
  body();
  return duration<double, std::milli>(steady_clock::now() - begun).count();
}

/// Runs all rows in turn, kRounds times after a warm-up round. Prints the median ms of each row.
void measure(const char* preset, std::vector<Row> rows) {
  for (int round = -1; round < kRounds; ++round)
    for (Row& row : rows) {
      const double ms = ms_of(row.body);
      if (round >= 0) row.ms.push_back(ms);
    }
  for (Row& row : rows) {
    std::nth_element(row.ms.begin(), row.ms.begin() + kRounds / 2, row.ms.end());
    std::printf("{\"preset\": \"%s\", \"what\": \"%s\", \"ms\": %.3f}\n", preset, row.name.c_str(),
                row.ms[kRounds / 2]);
  }
  std::fflush(stdout);
}

Status run(const Preset& preset) {
  SS_ASSIGN(auto backend, make_cpu_backend({.shape = preset.shape}));
  const size_t total = shard_layout(units_of(preset.shape), 1).total;
  const ParameterRun runs[] = {{0, total, 1, 0.1f}};
  const std::string name = "ss-state-bench-" + std::to_string(getpid());
  SS_ASSIGN(TrainState state, TrainState::create(name, 1, total));
  SS_ASSIGN(const TrainState::Side first, state.begin_write(0));
  std::fill(first.params.begin(), first.params.end(), 0.5f);
  state.commit(0);

  std::vector<float*> values;  // gradient; params, exp_avg, exp_avg_sq of the state in place
  for (int i = 0; i < 4; ++i) {
    SS_ASSIGN(void* memory, backend->allocate(total * sizeof(float)));
    values.push_back(static_cast<float*>(memory));
  }
  std::fill(values[0], values[0] + total, 0.01f);
  uint64_t step = 0;
  auto adamw = [&](const TrainState::Side& from, const TrainState::Side& to) {
    backend->adamw(AdamW{.learning_rate = 1e-4f, .step = step + 1}, runs, values[0],
                   from.params.data(), from.exp_avg.data(), from.exp_avg_sq.data(),
                   to.params.data(), to.exp_avg.data(), to.exp_avg_sq.data(), nullptr);
  };
  const TrainState::Side own{{values[1], total}, {values[2], total}, {values[3], total}};
  measure(preset.name, {{"AdamW, state of every step kept",
                         [&] {
                           const TrainState::Side from = state.committed();
                           const auto to = state.begin_write(1000);
                           SS_ASSERT(to.ok());
                           adamw(from, *to);
                           state.commit(++step);
                         },
                         {}},
                        {"AdamW in place, private memory", [&] { adamw(own, own), ++step; }, {}},
                        {"update of a state in host memory, with its hashes",
                         [&] {
                           const TrainState::Side from = state.committed();
                           const auto to = state.begin_write(1000);
                           SS_ASSERT(to.ok());
                           cpu::HostUpdate update(
                               {.options = {.learning_rate = 1e-4f, .step = step + 1},
                                .runs = runs,
                                .gradient = values[0],
                                .from = from,
                                .to = *to},
                               backend->host_threads());
                           update.up_to(total);
                           SS_ASSERT(update.hash_of_from() == state.committed_hash() ||
                                     state.committed_hash() == Hash128{});
                           state.commit(++step, update.hash_of_to());
                         },
                         {}}});

  Hash128 hash;
  std::vector<float> copy(3 * total);
  measure(preset.name, {{"hash of the state", [&] { hash = state_hash(state.committed()); }, {}},
                        {"private copy of the state",
                         [&] {
                           const TrainState::Side side = state.committed();
                           float* to = copy.data();
                           for (const auto& part : {side.params, side.exp_avg, side.exp_avg_sq})
                             to = std::copy(part.begin(), part.end(), to);
                         },
                         {}}});

  std::vector<float*> leaves, digits;
  for (int i = 0; i < kLeaves; ++i) {
    SS_ASSIGN(void* memory, backend->allocate(total * sizeof(float)));
    leaves.push_back(static_cast<float*>(memory));
  }
  for (size_t i = 0; i < digits_of(kLeaves, 1); ++i) {
    SS_ASSIGN(void* memory, backend->allocate(total * sizeof(float)));
    digits.push_back(static_cast<float*>(memory));
  }
  const std::string of = " of " + std::to_string(kLeaves) + " gradients";
  measure(preset.name, {{"sum in tree order" + of,
                         [&] {
                           PartialSum sum(digits, total);
                           for (uint64_t i = 0; i < kLeaves; ++i) {
                             const TreeSource leaf{{0, i}, leaves[i], DType::f32};
                             sum.add({&leaf, 1});
                           }
                         },
                         {}},
                        {"running sum" + of,
                         [&] {
                           const TreeNode left{0, 0}, right{0, 1};
                           std::copy_n(leaves[0], total, digits[0]);
                           for (size_t i = 1; i < kLeaves; ++i) {
                             const TreeSource two[] = {{left, digits[0], DType::f32},
                                                       {right, leaves[i], DType::f32}};
                             tree_sum(two, {digits.data(), 1}, total);
                           }
                         },
                         {}}});
  return {};
}

}  // namespace

int main(int argc, char** argv) {
  for (const Preset& preset : kPresets) {
    const bool named = std::any_of(
        argv + 1, argv + argc, [&](const char* name) { return std::string(name) == preset.name; });
    if (argc > 1 && !named) continue;
    if (const Status status = run(preset); !status.ok()) {
      std::fprintf(stderr, "state_bench: %s\n", status.message().c_str());
      return 1;
    }
  }
  return 0;
}
