// The settings of logind(5), as logind.conf and its parts have them.
#include "app/doctor/logind.hpp"

#include <doctest/doctest.h>

#include "tests/temp_folder.hpp"

using namespace simplescale;

TEST_CASE("logind: what a logout does to a run is told, by the last of its settings") {
  const test::TempFolder host;
  const auto told = [&](const char* text) {
    return logind_text(host.path).find(text) != std::string::npos;
  };
  CHECK(logind_text(host.path).empty());
  host.write("usr/lib/systemd/systemd-logind", "");
  CHECK(told("RemoveIPC=yes takes nothing"));  // its default
  host.write("etc/systemd/logind.conf", "[Login]\n#RemoveIPC=yes\nRemoveIPC = no\n");
  CHECK(told("a logout ends no run"));
  CHECK_FALSE(told("RemoveIPC"));
  host.write("usr/lib/systemd/logind.conf.d/10-a.conf", "[Login]\nKillUserProcesses=yes\n");
  CHECK(told("enable-linger"));
  host.write("etc/systemd/logind.conf.d/10-a.conf", "[Login]\nRemoveIPC=1\n");  // in its place
  CHECK(told("RemoveIPC=yes takes nothing"));
  host.write("run/systemd/logind.conf.d/20-b.conf", "[Login]\nKillUserProcesses=true\n");
  CHECK(told("enable-linger"));
}
