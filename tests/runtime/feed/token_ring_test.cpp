#include <doctest/doctest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <thread>

#include "runtime/feed/token_ring.hpp"
#include "tests/must.hpp"

using namespace simplescale;

namespace {

constexpr int long_ms = 20'000;  // never reached if the test passes

std::string unique_name(const std::string& what) {
  return "ss-test-" + what + "-" + std::to_string(getpid());
}

TokenRings make(const std::string& what, uint64_t slots, uint64_t rings = 1) {
  return must(TokenRings::create(unique_name(what), {rings, slots, 2, 3})).take();
}

// Micro-batch number n of generation g: step n / 2, accumulation n % 2, tokens n, n + 1, ...
BatchKey key(uint64_t n, uint64_t generation = 0) {
  return {generation, n / 2, n % 2};
}

bool produce(TokenRings& rings, uint64_t n, uint64_t ring = 0) {
  int32_t* tokens = rings.begin_fill(ring);
  if (!tokens) return false;
  for (uint64_t i = 0; i < rings.shape().tokens(); ++i) tokens[i] = static_cast<int32_t>(n + i);
  rings.commit_fill(ring, n / 2, n % 2, n * 10);
  return true;
}

bool is_batch(const TokenRings& rings, const MicroBatch& batch, uint64_t n) {
  for (uint64_t i = 0; i < rings.shape().tokens(); ++i)
    if (batch.tokens[i] != static_cast<int32_t>(n + i)) return false;
  return batch.first_sample == n * 10;
}

bool consume(TokenRings& rings, uint64_t n, uint64_t generation = 0, uint64_t ring = 0) {
  const auto batch = rings.acquire(ring, key(n, generation), long_ms);
  return batch.ok() && is_batch(rings, *batch, n) && rings.release(ring).ok();
}

void produce_all(TokenRings& rings, uint64_t first, uint64_t end) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(long_ms);
  for (uint64_t n = first; n < end;) {
    const uint32_t seen = rings.doorbell();
    if (produce(rings, n))
      ++n;
    else if (!rings.wait_for_work(seen, deadline))
      return;
  }
}

}  // namespace

TEST_SUITE("token ring") {
  TEST_CASE(
      "token ring: micro-batches reach another process in order, over many rounds of the ring") {
    for (uint64_t slots : {1, 2, 3, 8}) {
      TokenRings rings = make("order", slots);
      const pid_t child = fork();
      if (child == 0) {
        auto mine = TokenRings::open(rings.name());
        bool good = mine.ok() && mine->shape() == rings.shape();
        for (uint64_t n = 0; good && n < 1000; ++n) good = consume(*mine, n);
        _exit(good ? 0 : 1);
      }
      produce_all(rings, 0, 1000);
      int status = -1;
      REQUIRE(waitpid(child, &status, 0) == child);
      CHECK(status == 0);
      CHECK(rings.filled(0) == 0);
    }
  }

  TEST_CASE(
      "token ring: RING-2, waiting on an empty ring ends at the deadline; a full ring takes no "
      "more") {
    TokenRings rings = make("deadline", 2);
    CHECK(rings.acquire(0, key(0), 0).status().code() == Code::deadline);
    CHECK(rings.acquire(0, key(0), 5).status().code() == Code::deadline);
    CHECK(produce(rings, 0));
    CHECK(produce(rings, 1));
    const uint32_t seen = rings.doorbell();
    CHECK_FALSE(produce(rings, 2));
    CHECK_FALSE(
        rings.wait_for_work(seen, std::chrono::steady_clock::now() + std::chrono::milliseconds(5)));
    CHECK(consume(rings, 0));
    CHECK(rings.wait_for_work(seen, std::chrono::steady_clock::now() + std::chrono::seconds(20)));
    CHECK(produce(rings, 2));
  }

  TEST_CASE("token ring: acquiring a micro-batch again before its release returns it again") {
    TokenRings rings = make("again", 2);
    produce(rings, 0);
    CHECK(is_batch(rings, *rings.acquire(0, key(0), 0), 0));
    CHECK(is_batch(rings, *rings.acquire(0, key(0), 0), 0));
    CHECK(rings.release(0).ok());
    CHECK(rings.acquire(0, key(0), 0).status().code() == Code::deadline);
  }

  TEST_CASE("token ring: RING-3, a step other than the ring's is refused, not skipped") {
    TokenRings rings = make("wrong", 2);
    produce(rings, 0);
    const auto wrong = rings.acquire(0, key(1), long_ms);
    CHECK(says(wrong.status(), Code::aborted, "holds step 0, accumulation 0"));
    CHECK(consume(rings, 0));
  }

  TEST_CASE("token ring: close wakes a waiting consumer with the reason") {
    TokenRings rings = make("close", 2);
    Status got;
    std::thread waiter([&] {
      auto mine = TokenRings::open(rings.name());
      got = mine->acquire(0, key(0), long_ms).status();
    });
    rings.close(0, Status(Code::bad_data, "token 7 is bad"));
    waiter.join();
    CHECK(got.code() == Code::bad_data);
    CHECK(got.message() == "token 7 is bad");
    rings.close(0, Status(Code::io, std::string(10'000, 'x')));  // has no effect: already closed
    CHECK(rings.closed(0).message() == "token 7 is bad");
    CHECK(rings.acquire(0, key(0), 0).status().code() == Code::bad_data);
  }

  TEST_CASE("token ring: close() by the consumer wakes the producer") {
    TokenRings rings = make("consumer-close", 1);
    REQUIRE(produce(rings, 0));
    const uint32_t seen = rings.doorbell();
    std::thread consumer([&] {
      auto mine = TokenRings::open(rings.name());
      mine->close(0, Status(Code::aborted, std::string(10'000, 'x')));
    });
    CHECK(rings.wait_for_work(seen, std::chrono::steady_clock::now() + std::chrono::seconds(20)));
    consumer.join();
    CHECK(rings.closed(0).message() == std::string(511, 'x'));
  }

  TEST_CASE("token ring: RING-1, reset fences off the old generation and serves the new one") {
    TokenRings rings = make("reset", 2);
    produce(rings, 0);
    produce(rings, 1);
    REQUIRE(rings.acquire(0, key(0), 0).ok());
    Status waited;
    std::thread early([&] {  // asks for the new generation before the node resets the ring
      auto mine = TokenRings::open(rings.name());
      waited = consume(*mine, 40, 5) ? Status() : Status(Code::internal, "wrong batch");
    });
    rings.close(0, Status(Code::io, "of the old generation"));
    rings.reset(0, 5);
    CHECK(rings.release(0).code() == Code::aborted);  // RING-1
    CHECK(rings.acquire(0, key(0), long_ms).status().code() == Code::aborted);
    CHECK(rings.filled(0) == 0);
    CHECK(rings.closed(0).ok());
    produce(rings, 40);
    early.join();
    CHECK(waited.ok());
    rings.close(0, Status(Code::io, "of the old generation"));
    CHECK(rings.acquire(0, key(41, 6), 0).status().code() == Code::deadline);
  }

  TEST_CASE(
      "token ring: RING-2, a consumer killed at any time leaves a ring that the next one can use") {
    TokenRings rings = make("kill", 1);  // one slot: a lost wake-up would hang
    uint64_t produced = 0;
    for (int round = 0; round < 20; ++round) {
      const uint64_t first =
          produced - rings.filled(0);  // what the consumer before has not released
      const pid_t child = fork();
      if (child == 0) {
        auto mine = TokenRings::open(rings.name());
        for (uint64_t n = first; mine.ok(); ++n)
          if (!consume(*mine, n)) _exit(1);
        _exit(1);
      }
      const uint64_t until = produced + 50 + static_cast<uint64_t>(round);
      produce_all(rings, produced, until);
      produced = until;
      kill(child, SIGKILL);
      int status = 0;
      REQUIRE(waitpid(child, &status, 0) == child);
      REQUIRE(WIFSIGNALED(status));
    }
    const uint64_t next = produced - rings.filled(0);
    rings.reset(0, 1);
    CHECK(produce(rings, next));
    CHECK(consume(rings, next, 1));
  }

  TEST_CASE("token ring: rings of one segment are independent") {
    TokenRings rings = make("many", 2, 3);
    for (uint64_t ring = 0; ring < 3; ++ring) REQUIRE(produce(rings, 10 * ring, ring));
    rings.close(1, Status(Code::aborted, "only this one"));
    CHECK(consume(rings, 0, 0, 0));
    CHECK(consume(rings, 20, 0, 2));
    CHECK_FALSE(rings.acquire(1, key(10), 0).ok());
  }

  TEST_CASE("token ring: a segment without rings and an impossible shape are refused") {
    const std::string name = unique_name("other");
    auto memory = must(SharedMemory::create(name, 100));
    CHECK(TokenRings::open(name).status().code() == Code::bad_data);
    CHECK_FALSE(TokenRings::open(name + "-none").ok());
    const TokenRings rings = make("cut", 2);
    auto whole = SharedMemory::open(rings.name());
    auto cut = must(SharedMemory::create(name + "-cut", rings.shape().segment_bytes() - 4096));
    std::memcpy(cut->data(), whole->data(), cut->bytes());
    CHECK(TokenRings::open(cut->name()).status().code() == Code::bad_data);
    CHECK(TokenRings::create(name + "-x", {1, 0, 1, 1}).status().code() == Code::bad_config);
    CHECK(TokenRings::create(name + "-x", {1, 1, 1 << 20, 1 << 24}).status().code() ==
          Code::bad_config);
  }
}
