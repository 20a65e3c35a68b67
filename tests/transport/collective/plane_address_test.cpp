// Addresses of data planes, and which two planes use UCX with each other.
#include "transport/collective/plane_address.hpp"

#include <doctest/doctest.h>

using namespace simplescale::collective;

TEST_SUITE("plane address") {
  TEST_CASE("plane address: bytes and back; nothing from less, more or changed bytes") {
    const PlaneAddress address{"host", "segment", 7, {1, 2}, {3}, {"10.1.0.0/16", "ib0"}};
    const std::vector<uint8_t> bytes = encode_plane(address);
    const auto read = decode_plane(bytes);
    REQUIRE(read);
    CHECK(encode_plane(*read) == bytes);
    CHECK(read->trusted == address.trusted);
    for (size_t i = 0; i < bytes.size(); ++i) CHECK_FALSE(decode_plane({bytes.data(), i}));
    std::vector<uint8_t> more = bytes;
    more.push_back(0);
    CHECK_FALSE(decode_plane(more));
    PlaneAddress outside = address;
    outside.segment = "../segment";
    CHECK_FALSE(decode_plane(encode_plane(outside)));
  }

  TEST_CASE("plane address: UCX only between hosts that lie on the same trusted networks") {
    const auto host = [](std::set<std::string> trusted) {
      PlaneAddress address;
      if (!trusted.empty()) address.ucx = {1};
      address.trusted = std::move(trusted);
      return address;
    };
    CHECK(use_ucx(host({"ib0"}), host({"ib0"})));
    CHECK(use_ucx(host({"ib0", "ib1"}), host({"ib1", "ib0"})));
    CHECK_FALSE(use_ucx(host({"ib0"}), host({"ib1"})));
    CHECK_FALSE(use_ucx(host({}), host({"ib0"})));
    CHECK_FALSE(use_ucx(host({}), host({})));
    // UCX of a host on ib0 alone may choose the other's address on ib1, and go through a gateway.
    CHECK_FALSE(use_ucx(host({"ib0"}), host({"ib0", "ib1"})));
    CHECK_FALSE(use_ucx(host({"ib0", "ib1"}), host({"ib0"})));
  }
}
