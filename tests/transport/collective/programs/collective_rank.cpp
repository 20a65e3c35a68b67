// One rank as its own process, for tests that kill ranks or put them into network namespaces.
//
//   collective_rank FOLDER RANK SIZE GENERATION SCENARIO [TIMEOUT_MS] [HOST] [KEY]
//
// The ranks exchange addresses through files in FOLDER. SCENARIO is one of
//   all      runs operations and prints "ok HASH"
//   steady   does that again and again until FOLDER/end exists; prints "ok HASH" after the first
//            time, after each time that gives another hash, and after the last time
//   endless  all-reduces until an error; prints "started" after the first all-reduce, and at the
//            end the error's code and message
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "runtime/base/dtype.hpp"
#include "transport/collective/data_plane.hpp"

using namespace simplescale;

namespace {

std::vector<uint8_t> read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// The address of every rank; empty if one does not appear within 60 s.
std::vector<std::vector<uint8_t>> exchange(const std::string& folder, const std::string& generation,
                                           int rank, int size, const std::vector<uint8_t>& mine) {
  auto path = [&](int r) { return folder + "/" + generation + "-" + std::to_string(r); };
  {
    std::ofstream file(path(rank) + ".tmp", std::ios::binary);
    file.write(reinterpret_cast<const char*>(mine.data()),
               static_cast<std::streamsize>(mine.size()));
  }
  std::filesystem::rename(path(rank) + ".tmp", path(rank));
  std::vector<std::vector<uint8_t>> all;
  // Polls: the ranks share only this folder, in network namespaces not even the loopback device.
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  for (int r = 0; r < size; ++r) {
    while (!std::filesystem::exists(path(r))) {
      if (std::chrono::steady_clock::now() > deadline) return {};
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    all.push_back(read(path(r)));
  }
  return all;
}

int failed(const Status& status) {
  std::printf("%s: %s\n", to_string(status.code()), status.message().c_str());
  return 1;
}

Result<uint64_t> hash_of_all(Collective& c) {
  uint64_t hash = 14695981039346656037u;
  for (const size_t count : {size_t{1}, size_t{1000}, size_t{300'001}}) {
    const size_t size = static_cast<size_t>(c.size());
    std::vector<float> data(count), full(count * size), shard(count);
    for (size_t i = 0; i < count; ++i)
      data[i] = 1.0f / static_cast<float>(1 + i * 7 + static_cast<size_t>(c.rank()) * 13);
    SS_RETURN_IF_ERROR(c.all_gather(data.data(), full.data(), count, DType::f32)->wait());
    SS_RETURN_IF_ERROR(c.all_reduce(data.data(), count, DType::f32)->wait());
    SS_RETURN_IF_ERROR(c.reduce_scatter(full.data(), shard.data(), count, DType::f32)->wait());
    SS_RETURN_IF_ERROR(c.all_gather(shard.data(), full.data(), count, DType::f32)->wait());
    for (const auto* values : {&data, &full})
      for (const float value : *values)
        hash = (hash ^ std::bit_cast<uint32_t>(value)) * 1099511628211u;
  }
  return hash;
}

int run_all(Collective& c, const std::string& end) {
  const auto print = [](uint64_t hash) {
    std::printf("ok %016llx\n", static_cast<unsigned long long>(hash));
  };
  uint64_t printed = 0;
  for (float ends = 0; ends == 0;) {
    const auto hash = hash_of_all(c);
    if (!hash.ok()) return failed(hash.status());
    if (*hash != printed) print(printed = *hash);
    ends = end.empty() || std::filesystem::exists(end);
    if (auto s = c.all_reduce(&ends, 1, DType::f32)->wait(); !s.ok()) return failed(s);
  }
  if (!end.empty()) print(printed);
  return 0;
}

int run_endless(Collective& c) {
  std::vector<float> data(100'000);
  for (bool first = true;; first = false) {
    const Status status = c.all_reduce(data.data(), data.size(), DType::f32)->wait();
    if (!status.ok()) return failed(status);
    if (first) std::printf("started\n");
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 6) return 64;
  setvbuf(stdout, nullptr, _IOLBF, 0);
  const std::string folder = argv[1], scenario = argv[5];
  const int rank = std::atoi(argv[2]), size = std::atoi(argv[3]);
  DataPlaneOptions options;
  options.shm_prefix = "ss-rank-" + std::filesystem::path(folder).filename().string() + "-" +
                       argv[4] + "-" + argv[2];
  options.arena_bytes = 8 << 20;
  options.communicators = 1;
  if (argc > 7) options.host_id = argv[7];
  if (argc > 8) options.key = argv[8];
  if (const char* trusted = std::getenv("COLLECTIVE_RANK_TRUSTED"))
    options.trusted_networks = trusted;
  auto plane = DataPlane::create(options);
  if (!plane.ok()) return failed(plane.status());
  CommunicatorSpec spec;
  spec.generation = std::stoull(argv[4]);
  spec.name = "world";
  spec.rank = rank;
  spec.members = exchange(folder, argv[4], rank, size, (*plane)->address());
  if (spec.members.empty()) return failed(Status(Code::deadline, "a rank has not appeared"));
  spec.timeout_ms = argc > 6 ? std::atoi(argv[6]) : 20'000;
  auto joined = (*plane)->join(spec);
  if (!joined.ok()) return failed(joined.status());
  if (scenario == "endless") return run_endless(**joined);
  return run_all(**joined, scenario == "steady" ? folder + "/end" : "");
}
