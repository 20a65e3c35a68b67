// Which kernels attention takes, over the fake Aten: flash takes 3 ms for a pass and cuDNN 2 ms, each
// and a millisecond more.
#include "model/cuda/attention_choice.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "model/cuda/aten.hpp"
#include "model/cuda/check.hpp"
#include "model/cuda/cudnn_attention.hpp"
#include "tests/gpu/device_values.hpp"
#include "tests/gpu/fake_gpu.hpp"
#include "tests/temp_folder.hpp"

using namespace simplescale;
using namespace simplescale::cuda;
using namespace simplescale::testing;

namespace {

constexpr AttentionShape kShape{
    .batch = 2, .heads = 4, .kv_heads = 2, .T = 3, .D = 8, .ld_qkv = 64};

/// A trainer's attention.
struct Trainer {
  explicit Trainer(const std::string& folder, const AttentionShape& shape = kShape)
      : chosen(ChosenAlgorithms::of_run(folder, 0)),
        aten(0, DType::bf16, shape, true, chosen.get()),
        qkv(std::vector<Bf16>(static_cast<size_t>(shape.batch * shape.T * shape.ld_qkv))) {}

  /// Who computes forward and backward, of all launches.
  std::vector<std::string> passes() {
    std::vector<std::string> calls;
    fake_gpu::record(&calls);
    const Aten::SavedPtr saved = aten.attention(qkv.data());
    (void)aten.attention_backward<Bf16>(qkv.data(), *saved, qkv.data());
    fake_gpu::record(nullptr);
    REQUIRE(cudaStreamSynchronize(aten.stream()) == cudaSuccess);
    std::erase_if(calls, [](const auto& call) { return call.find(": attention") == call.npos; });
    return calls;
  }
  const std::unique_ptr<const ChosenAlgorithms> chosen;
  Aten aten;
  const Values<Bf16> qkv;
};

const std::vector<std::string> kFlash{"libtorch: attention", "libtorch: attention's gradients"},
    kCudnn{"cuDNN: attention", "cuDNN: attention's gradients"};

/// Restores the fake's attention.
struct Restore {
  ~Restore() { fake_gpu::set_attention({}); }
};

std::string file_of_forward(const Trainer& trainer) {
  return trainer.chosen->file_of(kShape.text() + ", forward");
}

}  // namespace

TEST_SUITE("gpu") {
  TEST_CASE(
      "gpu: BACKEND-2, attention's passes are measured once, and a later trainer takes the same") {
    const Restore restore;
    const test::TempFolder folder;
    Trainer trainer(folder.path);
    const auto first = trainer.passes();
    for (const auto& each : {kFlash, kCudnn})
      for (const std::string& call : each)
        CHECK(std::ranges::count(first, call) == (each == kCudnn ? 5 : 4));
    CHECK(trainer.passes() == kCudnn);
    CHECK(file_of_forward(trainer) ==
          folder.path + "/Fake_GPU__sm_90__8_SMs__cuBLASLt_130100__cuDNN_91900/" +
              "attention_of_2_x_4__2__heads__3_tokens__8_elements__forward.json");
    CHECK(std::filesystem::exists(file_of_forward(trainer)));
    fake_gpu::set_attention({.flash_ms = 1, .cudnn_ms = 9});  // now flash would be chosen
    CHECK(Trainer(folder.path).passes() == kCudnn);
  }

  TEST_CASE("gpu: BACKEND-2, each pass takes the kernel in its file") {
    const test::TempFolder folder;
    const auto chosen = ChosenAlgorithms::of_run(folder.path, 0);
    REQUIRE(chosen->keep(kShape.text() + ", forward", "cuDNN").ok());
    REQUIRE(chosen->keep(kShape.text() + ", backward", "flash").ok());
    CHECK(Trainer(folder.path).passes() == std::vector{kCudnn[0], kFlash[1]});
  }

  TEST_CASE(
      "gpu: BACKEND-2, cuDNN's plan is chosen with it, and taken though another comes first") {
    const Restore restore;
    const test::TempFolder folder;
    fake_gpu::set_attention({.failing = {"eng0"}});
    const std::vector<std::string> second{kCudnn[0] + " by eng1", kCudnn[1] + " by eng1"};
    Trainer first(folder.path);
    (void)first.passes();
    CHECK(first.passes() == second);
    CHECK(test::contents(file_of_forward(first)).find("\"cuDNN, eng1\"") != std::string::npos);
    fake_gpu::set_attention({});
    CHECK(Trainer(folder.path).passes() == second);
    fake_gpu::set_attention({.plans = {"eng0"}});
    Trainer without(folder.path);
    CHECK_THROWS_WITH_AS((void)without.passes(),
                         "cuDNN has no plan eng1 for attention, which this run has chosen: remove "
                         "the choice's file in control/products to choose again",
                         CudaError);
    fake_gpu::set_attention({.failing = {"eng1"}});
    CHECK_THROWS_WITH_AS((void)without.passes(), "CUDNN_STATUS_NOT_SUPPORTED", CudaError);
  }

  TEST_CASE("gpu: BACKEND-2, a plan that finds no memory is tried again, and no other one taken") {
    const test::TempFolder folder;
    const auto chosen = ChosenAlgorithms::of_run(folder.path, 0);
    for (const char* pass : {", forward", ", backward"})  // as an older version of the program
      REQUIRE(chosen->keep(kShape.text() + pass, "cuDNN").ok());
    Trainer trainer(folder.path);
    fake_gpu::fail_plans(1);
    bool no_memory = false;
    try {
      (void)trainer.aten.attention(trainer.qkv.data());
    } catch (const CudnnError& error) {
      no_memory = error.no_memory;
    }
    CHECK(no_memory);
    CHECK(trainer.passes() == kCudnn);
  }

  TEST_CASE("gpu: cuDNN's errors that mean a want of memory are known") {
    for (const char* error : {"cudnn_status: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
                              "cudnn_status: CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED",
                              "CUDNN_STATUS_ALLOC_FAILED", "cudaMalloc: out of memory"})
      CHECK(is_want_of_memory(error));
    CHECK_FALSE(is_want_of_memory("cudnn_status: CUDNN_STATUS_NOT_SUPPORTED"));
  }

  TEST_CASE("gpu: attention takes flash if cuDNN fails, without a folder, and with a window") {
    const Restore restore;
    CHECK(Trainer("").passes() == kFlash);
    const test::TempFolder folder;
    AttentionShape window = kShape;
    window.window = 2;
    CHECK(Trainer(folder.path, window).passes() == kFlash);
    CHECK(std::filesystem::is_empty(folder.path));
    fake_gpu::set_attention({.cudnn_fails = true});
    Trainer trainer(folder.path);
    CHECK(trainer.passes().back() == kFlash[1]);
    CHECK(trainer.passes() == kFlash);
    fake_gpu::set_attention({});
    CHECK(Trainer(folder.path).passes() == kFlash);
  }

  TEST_CASE("gpu: documents take flash, and do not choose for micro-batches without") {
    const test::TempFolder folder;
    Trainer trainer(folder.path);
    const std::vector<int32_t> begin{0, 6}, of_row(6);
    const DocumentRows documents{1, begin.data(), of_row.data()};
    trainer.aten.set_documents(&documents);
    CHECK(trainer.passes() == kFlash);
    CHECK(std::filesystem::is_empty(folder.path));
    trainer.aten.set_documents(nullptr);
    CHECK(trainer.passes().back() == kCudnn[1]);
    trainer.aten.set_documents(&documents);
    CHECK(trainer.passes() == kFlash);
    trainer.aten.set_documents(nullptr);
    CHECK(trainer.passes() == kCudnn);
  }

  TEST_CASE("gpu: a choice of attention that is damaged, or unknown, is named in the error") {
    for (const bool damaged : {true, false}) {
      const test::TempFolder folder;
      Trainer trainer(folder.path);
      REQUIRE(trainer.chosen->keep(kShape.text() + ", forward", "tea leaves").ok());
      const std::string file = file_of_forward(trainer), text = test::contents(file);
      if (damaged) std::ofstream(file) << text.substr(9);
      std::string message;
      try {
        (void)trainer.aten.attention(trainer.qkv.data());
      } catch (const CudaError& error) {
        message = error.what();
      }
      CHECK(message.find(file) != std::string::npos);
      CHECK(message.find(damaged ? "is damaged" : "does not know") != std::string::npos);
    }
  }

  TEST_CASE("gpu: another cuDNN chooses for itself") {
    const Restore restore;
    const test::TempFolder folder;
    (void)Trainer(folder.path).passes();
    fake_gpu::set_attention({.flash_ms = 1, .cudnn_ms = 9, .cudnn_version = 92000});
    Trainer trainer(folder.path);
    CHECK(trainer.passes().back() == kFlash[1]);
    CHECK(trainer.chosen->others().size() == 1);
  }

  TEST_CASE("gpu: a part of attention has whole samples, or heads of one, that divide all evenly") {
    constexpr size_t kMax = kAttentionWorkspaceBytesMax;
    struct Case {
      int64_t batch, kv_heads;
      size_t bytes;
      int64_t samples, heads;
    };
    for (const auto& [batch, kv_heads, bytes, samples, heads] :
         {Case{8, 4, 0, 8, 4}, Case{8, 4, kMax, 8, 4}, Case{8, 4, kMax + 1, 4, 4},
          Case{8, 4, 8 * kMax, 1, 4}, Case{6, 4, 2 * kMax, 3, 4}, Case{7, 4, 2 * kMax, 1, 4},
          Case{1, 6, 2 * kMax, 1, 3}, Case{2, 6, 4 * kMax, 1, 3}, Case{2, 4, 4 * kMax, 1, 2},
          Case{1, 4, 5 * kMax, 1, 1}, Case{1, 1, 9 * kMax, 1, 1}}) {
      CAPTURE(bytes);
      const AttentionShape shape{
          .batch = batch, .heads = kv_heads, .kv_heads = kv_heads, .T = 2048};
      const AttentionPart part = attention_part(shape, bytes);
      CHECK(part.samples == samples);
      CHECK(part.kv_heads == heads);
    }
  }

  TEST_CASE("gpu: the sums of each part of attention begin at a multiple of 16 bytes") {
    constexpr size_t kMax = kAttentionWorkspaceBytesMax;
    struct Case {
      int64_t batch, heads, kv_heads, T;
      size_t bytes;
      int64_t samples, kv_at_a_time;
    };
    for (const auto& [batch, heads, kv_heads, T, bytes, samples, kv_at_a_time] :
         {Case{8, 8, 2, 1023, 16 * kMax, 1, 1},  // a group of 4 heads
          Case{1, 12, 12, 1023, 12 * kMax, 1, 4}, Case{1, 12, 12, 1023, 2 * kMax, 1, 4},
          Case{1, 12, 12, 1022, 12 * kMax, 1, 2}, Case{1, 12, 12, 1024, 12 * kMax, 1, 1},
          Case{8, 6, 6, 1023, 48 * kMax, 2, 6}, Case{4, 6, 3, 1023, 2 * kMax, 2, 3},
          Case{3, 5, 5, 1023, 2 * kMax, 3, 5}}) {  // none but the whole
      INFO("T = ", T, ", batch = ", batch);
      const AttentionShape shape{.batch = batch, .heads = heads, .kv_heads = kv_heads, .T = T};
      const AttentionPart part = attention_part(shape, bytes);
      CHECK(part.samples == samples);
      CHECK(part.kv_heads == kv_at_a_time);
      for (int64_t sample = 0; sample < batch; sample += part.samples)
        for (int64_t head = 0; head < kv_heads; head += part.kv_heads)
          CHECK((sample * heads + head * (heads / kv_heads)) * T * 4 % 16 == 0);
    }
  }
}
