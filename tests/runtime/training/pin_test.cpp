// TrainState::pin() and begin_write() at the same time. Each looks twice: the reader at the step,
// the writer at the pins. The test stops one of them between its two looks: the header's page is
// read-only, so the first write to it raises SIGSEGV, and the handler lets the other side act
// through a second mapping of the same memory.
#include <doctest/doctest.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <functional>

#include "runtime/training/train_state.hpp"
#include "tests/must.hpp"

using namespace simplescale;

namespace {

constexpr size_t kTotal = 1024;
constexpr size_t kPage = 4096;  // the header is the segment's first 4096 bytes

/// While it lives, the first write to the state's header runs `meanwhile` before the write.
class BeforeFirstWrite {
 public:
  BeforeFirstWrite(TrainState& state, std::function<void()> meanwhile)
      : page_(reinterpret_cast<char*>(state.side(0).params.data()) - kPage),
        meanwhile_(std::move(meanwhile)) {
    current_ = this;
    struct sigaction action {};
    action.sa_handler = [](int) { current_->run(); };
    REQUIRE(sigaction(SIGSEGV, &action, &before_) == 0);
    REQUIRE(mprotect(page_, kPage, PROT_READ) == 0);
  }
  ~BeforeFirstWrite() {
    allow();
    sigaction(SIGSEGV, &before_, nullptr);
    CHECK(ran_);
  }
  BeforeFirstWrite(const BeforeFirstWrite&) = delete;
  BeforeFirstWrite& operator=(const BeforeFirstWrite&) = delete;

 private:
  void allow() { mprotect(page_, kPage, PROT_READ | PROT_WRITE); }
  void run() {
    if (ran_) _exit(1);  // a fault that the read-only page did not cause
    ran_ = true;
    allow();
    meanwhile_();
  }
  static inline BeforeFirstWrite* current_ = nullptr;
  char* page_;
  std::function<void()> meanwhile_;
  struct sigaction before_ {};
  bool ran_ = false;
};

struct TwoMappings {
  TwoMappings() {
    static int count = 0;
    const std::string name = "ss-test-pin-" + std::to_string(getpid()) + std::to_string(count++);
    Result<TrainState> created = must(TrainState::create(name, 7, kTotal));
    writer = created.take();
    Result<TrainState> opened = must(TrainState::open(name));
    reader = opened.take();
    for (const uint64_t step : {0, 1}) {
      REQUIRE(writer.begin_write(0).ok());
      writer.commit(step);
    }
  }
  TrainState writer, reader;  // step 1 is committed, the other side holds step 0
};

}  // namespace

TEST_SUITE("train_state") {
  TEST_CASE("train_state: a side that the writer takes between pin()'s two looks is not pinned") {
    TwoMappings state;
    Code written = Code::internal, pinned = Code::internal;
    {
      const BeforeFirstWrite meanwhile(
          state.reader, [&] { written = state.writer.begin_write(0).status().code(); });
      pinned = state.reader.pin(0).status().code();
    }
    CHECK(written == Code::ok);  // so the writer now writes this side
    CHECK(pinned == Code::not_found);
    CHECK(state.writer.begin_write(0).ok());  // no pin is left
  }

  TEST_CASE("train_state: the same if the writer has already committed a newer step to that side") {
    TwoMappings state;
    Code pinned = Code::internal;
    {
      const BeforeFirstWrite meanwhile(state.reader, [&] {
        if (state.writer.begin_write(0).ok()) state.writer.commit(2);
      });
      pinned = state.reader.pin(0).status().code();
    }
    CHECK(state.reader.step() == 2);
    CHECK(pinned == Code::not_found);
  }

  TEST_CASE("train_state: a side that is pinned between begin_write()'s two looks is not written") {
    TwoMappings state;
    Code written = Code::internal, pinned = Code::internal;
    {
      const BeforeFirstWrite meanwhile(state.writer,
                                       [&] { pinned = state.reader.pin(0).status().code(); });
      written = state.writer.begin_write(0).status().code();
    }
    CHECK(pinned == Code::ok);
    CHECK(written == Code::deadline);
  }
}
