// The uploader: what it tells the supervisor, and that it ends while a server hangs.
#include "actors/checkpoint/uploader.hpp"

#include <doctest/doctest.h>

#include <caf/all.hpp>

#include "tests/must.hpp"
#include "tests/runtime/checkpoint/fixture.hpp"
#include "tests/runtime/object_store/server_fixture.hpp"

using namespace simplescale;
using namespace simplescale::test;

namespace {

/// Credentials and endpoint in this process's environment, as a user gives them.
struct Aws {
  explicit Aws(const S3Server& server) {
    ::setenv("AWS_ACCESS_KEY_ID", kAccessKey, 1);
    ::setenv("AWS_SECRET_ACCESS_KEY", kSecretKey, 1);
    ::setenv("AWS_ENDPOINT_URL_S3", server.endpoint().c_str(), 1);
  }
  ~Aws() {
    for (const char* name : {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_ENDPOINT_URL_S3"})
      ::unsetenv(name);
  }
};

struct Job {
  test::MemoryFolder folder;
  caf::actor_system_config system_config;
  caf::actor_system system{system_config};
  caf::scoped_actor self{system};
  UploaderOptions options;

  Job() {
    options.run = {folder.path};
    options.config.run.folder = folder.path;
    options.config.checkpoint.upload = "s3://bucket/actor";
    options.config.checkpoint.keep = 2;
    std::filesystem::create_directories(options.run.control());
  }
  void save_step(uint64_t step) {
    CheckpointInfo info;
    info.step = step, info.shape = tiny_shape();
    const State state = random_state(tiny_shape(), static_cast<uint32_t>(step));
    REQUIRE(save(folder / "checkpoints", state, info, 2).ok());
  }
  caf::actor uploader() {
    return spawn_uploader(system, caf::actor_cast<caf::actor>(self), options);
  }
  local::Uploaded wait() {
    local::Uploaded result;
    self->receive(
        [&](const local::Uploaded& uploaded) { result = uploaded; },
        caf::after(std::chrono::seconds(60)) >> [] { FAIL("the uploader says nothing"); });
    return result;
  }
};

using Steps = std::vector<uint64_t>;

}  // namespace

TEST_SUITE("uploader") {
  TEST_CASE("uploader: it uploads up to the step it was told, and tells of failures once") {
    const auto server = S3Server::start();
    if (!server) return skipped("no Python with moto; ./simplescale test installs it");
    const Aws aws(*server);
    Job job;
    for (const uint64_t step : {10, 20, 30}) job.save_step(step);
    const caf::actor uploader = job.uploader();
    job.self->send(uploader, local::UploadCheckpoints{20});
    CHECK(job.wait().steps == Steps{20, 10});
    server->set_faults({{{"match", "/bucket/actor"},
                         {"kind", "status"},
                         {"status", 403},
                         {"code", "AccessDenied"}}});
    job.self->send(uploader, local::UploadCheckpoints{30});
    CHECK(job.wait().error.find("AccessDenied") != std::string::npos);
    // This one fails too: the message after it is of the success.
    job.self->send(uploader, local::UploadCheckpoints{30});
    while (server->count("GET /bucket/actor/latest") < 5) std::this_thread::yield();
    server->clear_faults();
    job.self->send(uploader, local::UploadCheckpoints{30});
    const local::Uploaded again = job.wait();
    CHECK(again.error == "");
    CHECK(again.steps == Steps{30});
    caf::anon_send_exit(uploader, caf::exit_reason::user_shutdown);
  }

  TEST_CASE("uploader: it ends while the server hangs") {
    const auto server = S3Server::start();
    if (!server) return;
    const Aws aws(*server);
    Job job;
    job.save_step(10);
    server->set_faults({{{"match", "PUT /bucket/actor"}, {"kind", "hang"}, {"times", 1'000'000}}});
    const caf::actor uploader = job.uploader();
    job.self->monitor(uploader);
    job.self->send(uploader, local::UploadCheckpoints{10});
    while (server->count("PUT /bucket/actor") == 0) std::this_thread::yield();
    *job.options.stopped = true;
    caf::anon_send_exit(uploader, caf::exit_reason::user_shutdown);
    bool ended = false;
    job.self->receive([&](const caf::down_msg&) { ended = true; },
                      caf::after(std::chrono::seconds(15)) >> [] {});
    CHECK(ended);  // a request would stall for 20 s
  }

  TEST_CASE("uploader: there is none without checkpoint.upload") {
    Job job;
    job.options.config.checkpoint.upload.clear();
    CHECK(!job.uploader());
  }
}
