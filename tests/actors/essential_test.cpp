// A process ends with the actor that it cannot do without.
#include "actors/essential.hpp"

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <caf/actor_system.hpp>
#include <caf/actor_system_config.hpp>
#include <caf/event_based_actor.hpp>
#include <new>

using namespace simplescale;

namespace {

caf::behavior fragile(caf::event_based_actor* self) {
  end_process_with(self, "fragile");
  return {[self](bool throws) {
    if (throws) throw std::bad_alloc();
    self->quit();
  }};
}

/// Wait status of a child process that sends its actor `throws` and exits once the actor has ended.
int status_after(bool throws) {
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    {
      caf::actor_system_config config;
      caf::actor_system system(config);  // its destructor waits for the actor's end
      const caf::actor actor = system.spawn(fragile);
      caf::anon_send(actor, throws);
    }
    _exit(0);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  return status;
}

}  // namespace

TEST_SUITE("essential") {
  TEST_CASE("essential: an actor that an exception ends takes its process with it") {
    const int status = status_after(true);
    CHECK(WIFSIGNALED(status));
    CHECK(WTERMSIG(status) == SIGABRT);
  }

  TEST_CASE("essential: an actor that quits does not") {
    const int status = status_after(false);
    CHECK(WIFEXITED(status));
    CHECK(WEXITSTATUS(status) == 0);
  }
}
