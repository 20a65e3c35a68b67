#include "actors/trainer/batch_reader.hpp"

#include <doctest/doctest.h>
#include <unistd.h>

#include <string>

using namespace simplescale;
using std::chrono::milliseconds;

namespace {

constexpr uint64_t generation = 4;

/// The ring of one trainer, with room for two micro-batches, and the trainer's reader.
struct Trainer {
  TokenRings rings;
  bool fenced = false;
  Result<BatchReader> reader;

  explicit Trainer(milliseconds timeout = milliseconds(60'000))
      : rings(
            TokenRings::create("ss-test-reader-" + std::to_string(getpid()), {1, 2, 1, 3}).take()),
        reader((rings.reset(0, generation), BatchReader::open(rings.name(), 0, generation, timeout,
                                                              [this] { return fenced; }))) {
    REQUIRE(reader.ok());
  }
  void fill(uint64_t step, uint64_t accumulation, int32_t token) {
    int32_t* tokens = rings.begin_fill(0);
    REQUIRE(tokens);
    tokens[0] = token;
    rings.commit_fill(0, step, accumulation, 0);
  }
};

}  // namespace

TEST_SUITE("batch reader") {
  TEST_CASE("batch reader: micro-batches come in order, and each read gives the last slot back") {
    Trainer trainer;
    trainer.fill(6, 0, 60);  // rings count steps from 0
    trainer.fill(6, 1, 61);
    CHECK((*trainer.reader->read(7, 0))[0] == 60);
    CHECK((*trainer.reader->read(7, 1))[0] == 61);
    CHECK(trainer.rings.filled(0) == 1);
    CHECK(trainer.reader->release().ok());
    CHECK(trainer.rings.filled(0) == 0);
    CHECK(trainer.reader->release().ok());  // there is none
  }

  TEST_CASE("batch reader: a fence ends a read that waits") {
    Trainer trainer(milliseconds(1'000));
    trainer.fenced = true;
    CHECK(trainer.reader->read(1, 0).status().code() == Code::aborted);
    trainer.fenced = false;
    CHECK(trainer.reader->read(1, 0).status().code() == Code::deadline);
  }

  TEST_CASE("batch reader: a bad token is told from a loss that is not finite") {
    Trainer trainer;
    CHECK_FALSE(trainer.reader->bad_tokens());
    trainer.rings.close(0, Status(Code::bad_data, "a.bin: byte 44"));
    const Status status = trainer.reader->read(1, 0).status();
    CHECK(status.code() == Code::io);
    CHECK(status.message() == "a.bin: byte 44");
    CHECK(trainer.reader->bad_tokens());
  }
}
