// Which algorithms products take, over the fake cuBLASLt: its algorithm 3 is the fastest that is
// allowed, and its sums have other bits than those of algorithm 0, which it names first.
#include "model/cuda/gemm.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "model/cuda/check.hpp"
#include "model/cuda/chosen_algorithms.hpp"
#include "tests/gpu/device_values.hpp"
#include "tests/gpu/fake_gpu.hpp"
#include "tests/temp_folder.hpp"

using namespace simplescale;
using namespace simplescale::cuda;
using namespace simplescale::testing;

namespace {

constexpr int64_t kM = 3, kN = 5, kK = 64;

/// A trainer's products on a stream of its own.
struct Trainer {
  explicit Trainer(const std::string& folder)
      : chosen(ChosenAlgorithms::of_run(folder, 0)), gemm(DType::f32, stream.at, chosen.get()) {}
  struct Stream {
    Stream() { (void)cudaStreamCreateWithPriority(&at, cudaStreamNonBlocking, -1); }
    ~Stream() { (void)cudaStreamDestroy(at); }
    cudaStream_t at = nullptr;
  } stream;
  const std::unique_ptr<const ChosenAlgorithms> chosen;
  Gemm gemm;

  /// a b^T, added to c; `calls` are what it asks of the GPU.
  std::vector<float> product(bool accumulate = false, std::vector<std::string>* calls = nullptr) {
    static const std::vector<float> a = some<float>(kM * kK), b = some<float>(kN * kK);
    const Values<float> left(a), right(b), out(std::vector<float>(kM * kN, 1.0f));
    fake_gpu::record(calls);
    gemm.run(Transpose::no, Transpose::yes, kM, kN, kK, left.data(), right.data(), out.data(),
             accumulate);
    fake_gpu::record(nullptr);
    REQUIRE(cudaStreamSynchronize(stream.at) == cudaSuccess);
    return out.host();
  }
};

const std::string kFirst = "cublasLt: product 3 x 5 x 64", kOther = kFirst + ", algorithm 3";

/// Restores the fake's algorithms.
struct Restore {
  ~Restore() { fake_gpu::set_algorithms({}); }
};

std::vector<std::string> files_below(const std::string& folder) {
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder))
    if (entry.is_regular_file()) files.push_back(entry.path());
  return files;
}

}  // namespace

TEST_SUITE("gpu") {
  TEST_CASE("gpu: the fastest algorithm whose sums are in fp32 is measured once, and then used") {
    const test::TempFolder folder;
    Trainer trainer(folder.path);
    std::vector<std::string> calls, again;
    (void)trainer.product(false, &calls);
    CHECK(std::ranges::count(calls, kFirst) == 4);
    CHECK(std::ranges::count(calls, kFirst + ", algorithm 2") == 4);
    CHECK(std::ranges::count(calls, kOther) == 5);  // and the product itself
    CHECK(std::ranges::count(calls, kFirst + ", algorithm 1") == 0);
    (void)trainer.product(false, &again);
    CHECK(again == std::vector{kOther});
    REQUIRE(files_below(folder.path).size() == 1);
    CHECK(files_below(folder.path)[0] ==
          folder.path +
              "/Fake_GPU__sm_90__8_SMs__cuBLASLt_130100__cuDNN_91900/3_x_5_x_64__fp32__nt.json");
  }

  TEST_CASE("gpu: BACKEND-2, a later trainer of the run takes the algorithm without measuring") {
    const Restore restore;
    const test::TempFolder folder;
    const auto bits = Trainer(folder.path).product();
    CHECK(bits != Trainer("").product());
    fake_gpu::set_algorithms({.ms = {1, 1, 1, 9}});  // now another one would be chosen
    std::vector<std::string> calls;
    CHECK(Trainer(folder.path).product(false, &calls) == bits);
    CHECK(calls == std::vector{kOther});
  }

  TEST_CASE("gpu: BACKEND-2, of trainers that choose at the same time the first one counts") {
    const test::TempFolder folder;
    const ChosenAlgorithms one(folder.path, "a GPU"), other(folder.path, "a GPU");
    REQUIRE(!(*one.find("product")).has_value());
    REQUIRE(!(*other.find("product")).has_value());
    CHECK(*one.keep("product", "first") == "first");
    const std::filesystem::path in =
        std::filesystem::path(files_below(folder.path).at(0)).parent_path();
    std::filesystem::last_write_time(in, {});
    CHECK(*other.keep("product", "second") == "first");
    CHECK(std::filesystem::last_write_time(in) ==
          std::filesystem::file_time_type());  // not written
    CHECK(**other.find("product") == "first");
  }

  TEST_CASE("gpu: BACKEND-2, a trainer that measured takes the choice of an earlier one") {
    const Restore restore;
    const test::TempFolder folder, earlier;
    fake_gpu::set_algorithms({.ms = {1, 1, 1, 9}});
    const auto bits = Trainer(earlier.path).product();
    fake_gpu::set_algorithms({.on_product = [&] {  // the choice appears while this trainer measures
      using enum std::filesystem::copy_options;
      std::filesystem::copy(earlier.path, folder.path, recursive | skip_existing);
    }});
    std::vector<std::string> calls;
    CHECK(Trainer(folder.path).product(false, &calls) == bits);
    CHECK(calls.back() == kFirst);
    CHECK(std::ranges::count(calls, kOther) == 4);  // measured, and not used
  }

  TEST_CASE(
      "gpu: without a folder, and where it is added, a product takes cuBLASLt's first choice") {
    std::vector<std::string> calls;
    (void)Trainer("").product(false, &calls);
    CHECK(calls == std::vector{kFirst});
    const test::TempFolder folder;
    Trainer trainer(folder.path);
    calls.clear();
    const auto sums = trainer.product(true, &calls), plain = Trainer("").product();
    CHECK(calls == std::vector{kFirst + ", added"});
    for (size_t i = 0; i < sums.size(); ++i) CHECK(sums[i] == doctest::Approx(plain[i] + 1));
  }

  TEST_CASE("gpu: BACKEND-2, an added product is not measured, but its algorithm is kept") {
    const Restore restore;
    const test::TempFolder folder;
    const auto bits = Trainer(folder.path).product(true);
    fake_gpu::set_algorithms({.invalid = {0}});  // now cuBLASLt names another one first
    std::vector<std::string> calls;
    CHECK(Trainer(folder.path).product(true, &calls) == bits);
    CHECK(calls == std::vector{kFirst + ", added"});
  }

  TEST_CASE(
      "gpu: cuBLASLt waits for memory that the device frees later, and leaves no error behind") {
    fake_gpu::fail_allocations(2);
    Trainer trainer("");
    CHECK(fake_gpu::failures_left() == 0);
    CHECK(cudaGetLastError() == cudaSuccess);  // libtorch would throw it after its next kernel
  }

  TEST_CASE("gpu: an algorithm that fails or that the GPU does not take is not chosen") {
    const Restore restore;
    for (const fake_gpu::Algorithms& each : std::vector<fake_gpu::Algorithms>{
             {.failing = {3}}, {.refused = {3}}, {.large = {3}}, {.invalid = {3}}}) {
      fake_gpu::set_algorithms(each);
      const test::TempFolder folder;
      for (int trainer = 0; trainer < 2; ++trainer) {
        std::vector<std::string> calls;
        (void)Trainer(folder.path).product(false, &calls);
        CHECK(calls.back() == kFirst + ", algorithm 2");
      }
    }
  }

  TEST_CASE("gpu: without an algorithm, and where one fails, the error names the product") {
    const Restore restore;
    const test::TempFolder folder;
    const auto fails = [&] {
      try {
        (void)Trainer(folder.path).product();
      } catch (const CudaError& error) {
        return std::string(error.what());
      }
      return std::string();
    };
    for (const fake_gpu::Algorithms& each :
         std::vector<fake_gpu::Algorithms>{{.none = true}, {.refused = {0, 1, 2, 3}}}) {
      fake_gpu::set_algorithms(each);
      CHECK(fails().find("3 x 5 x 64, fp32, nt") != std::string::npos);
    }
    fake_gpu::set_algorithms({});
    (void)Trainer(folder.path).product();
    fake_gpu::set_algorithms({.failing = {3}});
    CHECK(fails().find(files_below(folder.path).at(0)) != std::string::npos);
  }

  TEST_CASE("gpu: a product in fp8 is measured and kept, and takes the scales of each call") {
    const test::TempFolder folder;
    Trainer trainer(folder.path);
    constexpr int64_t kSide = 16, kSum = 32;
    // 2^-1 (e4m3: 0x30) and 2^0 (e5m2: 0x3c), and scales of each call's own.
    const Values<uint8_t> weight(std::vector<uint8_t>(kSide * kSum, 0x30)),
        gradient(std::vector<uint8_t>(kSide * kSum, 0x3c));
    const Values<float> of_weight(std::vector<float>(4, 2.0f)),
        out(std::vector<float>(kSide * kSide, 5.0f));
    const auto multiply = [&](float scale, bool accumulate, std::vector<std::string>& calls) {
      const Values<float> of_gradient(std::vector<float>(kSide, scale));
      fake_gpu::record(&calls);
      trainer.gemm.run_fp8(
          kSide, kSide, kSum, {Fp8Kind::gradient, {gradient.data(), of_gradient.data()}},
          {Fp8Kind::weight, {weight.data(), of_weight.data()}}, out.data(), accumulate);
      fake_gpu::record(nullptr);
      REQUIRE(cudaStreamSynchronize(trainer.stream.at) == cudaSuccess);
      return out.host();
    };
    std::vector<std::string> first, second, added;
    CHECK(multiply(4, false, first) == std::vector<float>(kSide * kSide, 32 * 4));
    CHECK(multiply(0.25f, false, second) == std::vector<float>(kSide * kSide, 8));
    CHECK(multiply(1, true, added) == std::vector<float>(kSide * kSide, 8 + 32));
    CHECK(first.size() > 1);
    CHECK(second == std::vector<std::string>{"cublasLt: product 16 x 16 x 32, fp8, algorithm 3"});
    CHECK(added == std::vector<std::string>{"cublasLt: product 16 x 16 x 32, fp8, added"});
    bool named = false;
    for (const std::string& file : files_below(folder.path))
      named |= file.ends_with("16_x_16_x_32__fp32__nt__fp8_gradient_by_weight.json");
    CHECK(named);
    // What Hopper has no product for.
    CHECK_THROWS_AS(trainer.gemm.run_fp8(
                        8, kSide, kSum, {Fp8Kind::gradient, {gradient.data(), of_weight.data()}},
                        {Fp8Kind::weight, {weight.data(), of_weight.data()}}, out.data()),
                    CudaError);
    CHECK_THROWS_AS(trainer.gemm.run_fp8(
                        kSide, kSide, kSum, {Fp8Kind::weight, {gradient.data(), of_weight.data()}},
                        {Fp8Kind::weight, {weight.data(), of_weight.data()}}, out.data()),
                    CudaError);
  }

  TEST_CASE("gpu: an algorithm's alignments are those of the operands") {
    const auto first = some<float>(kM * kK + 1), second = some<float>(kN * kK + 1);
    const Values<float> a(first), b(second), c(std::vector<float>(kM * kN + 1));
    for (const auto& [of_a, of_b, of_c] : {std::array{1, 0, 0}, {0, 1, 0}, {0, 0, 1}}) {
      Trainer trainer("");
      trainer.gemm.run(Transpose::no, Transpose::yes, kM, kN, kK, a.data() + of_a, b.data() + of_b,
                       c.data() + of_c);
      CHECK(cudaStreamSynchronize(trainer.stream.at) == cudaSuccess);
    }
  }

  TEST_CASE("gpu: another GPU and another cuBLASLt choose for themselves") {
    const Restore restore;
    const test::TempFolder folder;
    (void)Trainer(folder.path).product();
    fake_gpu::set_algorithms({.ms = {1, 1, 1, 9}, .version = 130200});
    std::vector<std::string> calls;
    (void)Trainer(folder.path).product(false, &calls);
    CHECK(calls.back() == kFirst);
    fake_gpu::set_gpus({10});
    (void)Trainer(folder.path).product();
    fake_gpu::set_gpus({9});
    CHECK(files_below(folder.path).size() == 3);
    CHECK(ChosenAlgorithms(folder.path, "Fake GPU, sm_90, 8 SMs, cuBLASLt 130100, cuDNN 91900")
              .others()
              .size() == 2);
  }

  TEST_CASE("gpu: a choice that is damaged, or that the GPU refuses, is named in the error") {
    const test::TempFolder folder;
    (void)Trainer(folder.path).product();
    const std::string file = files_below(folder.path).at(0), text = test::contents(file);
    const auto fails_with = [&](const std::string& changed) {
      std::ofstream(file) << changed;
      std::string message;
      try {
        (void)Trainer(folder.path).product();
      } catch (const CudaError& error) {
        message = error.what();
      }
      CHECK(message.find(file) != std::string::npos);
      return message;
    };
    CHECK(fails_with(text.substr(0, text.size() / 2)).find("damaged") != std::string::npos);
    CHECK(fails_with("").find("damaged") != std::string::npos);
    for (const auto& [old, changed] :
         {std::pair{"Fake GPU", "Real GPU"}, {"3 x 5", "5 x 3"}, {"\"0000", "\"zzzz"}}) {
      std::string other = text;
      other.replace(other.find(old), std::string(old).size(), changed);
      CHECK(fails_with(other).find("damaged") != std::string::npos);
    }
    std::string other = text;  // another algorithm that the GPU takes
    other.replace(other.find("\"0000000000000003") + 16, 1, "1");
    CHECK(fails_with(other).find("damaged") != std::string::npos);
    const Restore restore;
    fake_gpu::set_algorithms({.refused = {3}});
    CHECK(fails_with(text).find("does not take") != std::string::npos);
  }
}
