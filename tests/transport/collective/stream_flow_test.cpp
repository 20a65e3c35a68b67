// COLLECTIVE-3: what a rank sends before it is granted, what it grants and keeps, and the end of a member
// that breaks these rules.
#include <doctest/doctest.h>

#include "rogue_member.hpp"
#include "tests/must.hpp"
#include "transport/collective/plan.hpp"

namespace simplescale::testing {

TEST_SUITE("collective stream") {
  TEST_CASE("collective: COLLECTIVE-3, a member is granted a bounded number of bytes in all") {
    constexpr size_t kStreams = 20, kBytes = 4 << 20;
    size_t granted = 0;
    const Status status = victim_of(
        [&](RogueMember& rogue, const RankPlanes&) {
          rogue.until([&] { return rogue.granted.size() == kStreams; });
          for (const auto& [key, bytes] : rogue.granted) granted += bytes;
          rogue.send(rogue.of(StreamKind::bye));
        },
        [&](Collective& world) {
          const std::vector<char> mine(kBytes);
          std::vector<char> all(2 * kBytes);  // nothing arrives
          std::vector<WorkPtr> work;
          for (size_t i = 0; i < kStreams; ++i)
            work.push_back(world.all_gather_bytes(mine.data(), all.data(), kBytes));
          return work[0]->wait();
        },
        true);
    CHECK(status.message().find("has left") != std::string::npos);
    CHECK(granted <= kStreamBudget + kStreams * kStreamWindowMin);
  }

  TEST_CASE("collective: COLLECTIVE-3, a rank sends no more than was granted, and little before") {
    constexpr size_t kStreams = 30, kSmall = 16 << 10, kLarge = 1 << 20;
    for (const size_t bytes : {kSmall, kLarge}) {
      const Status status = victim_of(
          [&](RogueMember& rogue, const RankPlanes&) {
            rogue.until([&] { return rogue.seen.size() == kStreams + 1; });  // and the barrier's
            CHECK(rogue.early_bytes <= kStreamEarly);
            if (bytes == kLarge) {
              CHECK(rogue.data_bytes == 0);
              const uint64_t key = *rogue.seen.rbegin();
              for (const uint64_t offset : {uint64_t{1000}, uint64_t{100'000}}) {
                rogue.send(rogue.of(StreamKind::grant, key, offset));
                rogue.until([&] { return rogue.data_bytes >= offset; });
                CHECK(rogue.data_bytes == offset);
              }
            }
            rogue.send(rogue.of(StreamKind::bye));
          },
          [&](Collective& world) {
            const std::vector<char> mine(bytes);
            std::vector<char> all(2 * bytes);
            std::vector<WorkPtr> work;
            for (size_t i = 0; i < kStreams; ++i)
              work.push_back(world.all_gather_bytes(mine.data(), all.data(), bytes));
            return work[0]->wait();
          },
          true);
      CHECK(status.message().find("has left") != std::string::npos);
    }
  }

  TEST_CASE("collective: COLLECTIVE-3, early bytes that a rank has read may be sent again") {
    constexpr size_t kOperations = 5, kBytes = 8 << 10;
    const Status status = victim_of(
        [](RogueMember& rogue, const RankPlanes&) {
          rogue.until([&] { return rogue.seen.size() == kOperations + 1; });  // and the barrier's
          CHECK(rogue.credit == 0);
          for (const uint64_t key : rogue.seen)
            if (key != rogue.barrier)
              rogue.send(rogue.of(StreamKind::early, key), std::string(kBytes, 'x'));
          rogue.until([&] { return rogue.credit >= kStreamEarly / 8; });
          CHECK(rogue.credit <= kOperations * kBytes + rogue.early_bytes);
        },
        [](Collective& world) {
          const std::vector<char> mine(kBytes);
          std::vector<char> all(2 * kBytes);
          std::vector<WorkPtr> work;
          for (size_t i = 0; i < kOperations; ++i)
            work.push_back(world.all_gather_bytes(mine.data(), all.data(), kBytes));
          Status status;
          for (const WorkPtr& each : work)
            if (Status ended = each->wait(); status.ok()) status = std::move(ended);
          return status;
        },
        true);
    CHECK(status.message() == "");
  }

  TEST_CASE("collective: a sum in place waits until its source has been sent") {
    // Gathers: some are sent early, as the barrier was, some fill the room for copies, some wait.
    constexpr uint64_t kPosted = (kStreamEarly + kStreamCopies) / kStreamChunk - 1;
    constexpr uint64_t kGathers = kPosted + 4, kSum = stream_key(2 + kGathers, 0);
    const std::vector<float> ones(1024, 1.0f), twos(1024, 2.0f);
    const auto bytes_of = [](const std::vector<float>& values) {
      return std::string(reinterpret_cast<const char*>(values.data()),
                         values.size() * sizeof(float));
    };
    std::string sent;
    const Status status = victim_of(
        [&](RogueMember& rogue, const RankPlanes&) {
          rogue.until([&] { return rogue.seen.contains(stream_key(1 + kPosted, 0)); });
          rogue.send(rogue.of(StreamKind::early, kSum), bytes_of(twos));
          // The credit for the second gather shows that the victim has looked at all operations since.
          for (const uint64_t key : {stream_key(2, 0), stream_key(3, 0)}) {
            const uint64_t before = rogue.credit;
            rogue.send(rogue.of(StreamKind::early, key), std::string(kStreamChunk, 'x'));
            rogue.until([&] { return rogue.credit > before; });
          }
          std::set<uint64_t> granted;
          rogue.until([&] {
            for (const uint64_t key : rogue.seen)
              if (granted.insert(key).second) rogue.send(rogue.of(StreamKind::grant, key, 1 << 20));
            return rogue.content[kSum].size() == bytes_of(ones).size();
          });
          sent = rogue.content[kSum];
          rogue.send(rogue.of(StreamKind::bye));
        },
        [&](Collective& world) {
          const std::vector<char> mine(kStreamChunk);
          std::vector<char> all(2 * kStreamChunk);
          std::vector<float> sum = ones;
          std::vector<WorkPtr> work;
          for (uint64_t i = 0; i < kGathers; ++i)
            work.push_back(world.all_gather_bytes(mine.data(), all.data(), kStreamChunk));
          work.push_back(world.all_reduce(sum.data(), sum.size(), DType::f32));
          return work[2]->wait();
        },
        true);
    CHECK(status.message().find("has left") != std::string::npos);
    CHECK(sent == bytes_of(ones));
  }

  TEST_CASE("collective: a rank that has left a communicator answers as one that never joined it") {
    RankPlanes ranks("left", {0}, 1 << 20, {kKey});
    const auto& plane = ranks.addresses[0];
    const auto rogue = rogue_for(plane, true);
    rogue->connect(plane);
    std::atomic<bool> left = false;
    std::thread victim([&] {
      CHECK(ranks.planes[0]->join({1, "world", 0, {plane, rogue->address(plane)}, 20'000}).ok());
      left = true;  // the communicator has been destroyed
    });
    rogue->until([&] { return left.load(); });
    victim.join();
    CHECK(rogue->last_kind != StreamKind::greeting);
    rogue->send(rogue->of(StreamKind::hello));
    rogue->until([&] { return rogue->last_kind == StreamKind::greeting; });
  }

  TEST_CASE("collective: what a link keeps of an operation goes with it") {
    // More operations than a member may have streams, and more bytes than may wait to be sent.
    constexpr size_t kOperations = kStreamsMax + 100, kBytes = 4 << 10;
    static_assert(kOperations * kBytes > 2 * kStreamCopies);
    RankPlanes ranks("each", {0, 1}, 1 << 20, {kKey, kKey});
    CHECK(on_ranks(2, [&](int rank) -> std::string {
            const auto joined = ranks.join(rank, 2, 1);
            Status status = joined.status();
            for (size_t i = 0; i < kOperations && status.ok(); ++i) {
              const std::string mine(kBytes, static_cast<char>('a' + i % 2 + 2 * size_t(rank)));
              std::string all(2 * kBytes, ' ');
              status = (*joined)->all_gather_bytes(mine.data(), all.data(), kBytes)->wait();
              if (status.ok() && all.substr(size_t(rank) * kBytes, kBytes) != mine)
                return "altered";
            }
            return status.message();
          }) == "");
  }

  TEST_CASE(
      "collective: COLLECTIVE-3, what nobody granted, or does not come next, ends its sender") {
    struct Case {
      const char* reason;
      Attack attack;
    };
    const Case cases[] = {
        {"what nobody has granted",
         [](RogueMember& r, const RankPlanes&) {
           r.send(r.of(StreamKind::data, r.last_key), "12345678");
         }},
        {"what nobody has granted",
         [](RogueMember& r, const RankPlanes&) {
           r.send(r.of(StreamKind::data, stream_key(99, 0)), "12345678");
         }},
        {"not the next one",
         [](RogueMember& r, const RankPlanes&) {
           r.send(r.of(StreamKind::early, r.last_key, 4), "1234");
         }},
        {"not the next one",
         [](RogueMember& r, const RankPlanes&) {
           for (int i = 0; i < 2; ++i) r.send(r.of(StreamKind::early, r.last_key), "1234");
         }},
        {"too much before it was expected",
         [](RogueMember& r, const RankPlanes&) {
           for (uint64_t i = 0; i < 5; ++i)
             r.send(r.of(StreamKind::early, stream_key(99 + i, 0)), std::string(kStreamChunk, 'x'));
         }},
        {"too much before it was expected",
         [](RogueMember& r, const RankPlanes&) {
           for (uint64_t i = 0; i <= kStreamsMax; ++i)
             r.send(r.of(StreamKind::early, stream_key(99 + i, 0)), "x");
         }},
        {"too many streams",
         [](RogueMember& r, const RankPlanes&) {
           for (uint64_t i = 0; i <= kStreamsMax; ++i)
             r.send(r.of(StreamKind::announce, stream_key(99 + i, 0)));
         }},
        {"too large",
         [](RogueMember& r, const RankPlanes&) {
           r.send(r.of(StreamKind::early, r.last_key), std::string(kStreamChunk + 1, 'x'));
         }},
        {"has connected again",
         [](RogueMember& r, const RankPlanes& ranks) { r.connect(ranks.addresses[0]); }},
        {"has left", [](RogueMember& r, const RankPlanes&) { r.send(r.of(StreamKind::bye)); }},
        {"garbage",
         [](RogueMember& r, const RankPlanes&) {
           r.messenger->send(r.link, std::span(r.id).first(3), {}, nullptr);
         }},
    };
    for (const auto& [reason, attack] : cases) {
      CAPTURE(reason);
      uint64_t got = 0;
      const Status status = victim_of(attack, &got);
      CHECK(says(status, Code::unavailable, reason));
      CHECK(status.message().find("rank 1") != std::string::npos);
    }
  }
}

}  // namespace simplescale::testing
