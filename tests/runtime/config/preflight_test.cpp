// The checks before any process starts.
#include <doctest/doctest.h>

#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "runtime/config/preflight.hpp"
#include "tests/must.hpp"
#include "tests/temp_folder.hpp"

using namespace simplescale;
namespace fs = std::filesystem;

namespace {

constexpr ProcessLimits kUnlimited{UINT64_MAX, UINT64_MAX, UINT64_MAX, UINT64_MAX};

struct Fixture {
  const test::TempFolder temporary;
  const fs::path folder = temporary.path;
  Config config;
  PreflightInput input;
  Fixture() {
    config.run.name = "x";
    config.run.folder = (folder / "runs/x").string();
    config.data.source = (folder / "text.txt").string();
    config.model.preset = "micro";
    config.train.max_steps = 10;
    input.limits = kUnlimited;
    std::ofstream(config.data.source) << "text";
  }
  Status check() {
    const auto plan = must(make_plan(config));
    return preflight(config, *plan, input);
  }
};

}  // namespace

TEST_SUITE("config preflight") {
  TEST_CASE_FIXTURE(Fixture, "preflight: a run that can start passes and nothing is left behind") {
    CHECK(works(check()));
    CHECK_FALSE(fs::exists(folder / "runs"));
    fs::create_directories(config.run.folder);
    CHECK(check().ok());
    CHECK(fs::is_empty(config.run.folder));
  }

  TEST_CASE_FIXTURE(Fixture, "preflight: the probe follows no link that another user has made") {
    fs::create_directories(config.run.folder);
    const std::string link = config.run.folder + "/" + kWritableProbe + std::to_string(getpid());
    fs::create_symlink(config.data.source, link);
    CHECK(check().ok());
    CHECK(fs::file_size(config.data.source) == 4);
    CHECK(fs::is_symlink(link));
  }

  TEST_CASE_FIXTURE(Fixture, "preflight: the error names a folder that cannot be written") {
    config.run.folder = config.data.source + "/runs";  // below a file
    Status status = check();
    CHECK(status.code() == Code::bad_config);
    CHECK(status.message().starts_with("run.folder: cannot write to "));
    config.run.folder = config.data.source;  // a file itself
    CHECK(check().code() == Code::bad_config);
    CHECK(fs::exists(config.data.source));
    config.run.folder = "/proc/simplescale-run";
    CHECK(check().code() == Code::bad_config);
    config.run.folder = (folder / "runs").string();
    config.checkpoint.folder = config.data.source + "/checkpoints";
    CHECK(check().message().starts_with("checkpoint.folder: cannot write to "));
    config.checkpoint.folder.clear();
    config.data.folder = "/proc/simplescale-data";
    CHECK(check().ok());  // nothing will be written there
    input.prepares_data = true;
    CHECK(check().message().starts_with("data.folder: cannot write to "));
    input.writes_checkpoints = false;
    CHECK(check().ok());
  }

  TEST_CASE_FIXTURE(Fixture,
                    "preflight: a disk too small for the checkpoints is refused with figures") {
    config.checkpoint.disk_every_steps = 1;
    config.checkpoint.keep = 3;
    const auto plan = make_plan(config);
    CHECK(checkpoint_bytes(*plan) == 12 * 1787008);
    CHECK(checkpoint_space_bytes(config, *plan) == 4 * 12 * 1787008);
    config.checkpoint.disk_every_steps = 0;  // only the checkpoint at the end
    CHECK(checkpoint_space_bytes(config, *plan) == 2 * 12 * 1787008);
    config.checkpoint.permanent_every_steps = 5;
    CHECK(checkpoint_space_bytes(config, *plan) == 4 * 12 * 1787008);
    config.checkpoint.permanent_every_steps = 0;
    config.checkpoint.disk_every_steps = 1;
    config.train.max_steps = 1'000'000'000;
    config.checkpoint.keep = 1'000'000;  // 21 TB
    const Status status = check();
    CHECK(says(status, Code::bad_config, "checkpoint.keep = 1000000 needs "));
    CHECK(status.message().find("MiB free") != std::string::npos);
  }

  TEST_CASE_FIXTURE(Fixture,
                    "preflight: shared memory too small for the states is refused with figures") {
    input.oversubscribe = true;  // skips the check of memory
    input.trainers_on_host = 100'000'000;
    const Status status = check();
    CHECK(says(status, Code::bad_config, "of shared memory, but it has only "));
    CHECK(status.message().find("of memory left") != std::string::npos);
    input.trainers_on_host = 1;
    input.memory_left = 1 << 20;
    CHECK(check().message().find("but it has only 1.0 MiB of memory left") != std::string::npos);
  }

  TEST_CASE_FIXTURE(Fixture, "preflight: limits under which a run cannot begin are named") {
    const auto said = [&] { return check().message(); };
    CHECK(check().ok());
    input.limits.descriptors = 16;
    CHECK(said().find("(ulimit -n) of at least 56, but the limit is 16") != std::string::npos);
    input.limits = kUnlimited;
    input.limits.threads = 12;
    CHECK(said().find("(ulimit -u) of at least ") != std::string::npos);
    input.limits = kUnlimited;
    input.limits.address_space = 800'000 << 10;
    CHECK(check().code() == Code::io);
    CHECK(said().find("(ulimit -v) of at least ") != std::string::npos);
  }

  TEST_CASE_FIXTURE(Fixture, "preflight: a port that is taken is refused") {
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    REQUIRE(bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
    REQUIRE(listen(fd, 1) == 0);
    socklen_t length = sizeof address;
    REQUIRE(getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length) == 0);
    config.metrics.http_port = ntohs(address.sin_port);
    CHECK(says(check(), Code::bad_config, "Address already in use"));
    close(fd);
    CHECK(check().ok());
  }

  TEST_CASE_FIXTURE(Fixture,
                    "preflight: an http_host that is not an address of this machine is refused") {
    config.metrics.http_port = 8000;
    for (const char* host :
         {"no.such.host.invalid", "", "203.0.113.1"}) {  // the last one: RFC 5737
      config.metrics.http_host = host;
      const Status status = check();
      CHECK(status.code() == Code::bad_config);
      const std::string begin = "metrics.http_host = \"" + config.metrics.http_host + "\": ";
      CHECK_MESSAGE(status.message().starts_with(begin), status.message());
    }
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    REQUIRE(bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
    socklen_t length = sizeof address;
    REQUIRE(getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length) == 0);
    close(fd);
    config.metrics.http_port = ntohs(address.sin_port);  // that was free a moment ago
    for (const char* host : {"0.0.0.0", "localhost", "127.0.0.1", "127.0.0.2"}) {
      config.metrics.http_host = host;
      CHECK(works(check()));
    }
    config.metrics.http_host = "no.such.host.invalid";
    config.metrics.http_port = 0;  // no server is started
    CHECK(check().ok());
  }

  TEST_CASE_FIXTURE(Fixture,
                    "preflight: data without a source, or shorter than a sample, is refused") {
    input.train_tokens = 257;
    CHECK(check().ok());
    input.train_tokens = 256;
    Status status = check();
    CHECK(status.code() == Code::bad_data);
    CHECK(
        status.message().starts_with("model.block_size = 256 is longer than the data, 256 tokens"));
    input.train_tokens.reset();
    config.data.source = (folder / "none.txt").string();  // its tokens may be prepared
    CHECK(check().ok());
    config.data.source.clear();
    config.data.folder = (folder / "none").string();
    CHECK(check().code() == Code::bad_config);
    config.data.folder = folder.string();
    CHECK(check().ok());
    config.data.source = "debian:bible-kjv";
    CHECK(check().ok());
  }

  TEST_CASE_FIXTURE(Fixture, "preflight: more than four trainers a core give a warning") {
    input.cores = 2;
    input.trainers_on_host = 8;
    CHECK(crowd_warning(config, input).empty());
    input.trainers_on_host = 32;
    CHECK(crowd_warning(config, input).starts_with("32 trainers share the 2 cores of this host"));
    config.cluster.device = DeviceKind::cuda;
    CHECK(crowd_warning(config, input).empty());
  }

  TEST_CASE_FIXTURE(Fixture,
                    "preflight: too many processes for the host are refused with figures") {
    config.cluster.nodes = 100;
    input.trainers_on_host = 100;
    input.cores = 2;
    input.host_memory = uint64_t{1} << 40;
    input.memory_left = uint64_t{1} << 40;
    Status status = check();
    CHECK(status.code() == Code::bad_config);
    CHECK(
        status.message().starts_with("cluster.nodes = 100: 302 processes on this host (100 "
                                     "agents, 100 trainers, 100 warm processes, 2 supervisors)"));
    CHECK(status.message().find("2 cores, at most 64 processes each") != std::string::npos);
    input.cores = 64;
    CHECK(check().message().find("processes on this host") == std::string::npos);
    input.host_memory = uint64_t{1} << 30;
    CHECK(check().message().find("there are 1.0 GiB") != std::string::npos);
    input.oversubscribe = true;
    CHECK(check().message().find("processes on this host") == std::string::npos);
  }

  TEST_CASE_FIXTURE(Fixture, "preflight: copies that wait to be sent to peers count as memory") {
    config.cluster.nodes = 2;
    config.parallel.group_nodes = 1;
    config.parallel.strategy = Strategy::hybrid_shard;
    const auto plan = must(make_plan(config));
    const HostNeeds without = host_needs(config, *plan, 2);
    config.checkpoint.peer_every_steps = 1;
    const HostNeeds with = host_needs(config, *plan, 2);
    const uint64_t own = shard_layout(units_of(plan->shape), 1).total;
    CHECK(with.copies == 2 * 2 * 12 * own);
    CHECK(with.memory() == without.memory() + with.copies + (with.shared - without.shared));
    CHECK(with.shared > without.shared);
  }

  TEST_CASE_FIXTURE(Fixture, "preflight: what GPUs keep in host memory counts as memory") {
    config.cluster.device = DeviceKind::cuda;
    const auto plan = must(make_plan(config));
    const HostNeeds without = host_needs(config, *plan, 2);
    config.parallel.offload = Offload::optimizer;
    const auto offloads = must(make_plan(config));
    const HostNeeds with = host_needs(config, *offloads, 2);
    CHECK(offloads->memory.host > 0);
    CHECK(with.private_ == without.private_ + 2 * offloads->memory.host);
    CHECK(with.address_space == without.address_space + offloads->memory.host);
    CHECK(with.shared == without.shared);
  }
}
