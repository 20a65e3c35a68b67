#include "runtime/base/run_command.hpp"

#include <doctest/doctest.h>

using namespace simplescale;

TEST_SUITE("base") {
  TEST_CASE("run_command: returns output and exit code, and passes arguments as they are") {
    const auto print = run_command({"printf", "%s|", "$(reboot)", "a b", "'"}, 20'000);
    REQUIRE(print.ok());
    CHECK(print->output == "$(reboot)|a b|'|");
    CHECK(print->code == 0);
    CHECK(run_command({"false"}, 20'000)->code == 1);
    CHECK(run_command({"bash", "-c", "kill -9 $$"}, 20'000)->code == 128 + 9);
    CHECK(run_command({"no-such-program-of-ours"}, 20'000).status().code() == Code::not_found);
    CHECK(run_command({"cat"}, 20'000)->output.empty());  // stdin is empty
  }

  TEST_CASE("run_command: stderr is part of the output unless it is left out") {
    const std::vector<std::string> both = {"bash", "-c", "echo out; echo error >&2"};
    CHECK(run_command(both, 20'000)->output == "out\nerror\n");
    CHECK(run_command(both, 20'000, {.with_stderr = false})->output == "out\n");
  }

  TEST_CASE("run_command: a program that prints too much or does not end is killed") {
    const auto yes = run_command({"yes"}, 20'000, {.bytes_max = 100'000});
    CHECK(yes.status().code() == Code::io);
    CHECK(yes.status().message() == "yes: printed more than 100000 bytes");
    CHECK(run_command({"sleep", "1000"}, 10).status().code() == Code::deadline);
    // A program that closes its output and runs on.
    const std::vector<std::string> silent = {"bash", "-c", "exec >&- 2>&-; exec sleep 1000"};
    CHECK(run_command(silent, 50).status().code() == Code::deadline);
  }

  TEST_CASE("run_command: a program gets its input, and takes its own children with it") {
    const std::string text(300'000, 'x');
    CHECK(run_command({"cat"}, 20'000, {.input = text})->output == text);
    CHECK(run_command({"true"}, 20'000, {.input = text})->code == 0);  // it may leave it unread
    // The inner sleep holds the pipe open: only the death of the whole group ends the second one.
    const std::vector<std::string> nested = {"bash", "-c", "sleep 1000 & echo $!; wait"};
    const auto late = run_command(nested, 100, {.own_group = true});
    CHECK(late.status().code() == Code::deadline);
  }

  TEST_CASE("shell_text: a command as it is typed into a shell") {
    CHECK(shell_text({"a", "b c", "it's", "x=1"}) == "a 'b c' 'it'\\''s' x=1");
  }
}
