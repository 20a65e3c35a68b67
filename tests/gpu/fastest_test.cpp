// How the CUDA backend chooses among several kernels, over the fake GPU, where each piece of work
// takes a microsecond.
#include "model/cuda/fastest.hpp"

#include <doctest/doctest.h>

#include <new>
#include <stdexcept>
#include <vector>

#include "tests/gpu/fake_gpu.hpp"

using namespace simplescale;
using namespace simplescale::cuda;

namespace {

bool is_memory(const std::exception& error) {
  return dynamic_cast<const std::bad_alloc*>(&error) != nullptr;
}

struct Stream {
  Stream() { (void)cudaStreamCreateWithPriority(&at, cudaStreamNonBlocking, -1); }
  ~Stream() { (void)cudaStreamDestroy(at); }
  cudaStream_t at = nullptr;
};

}  // namespace

TEST_SUITE("gpu") {
  TEST_CASE("gpu: the fastest kernel is chosen once each was measured, and the figures are told") {
    const Stream stream;
    int launches = 0;
    const auto kernel = [&](int us) {
      return [&, us] {
        ++launches;
        for (int i = 0; i < us; ++i) fake_gpu::run_on(stream.at, [] {});
      };
    };
    const Candidate candidates[] = {
        {"slow", kernel(5)}, {"fast", kernel(2)}, {"middle", kernel(3)}};
    const Fastest best = fastest(stream.at, candidates, is_memory);
    CHECK(best.index == 1);
    CHECK(best.told == "slow 0.005000 ms; fast 0.002000 ms; middle 0.003000 ms");
    CHECK(launches == 3 * (1 + 3));  // the first launch of each is not counted
  }

  TEST_CASE("gpu: of long kernels that are near each other, the fastest under load is chosen") {
    const Stream stream;
    // Each takes longer once it has been launched often: the GPU's clock has become slower.
    const auto kernel = [&](int us, int us_under_load) {
      return [&stream, us, us_under_load, launched = 0]() mutable {
        const int pieces = ++launched <= 1 + 3 + 100 ? us : us_under_load;
        for (int i = 0; i < pieces; ++i) fake_gpu::run_on(stream.at, [] {});
      };
    };
    const auto chosen = [&](std::vector<Candidate> candidates) {
      return fastest(stream.at, candidates, is_memory).index;
    };
    CHECK(chosen({{"fast", kernel(400, 455)}, {"thrifty", kernel(440, 450)}}) == 1);
    CHECK(chosen({{"fast", kernel(400, 445)}, {"thrifty", kernel(440, 450)}}) == 0);
    CHECK(chosen({{"thrifty", kernel(460, 460)}, {"fast", kernel(400, 500)}}) == 1);  // not near
    const auto weak = [&, launched = 0]() mutable {  // works four times
      if (++launched > 4) throw std::bad_alloc();
      for (int i = 0; i < 390; ++i) fake_gpu::run_on(stream.at, [] {});
    };
    CHECK(chosen({{"weak", weak}, {"fast", kernel(400, 500)}}) == 1);
    CHECK(chosen({{"fast", kernel(40, 50)}, {"thrifty", kernel(44, 45)}}) == 0);  // short
  }

  TEST_CASE("gpu: a kernel that fails is not chosen, and what it leaves hurts no other one") {
    const Stream stream;
    const auto fails = [] {
      fake_gpu::fail_allocations(1);
      void* data = nullptr;
      (void)cudaMalloc(&data, 1);  // leaves an error behind
      throw std::runtime_error("no such engine\nand a backtrace");
    };
    const auto works = [&] {
      fake_gpu::check_last_error();
      fake_gpu::run_on(stream.at, [] {});
    };
    for (const size_t good : {0, 1}) {
      std::vector<Candidate> candidates{{"cuDNN", fails}, {"cuDNN", fails}};
      candidates[good] = {"flash", works};
      const Fastest best = fastest(stream.at, candidates, is_memory);
      CHECK(best.index == good);
      CHECK(best.told.find("cuDNN fails: no such engine") != std::string::npos);
      CHECK(best.told.find("backtrace") == std::string::npos);
      CHECK(cudaGetLastError() == cudaSuccess);
    }
  }

  TEST_CASE("gpu: if every kernel fails, so does the choice, with the last failure") {
    const Stream stream;
    const auto fails = [](const char* why) { return [why] { throw std::runtime_error(why); }; };
    const Candidate candidates[] = {{"flash", fails("illegal address")},
                                    {"cuDNN", fails("sticky")}};
    CHECK_THROWS_WITH_AS((void)fastest(stream.at, candidates, is_memory), "sticky",
                         std::runtime_error);
  }

  TEST_CASE(
      "gpu: without memory for any kernel the choice is made later, with one it is made now") {
    const Stream stream;
    const Candidate works{"flash", [&] { fake_gpu::run_on(stream.at, [] {}); }},
        needs_memory{"cuDNN", [] { throw std::bad_alloc(); }};
    CHECK_THROWS_AS((void)fastest(stream.at, std::vector{needs_memory, works}, is_memory),
                    std::bad_alloc);
    CHECK(fastest(stream.at, std::vector{works, needs_memory}, is_memory).index == 0);
  }
}
