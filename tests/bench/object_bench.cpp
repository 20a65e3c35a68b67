// bench object: MB/s of tokens read from a file, and from a bucket through its cache.
//
//   ./simplescale bench object [MIB]     size of the data; default: 128
//
// Reads every sample once in random order, as the dataloader does, and announces those that follow.
// The server is that of the tests on this machine: moto behind a proxy, both in Python. It bounds
// the figures of the cold cache. Prints one JSON line per row.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "runtime/feed/run_data.hpp"
#include "runtime/feed/sample_order.hpp"
#include "tests/runtime/object_store/server_fixture.hpp"
#include "tests/temp_folder.hpp"

using namespace simplescale;
using namespace simplescale::test;

namespace {

constexpr int64_t kBlock = 1024;
constexpr uint64_t kAhead = 64;  // samples

void require(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.message().c_str());
  std::exit(1);
}

void measure(const char* name, const std::string& source, const DataFiles& files) {
  const auto tokens = TokenSource::open(source, "nanogpt", 65'536, files);
  require(tokens.status());
  const uint64_t samples = tokens->samples(kBlock);
  const SampleOrder order(samples, 1, true);
  std::vector<int32_t> out(kBlock + 1);
  const auto began = std::chrono::steady_clock::now();
  uint64_t announced = 0;
  for (uint64_t i = 0; i < samples; ++i) {
    while (announced < std::min(samples, i + kAhead) &&
           tokens->read_ahead(order.position(announced), kBlock))
      ++announced;
    require(tokens->read_sample(order.position(i), kBlock, out.data()));
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
  const double mb = 2e-6 * static_cast<double>(samples) * kBlock;
  std::printf("{\"row\": \"%s\", \"mb\": %.0f, \"seconds\": %.2f, \"mb_per_s\": %.1f}\n", name, mb,
              took.count(), mb / took.count());
  std::fflush(stdout);
}

}  // namespace

int main(int count, char** arguments) {
  const size_t mib = count > 1 ? static_cast<size_t>(std::atoi(arguments[1])) : 128;
  const auto server = S3Server::start();
  if (!server) {
    std::fprintf(stderr, "there is no Python with moto\n");
    return 1;
  }
  for (const auto& [name, value] :
       {std::pair{"AWS_ACCESS_KEY_ID", kAccessKey}, std::pair{"AWS_SECRET_ACCESS_KEY", kSecretKey},
        std::pair{"AWS_ENDPOINT_URL_S3", server->endpoint().c_str()}})
    setenv(name, value, 1);
  const TempFolder folder;
  const std::string bytes(mib << 20, '\1');
  const std::string local = folder.write("tokens.bin", bytes);
  require(server->store({}).put("tokens.bin", bytes).status());
  measure("file", local, {});
  Config config;
  config.data.source = "s3://bucket/tokens.bin";
  config.data.cache_folder = folder.path;
  for (const char* row : {"bucket, cold cache", "bucket, warm cache"}) {
    const auto files = DataFiles::of(config);
    require(files.status());
    measure(row, config.data.source, *files);
  }
}
