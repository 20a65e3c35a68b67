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
      AttentionShape shape;
      shape.batch = batch;
      shape.kv_heads = kv_heads;
      const AttentionPart part = attention_part(shape, bytes);
      CHECK(part.samples == samples);
      CHECK(part.kv_heads == heads);
    }
  }
}
