// Which networks a configuration may trust, and which interfaces lie on them.
#include "runtime/base/network.hpp"

#include <doctest/doctest.h>

#include <string>

#include "tests/must.hpp"

using namespace simplescale;

TEST_SUITE("network") {
  TEST_CASE("network: wildcards, parts of the Internet and mistakes are refused") {
    for (const char* wildcard : {"*", "eth*", "any", "all", "0.0.0.0", "0.0.0.0/0", "::/0",
                                 "::", "128.0.0.0/1", "8.0.0.0/7", "2000::/3", "0.0.0.0/8"}) {
      const auto parsed = parse_trusted_networks(std::string("ib0, ") + wildcard);
      CAPTURE(wildcard);
      CHECK(
          says(parsed.status(), Code::bad_config, "would trust networks that nobody has checked"));
    }
    for (const char* wrong : {"10.0.0.0/33", "10.0.0.0/", "10.0.0.0/x", "10.0.0.0/-1", "10.0.0/24",
                              "10.0.0.7/24", "fd00::1/64", "a/b", "interface-too-long"}) {
      CAPTURE(wrong);
      CHECK(parse_trusted_networks(wrong).status().code() == Code::bad_config);
    }
  }

  TEST_CASE("network: interfaces are found by name and by subnet, on the exact bit") {
    const std::vector<InterfaceAddress> addresses = {
        {"lo", {127, 0, 0, 1}, true, true},    {"eth0", {192, 168, 1, 9}, false, true},
        {"ib0", {10, 1, 127, 4}, false, true}, {"ib0", {10, 1, 3, 4}, false, true},
        {"ib1", {10, 1, 128, 4}, false, true}, {"docker0", {10, 1, 0, 1}, false, false},
    };
    const auto found = [&](const char* text) {
      const auto parsed = must(parse_trusted_networks(text));
      std::string names;
      for (const auto& [network, interface] : trusted_interfaces(*parsed, addresses))
        names += network + ":" + interface + " ";
      return names;
    };
    CHECK(found("") == "");
    CHECK(found(" , ") == "");
    CHECK(found("10.1.0.0/17") == "10.1.0.0/17:ib0 ");
    CHECK(found("10.1.0.0/16") == "10.1.0.0/16:ib0 10.1.0.0/16:ib1 ");
    CHECK(found("ib1,eth0 10.1.128.4") == "ib1:ib1 eth0:eth0 10.1.128.4:ib1 ");
    CHECK(found("docker0, fd00::/8, ib2") == "");
  }
}
