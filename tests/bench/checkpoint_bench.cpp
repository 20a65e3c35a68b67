// bench checkpoint: saving and loading a state at the speed of the storage.
//
//   ./simplescale bench checkpoint [FOLDER] [PRESET] [ROUNDS]     default: /dev/shm small 3
//
// Measures the steps of a save and of a start alone, for a preset's whole model in one shard: the
// private copy of the state, which is checked; the shard's file, hashed and synced; the check of
// that file; and the state read from it. The row "plain write" is the opponent: one thread writes
// the same bytes to the same file system, with neither hash nor copy. Prints one JSON line per row:
// the best round's wall-clock time, and the CPU time of that round.
#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "actors/checkpoint/state_store.hpp"
#include "runtime/checkpoint/checkpoint.hpp"
#include "runtime/config/config.hpp"
#include "runtime/training/state_hash.hpp"

using namespace simplescale;

namespace {

struct Row {
  const char* name;
  std::function<Status()> body;
  double seconds = 1e9, cpu_seconds = 0;
};

double cpu_now() {
  rusage use;
  getrusage(RUSAGE_SELF, &use);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(use.ru_utime) + seconds(use.ru_stime);
}

Status measure(Row& row) {
  using namespace std::chrono;
  const double cpu = cpu_now();
  const auto begun = steady_clock::now();
  SS_RETURN_IF_ERROR(row.body().in(row.name));
  const double seconds = duration<double>(steady_clock::now() - begun).count();
  if (seconds < row.seconds) row.seconds = seconds, row.cpu_seconds = cpu_now() - cpu;
  return {};
}

Status write_plainly(const std::string& path, std::span<const std::byte> bytes) {
  FileOps& ops = system_files();
  SS_ASSIGN(OutputFile file, OutputFile::create(ops, path));
  constexpr size_t kPiece = 4 << 20;
  for (; !bytes.empty(); bytes = bytes.subspan(std::min(kPiece, bytes.size())))
    SS_RETURN_IF_ERROR(file.write(bytes.data(), std::min(kPiece, bytes.size())));
  return file.sync();
}

Status run(const std::string& parent, const ModelShape& shape, int rounds) {
  const std::string name = "ss-checkpoint-bench-" + std::to_string(getpid());
  const std::string folder = parent + "/" + name, tmp = checkpoint_tmp_folder(folder, 7, 1);
  const size_t total = shard_layout(units_of(shape), 1).total;
  SS_ASSIGN(TrainState state, TrainState::create(name, 1, total));
  SS_ASSIGN(const TrainState::Side side, state.begin_write(0));
  for (const std::span<float> part : side.parts())
    for (size_t i = 0; i < part.size(); ++i) part[i] = static_cast<float>(i % 1000003);
  state.commit(7, state_hash(side));
  SS_RETURN_IF_ERROR(make_folders(system_files(), folder));

  CheckpointInfo info;
  info.shape = shape;
  info.step = 7;
  std::vector<ShardRecord> records;
  std::optional<StateStore::Copy> copy;
  std::string published;
  const auto open = [&] { return Checkpoint::open(published); };
  Row rows[] = {
      {"plain write",
       [&] {
         return write_plainly(folder + "/plain",
                              std::as_bytes(std::span(copy->values.get(), copy->side.values())));
       }},
      {"write shard",
       [&]() -> Status {
         SS_ASSIGN(ShardRecord record,
                   write_shard(tmp, shape, 1, 0, copy->side, on_threads(all_cores())));
         records = {record};
         return {};
       }},
      {"copy and check",
       [&]() -> Status {
         SS_ASSIGN(copy, copy_of(name, total, 7, on_threads(all_cores())));
         return {};
       }},
      {"verify",
       [&]() -> Status {
         SS_ASSIGN(Checkpoint checkpoint, open());
         return checkpoint.verify();
       }},
      {"read shard",
       [&]() -> Status {
         SS_ASSIGN(Checkpoint checkpoint, open());
         SS_ASSIGN(const TrainState::Side to, state.begin_write(0));
         SS_RETURN_IF_ERROR(read_shard(checkpoint, 1, 0, to, nullptr, on_threads(all_cores())));
         return {};
       }},
  };
  for (int round = 0; round < rounds; ++round) {
    copy.reset();
    SS_RETURN_IF_ERROR(measure(rows[2]));
    SS_RETURN_IF_ERROR(measure(rows[0]));
    SS_RETURN_IF_ERROR(system_files().unlink(folder + "/plain"));
    SS_RETURN_IF_ERROR(measure(rows[1]));
    copy.reset();
    SS_ASSIGN(published, publish_checkpoint(folder, tmp, "bench", info, records));
    SS_RETURN_IF_ERROR(measure(rows[3]));
    SS_RETURN_IF_ERROR(measure(rows[4]));
  }
  const double bytes = static_cast<double>(3 * total * sizeof(float));
  for (const Row& row : rows)
    std::printf(
        "{\"what\": \"%s\", \"gb\": %.2f, \"seconds\": %.3f, \"cpu_seconds\": %.3f, \"gb_per_s\": "
        "%.2f}\n",
        row.name, bytes / 1e9, row.seconds, row.cpu_seconds, bytes / 1e9 / row.seconds);
  return remove_folder(system_files(), folder);
}

}  // namespace

int main(int argc, char** argv) {
  Config config;
  config.model.preset = argc > 2 ? argv[2] : "small";
  const auto shape = model_shape(config);
  const Status status =
      shape.ok() ? run(argc > 1 ? argv[1] : "/dev/shm", *shape, argc > 3 ? std::atoi(argv[3]) : 3)
                 : shape.status();
  if (status.ok()) return 0;
  std::fprintf(stderr, "checkpoint_bench: %s\n", status.message().c_str());
  return 1;
}
