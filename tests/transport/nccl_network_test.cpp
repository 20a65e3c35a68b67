// Which networks NCCL may use, and which environment variables say so.
#include "transport/gpu/nccl_network.hpp"

#include <doctest/doctest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "tests/must.hpp"
#include "tests/temp_folder.hpp"

using namespace simplescale;
namespace fs = std::filesystem;

namespace {

const std::vector<InterfaceAddress> addresses{{"lo", {127, 0, 0, 1}, true},
                                              {"eth0", {192, 168, 1, 5}},
                                              {"ib0", {10, 1, 0, 5}},
                                              {"eth1", {10, 2, 0, 5}}};

/// A /sys/class/net of its own.
struct Sys : test::TempFolder {
  Sys() {
    write("ib0/pkey", "0x8001");
    write("ib0/dev_port", "0");
    write("ib0/device/infiniband/mlx5_0/ports/1/pkeys/0", "0xffff");
    write("ib0/device/infiniband/mlx5_0/ports/1/pkeys/1", "0x0001");
    write("eth1/device/infiniband/mlx5_2/ports/1/pkeys/0", "0xffff");
    write("eth1/dev_port", "1");
  }
  void write(const std::string& file, const std::string& text) const {
    TempFolder::write(file, text + "\n");
  }
  Result<Variables> variables(bool other_hosts, const std::string& trusted) const {
    return nccl_variables(other_hosts, trusted, addresses, path);
  }
};

std::string value_of(const Result<Variables>& variables, const std::string& name) {
  REQUIRE(variables.ok());
  for (const auto& [each, value] : *variables)
    if (each == name) return value;
  return "";
}

}  // namespace

TEST_SUITE("nccl network") {
  TEST_CASE("nccl network: between hosts NCCL needs a trusted network, on one host none") {
    CHECK(nccl_is_allowed(false, ""));
    CHECK(nccl_is_allowed(false, "ib0"));
    CHECK(nccl_is_allowed(true, "ib0"));
    CHECK_FALSE(nccl_is_allowed(true, ""));
  }

  TEST_CASE("nccl network: on one host it is limited to loopback") {
    const auto set = Sys().variables(false, "ib0");
    CHECK(value_of(set, "NCCL_SOCKET_IFNAME") == "=lo");
    CHECK(value_of(set, "NCCL_IB_DISABLE") == "1");
    CHECK(value_of(set, "NCCL_NET_PLUGIN") == "none");
    CHECK(value_of(set, "NCCL_RAS_ENABLE") == "0");
  }

  TEST_CASE("nccl network: between hosts it is limited to trusted interfaces and their devices") {
    const Sys sys;
    const auto ethernet = sys.variables(true, "192.168.0.0/16, eth0");
    CHECK(value_of(ethernet, "NCCL_SOCKET_IFNAME") == "=eth0");
    CHECK(value_of(ethernet, "NCCL_IB_DISABLE") == "1");
    CHECK(value_of(ethernet, "NCCL_IB_HCA").empty());
    CHECK(value_of(ethernet, "NCCL_NET_PLUGIN") == "none");
    const auto both = sys.variables(true, "10.1.0.0/16, eth1");
    CHECK(value_of(both, "NCCL_SOCKET_IFNAME") == "=ib0,eth1");
    CHECK(value_of(both, "NCCL_IB_HCA") == "=mlx5_0:1,mlx5_2:2");
    CHECK(value_of(both, "NCCL_IB_DISABLE").empty());
    CHECK(value_of(both, "NCCL_IB_PKEY") == "1");
    CHECK(value_of(sys.variables(true, "eth1"), "NCCL_IB_PKEY").empty());
  }

  TEST_CASE("nccl network: a host that is not on every network, or on two partitions, is refused") {
    const Sys sys;
    const Status none = sys.variables(true, "ib7").status();
    CHECK(says(none, Code::bad_config, "A run on one host needs neither"));
    // A host that is only on 10.9.0.0/16 would be allowed, too, and the two cannot connect.
    const Status one_of_two = sys.variables(true, "eth1, 10.9.0.0/16").status();
    CHECK(one_of_two.code() == Code::bad_config);
    CHECK(one_of_two.message().starts_with(
        "this host is not on 10.9.0.0/16 of transport.trusted_networks (eth1, 10.9.0.0/16)"));
    sys.write("eth1/pkey", "0x8002");
    CHECK(sys.variables(true, "ib0, eth1").status().code() == Code::bad_config);
  }

  TEST_CASE("nccl network: doctor's line names the devices, or says why there are none") {
    const Sys sys;
    const std::string text = describe(sys.variables(true, "10.1.0.0/16"));
    CHECK(text.starts_with("NCCL_SOCKET_IFNAME is \"=ib0\", "));
    CHECK(text.find("NCCL_IB_HCA is \"=mlx5_0:1\"") != std::string::npos);
    CHECK(describe(sys.variables(true, "ib7")).find("not on ib7") != std::string::npos);
  }

  TEST_CASE("nccl network: neither the environment nor nccl.conf makes NCCL's calls block") {
    setenv("NCCL_COMM_ID", "10.0.0.1:7000", 1);
    for (const char* before : {"1", ""}) {
      *before ? setenv("NCCL_COMM_BLOCKING", before, 1) : unsetenv("NCCL_COMM_BLOCKING");
      protect_nccl_settings();
      // NCCL takes values of nccl.conf only for variables that are not set.
      const char* const after = std::getenv("NCCL_COMM_BLOCKING");
      REQUIRE(after);
      CHECK(std::string(after) == "0");
      CHECK_FALSE(std::getenv("NCCL_COMM_ID"));
      CHECK(std::string(std::getenv("NCCL_LAUNCH_ORDER_IMPLICIT")) == "1");
    }
    for (const char* set : {"NCCL_COMM_BLOCKING", "NCCL_LAUNCH_ORDER_IMPLICIT"}) unsetenv(set);
  }

  TEST_CASE("nccl network: the user's own values are replaced") {
    setenv("NCCL_SOCKET_IFNAME", "eth0", 1);
    unsetenv("NCCL_IB_DISABLE");
    set_nccl_variables({{"NCCL_SOCKET_IFNAME", "=lo"}, {"NCCL_IB_DISABLE", "1"}});
    CHECK(std::string(std::getenv("NCCL_SOCKET_IFNAME")) == "=lo");
    CHECK(std::string(std::getenv("NCCL_IB_DISABLE")) == "1");
    unsetenv("NCCL_SOCKET_IFNAME");
    unsetenv("NCCL_IB_DISABLE");
  }
}
