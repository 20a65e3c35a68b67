// Which devices UCX may use on trusted interfaces.
#include <doctest/doctest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "transport/ucx/ucx.hpp"

using namespace simplescale;

TEST_CASE("ucx: devices of trusted interfaces, with InfiniBand's ports and one partition") {
  namespace fs = std::filesystem;
  const fs::path sys = fs::temp_directory_path() / ("ss-sys-" + std::to_string(getpid()));
  const auto write = [&](const std::string& file, const std::string& text) {
    fs::create_directories((sys / file).parent_path());
    std::ofstream(sys / file) << text << "\n";
  };
  write("eth0/dev_port", "0");
  write("ib0/dev_port", "1");
  write("ib0/pkey", "0x8001");
  fs::create_directories(sys / "ib0/device/infiniband/mlx5_0");
  write("ib1/pkey", "0x8002");
  const std::string before = std::getenv("UCX_NET_DEVICES") ? std::getenv("UCX_NET_DEVICES") : "";
  unsetenv("UCX_NET_DEVICES");
  const auto found = ucx::devices_of({"eth0", "ib0"}, sys.string());
  REQUIRE(found.ok());
  CHECK(found->names == "eth0,ib0,mlx5_0:2");
  CHECK(found->partition == "0x8001");
  CHECK(ucx::devices_of({"ib0", "ib1"}, sys.string()).status().code() == Code::bad_config);
  setenv("UCX_NET_DEVICES", "mlx5_0:2,eth7", 1);  // leaves out, but adds nothing
  CHECK(ucx::devices_of({"eth0", "ib0"}, sys.string())->names == "mlx5_0:2");
  CHECK(ucx::devices_of({"eth0"}, sys.string()).status().code() == Code::bad_config);
  setenv("UCX_NET_DEVICES", "all", 1);
  CHECK(ucx::devices_of({"eth0"}, sys.string())->names == "eth0");
  if (before.empty())
    unsetenv("UCX_NET_DEVICES");
  else
    setenv("UCX_NET_DEVICES", before.c_str(), 1);
  fs::remove_all(sys);
}
