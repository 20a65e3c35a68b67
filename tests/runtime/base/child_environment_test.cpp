#include "runtime/base/child_environment.hpp"

#include <doctest/doctest.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "runtime/base/process.hpp"

using namespace simplescale;

TEST_CASE("child environment: a child has what it needs, and no secret of any name") {
  for (const char* name :
       {"PATH", "HOME", "LC_ALL", "LD_LIBRARY_PATH", "LD_PRELOAD", "SLURM_JOB_ID",
        "SLURMD_NODENAME", "SIMPLESCALE_LOG", "CUDA_VISIBLE_DEVICES", "NCCL_IB_PKEY", "UCX_TLS",
        "OMP_NUM_THREADS", "MKL_CBWR", "https_proxy", "FAKETIME", "GLIBC_TUNABLES", "ASAN_OPTIONS",
        "TZ"})
    CHECK_MESSAGE(inherits_variable(Inherits::needed, name), name);
  for (const char* name : {"AWS_SECRET_ACCESS_KEY", "WANDB_API_KEY", "HF_TOKEN", "MY_HF_TOKEN2",
                           "DATABASE_URL", "SLACK_WEBHOOK", "OPENAI_KEY", "PGPASSWORD", "GH_PAT",
                           "NOTIFY_URL", "SLURM_JWT", "NVIDIA_API_KEY", "PATHS", "TZ_KEY"}) {
    CHECK_MESSAGE(!inherits_variable(Inherits::needed, name), name);
    CHECK_MESSAGE(inherits_variable(Inherits::all, name), name);
  }
  CHECK(inherits_variable(Inherits::with_bucket, "AWS_SECRET_ACCESS_KEY"));
  CHECK(inherits_variable(Inherits::with_bucket, "PATH"));
  CHECK(!inherits_variable(Inherits::with_bucket, "HF_TOKEN"));
  setenv(kPassVariable, "DARSHAN_*,SITE_MODE  OTHER", 1);
  for (const char* name : {"DARSHAN_LOG", "SITE_MODE", "OTHER"})
    CHECK_MESSAGE(inherits_variable(Inherits::needed, name), name);
  CHECK(!inherits_variable(Inherits::needed, "SITE_MODE2"));
  unsetenv(kPassVariable);
}

TEST_CASE("child environment: what is added counts more than what is inherited") {
  setenv("WANDB_API_KEY", "x", 1);
  const auto has = [](const std::vector<std::string>& all, const std::string& text) {
    return std::ranges::find(all, text) != all.end();
  };
  CHECK(has(child_environment({}, Inherits::all), "WANDB_API_KEY=x"));
  const auto needed =
      child_environment({{"HF_TOKEN", "given"}, {"PATH", "mine"}}, Inherits::needed);
  CHECK(!has(needed, "WANDB_API_KEY=x"));
  CHECK(has(needed, "HF_TOKEN=given"));
  CHECK(std::ranges::count_if(needed, [](const auto& v) { return v.starts_with("PATH="); }) == 1);
  CHECK(has(needed, "PATH=mine"));
  auto child =
      spawn({.argv = {"/bin/sh", "-c", "exit ${WANDB_API_KEY:+1}"}, .inherits = Inherits::needed});
  REQUIRE(child.ok());
  int status = -1;
  waitpid(*child, &status, 0);
  CHECK(status == 0);
  unsetenv("WANDB_API_KEY");
}
