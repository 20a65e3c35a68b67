// Compares the CUDA backend with the CPU backend: on a GPU, loaded as a trainer loads it; without a
// GPU over a fake one, with emulated kernels and plain loops for the parts of libtorch and cuBLASLt
// (fake_gpu.hpp, fake_aten.cpp, fake_cublaslt.cpp).
#include <cuda_runtime_api.h>
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <future>
#include <thread>

#include "model/cuda/cuda_backend.hpp"
#include "runtime/run/chosen_products.hpp"
#include "runtime/training/state_hash.hpp"
#include "tests/gpu/fake_gpu.hpp"
#include "tests/long.hpp"
#include "tests/model/test_model.hpp"
#include "tests/must.hpp"
#include "tests/temp_folder.hpp"

using namespace simplescale;
using namespace simplescale::testing;

namespace {

#ifdef SIMPLESCALE_EMULATED_GPU
constexpr bool kEmulated = true;
constexpr auto make = cuda::make_backend;
constexpr int64_t kDim = 32, kHidden = 56, kVocab = 101, kBlockSize = 13;
#else
constexpr bool kEmulated = false;
constexpr auto make = make_cuda_backend;
constexpr int64_t kDim = 128, kHidden = 352, kVocab = 4096, kBlockSize = 200;
#endif

ModelShape small(bool tied) {
  ModelShape shape{.dim = kDim,
                   .hidden = kHidden,
                   .layers = 3,
                   .heads = 4,
                   .kv_heads = 2,
                   .vocab = kVocab,
                   .block_size = kBlockSize};
  shape.tie_embeddings = tied;
  return shape;
}

std::unique_ptr<Backend> gpu(const BackendOptions& options) {
  Result<std::unique_ptr<Backend>> made = must(make(options));
  return made.take();
}

/// Products in fp8 whose sides are several blocks of 128.
BackendOptions fp8_options() {
  BackendOptions options{.shape = small(false), .micro_batch_size = 2};
  options.shape.dim = 160, options.shape.hidden = 208, options.shape.block_size = 72;
  options.shape.layers = 1;
  options.fp8 = true;
  return options;
}

/// The largest difference divided by the largest value.
double distance(const std::vector<float>& a, const std::vector<float>& b) {
  double worst = 0, largest = 0;
  REQUIRE(a.size() == b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    const double error = std::abs(double{a[i]} - double{b[i]});
    if (!(error <= worst)) worst = error;
    largest = std::max(largest, std::abs(double{b[i]}));
  }
  return worst / std::max(largest, 1e-30);
}

}  // namespace

TEST_SUITE("gpu") {
  TEST_CASE("gpu: a thread that waits for the GPU sleeps") {
    const std::unique_ptr<Backend> device = gpu(TestModel(small(false), 1).options(DType::bf16));
    unsigned flags = 0;
    REQUIRE(cudaGetDeviceFlags(&flags) == cudaSuccess);
    CHECK((flags & cudaDeviceScheduleMask) == cudaDeviceScheduleBlockingSync);
  }

  TEST_CASE("gpu: loss, logits and gradients are near the CPU's, and are reproducible bit by bit") {
    for (const DType dtype : {DType::f32, DType::bf16})
      for (const bool tied : {false, true})
        for (const Recompute recompute : {Recompute::nothing, Recompute::block, Recompute::mlp}) {
          INFO("tied = ", tied, ", recompute = ", static_cast<int>(recompute));
          const bool wide = dtype == DType::f32;
          const TestModel m(small(tied), 2);
          BackendOptions options = m.options(dtype);
          options.recompute = recompute;
          auto cpu = must(make_cpu_backend(options));
          const Outcome expected = run_micro_batch(**cpu, m, dtype);
          const std::unique_ptr<Backend> device = gpu(options);
          const Outcome ours = run_micro_batch(*device, m, dtype),
                        again = run_micro_batch(*device, m, dtype);
          CHECK(ours.loss == doctest::Approx(expected.loss).epsilon(wide ? 1e-5 : 1e-2));
          CHECK(distance(ours.logits, expected.logits) < (wide ? 1e-4 : 5e-2));
          CHECK(ours.loss == again.loss);
          for (size_t u = 0; u < ours.grads.size(); ++u) {
            CAPTURE(u);
            CHECK(distance(ours.grads[u], expected.grads[u]) < (wide ? 3e-4 : 5e-2));
            CHECK(ours.grads[u] == again.grads[u]);
          }
        }
  }

  TEST_CASE("gpu: micro-batches that pass each unit together have the bits of each alone") {
    for (const DType dtype : {DType::f32, DType::bf16})
      for (const NormPlacement norm : {NormPlacement::pre, NormPlacement::post})
        for (const Recompute recompute : {Recompute::nothing, Recompute::block, Recompute::mlp}) {
          INFO("norm = ", static_cast<int>(norm), ", recompute = ", static_cast<int>(recompute));
          ModelShape shape = small(norm == NormPlacement::pre);
          shape.norm = norm;
          const TestModel m(shape, 2);
          BackendOptions options = m.options(dtype);
          options.recompute = recompute;
          const auto [alone, together] = alone_and_together(gpu, options, m);
          for (size_t i = 0; i < alone.size(); ++i) {
            CHECK(alone[i].losses == together[i].losses);
            CHECK(alone[i].grads == together[i].grads);
          }
        }
  }

  TEST_CASE("gpu: BACKEND-2, measured products are near the CPU's; the run's next backend agrees") {
    const test::TempFolder folder;
    const RunFolder run{folder.path};
    const TestModel m(small(false), 2);
    BackendOptions options = m.options(DType::bf16);
    auto cpu = must(make_cpu_backend(options));
    const Outcome expected = run_micro_batch(**cpu, m, DType::bf16);
    options.gemm_folder = run.products();
    CHECK(chosen_products(run).empty());
    const Outcome ours = run_micro_batch(*gpu(options), m, DType::bf16);
    // SIGNATURE-1: the signature has them all.
    const auto chosen = chosen_products(run);
    const auto files = std::filesystem::recursive_directory_iterator(run.products());
    CHECK(std::ssize(chosen) ==
          std::ranges::count_if(files, [](const auto& entry) { return entry.is_regular_file(); }));
    CHECK(chosen.size() > 1);
    const Outcome again = run_micro_batch(*gpu(options), m, DType::bf16);
    CHECK(chosen_products(run) == chosen);
    CHECK(ours.loss == doctest::Approx(expected.loss).epsilon(1e-2));
    CHECK(ours.losses == again.losses);
    for (size_t u = 0; u < ours.grads.size(); ++u) {
      CAPTURE(u);
      CHECK(distance(ours.grads[u], expected.grads[u]) < 5e-2);
      CHECK(ours.grads[u] == again.grads[u]);
    }
  }

  TEST_CASE("gpu: with cuDNN's attention a backend is near the CPU's, and repeats its bits") {
#ifdef SIMPLESCALE_EMULATED_GPU
    constexpr int64_t kUnit = 8, kShort = 8, kLong = 13;
#else
    constexpr int64_t kUnit = 64, kShort = 128, kLong = 200;
#endif
    for (const int64_t width : {kUnit, 2 * kUnit})
      for (const int64_t kv_heads : {2, 4})
        for (const int64_t T : {kShort, kLong}) {
          INFO("width = ", width, ", kv_heads = ", kv_heads, ", T = ", T);
          ModelShape shape = small(false);
          shape.layers = 1;
          shape.head_width = width;
          shape.kv_heads = kv_heads;
          shape.block_size = T;
          const TestModel m(shape, 2);
          BackendOptions options = m.options(DType::bf16);
          auto cpu = must(make_cpu_backend(options));
          const Outcome expected = run_micro_batch(**cpu, m, DType::bf16);
          const test::TempFolder folder;
          options.gemm_folder = folder.path;
          const auto chosen = cuda::ChosenAlgorithms::of_run(folder.path, options.device_index);
          const cuda::AttentionShape attention{options.micro_batch_size, shape.heads, kv_heads, T,
                                               width};
          for (const char* pass : {", forward", ", backward"})
            REQUIRE(chosen->keep(attention.text() + pass, "cuDNN").ok());
          const std::unique_ptr<Backend> device = gpu(options);
          const Outcome ours = run_micro_batch(*device, m, DType::bf16),
                        again = run_micro_batch(*device, m, DType::bf16);
          CHECK(distance(ours.losses, expected.losses) < 0.1);
          CHECK(distance(ours.logits, expected.logits) < 0.1);
          // Nothing else was chosen.
          const auto files = std::filesystem::directory_iterator(
              std::filesystem::path(chosen->file_of("")).parent_path());
          CHECK(std::ranges::count_if(files, [](const auto& entry) {
                  return entry.path().filename().string().starts_with("attention");
                }) == 2);
          CHECK(ours.losses == again.losses);
          for (size_t u = 0; u < ours.grads.size(); ++u) {
            CAPTURE(u);
            CHECK(distance(ours.grads[u], expected.grads[u]) < 0.1);
            CHECK(ours.grads[u] == again.grads[u]);
          }
        }
  }

  TEST_CASE(
      "gpu: every option of a block, with and without documents, gives the CPU's loss, logits and "
      "gradients") {
    for (const ModelShape& each : with_options(small(false)))
      for (const auto& [dtype, documents] : {std::pair{DType::f32, true},
                                             {DType::bf16, false},
                                             {DType::f32, false},
                                             {DType::bf16, true}}) {
        // Emulation is slow: CI compares each option in fp32 with documents, in bf16 without.
        if (kEmulated && !test::long_tests() && documents != (dtype == DType::f32)) continue;
        ModelShape shape = each;
        // On a GPU heads are multiples of 8 elements.
        if (shape.head_width > 0) shape.head_width = shape.head_width > 2 ? 16 : 8;
        CAPTURE(options_text(shape));
        const bool wide = dtype == DType::f32;
        CAPTURE(documents);
        const TestModel plain(shape, 2), m = documents ? with_documents(plain) : plain;
        BackendOptions options = m.options(dtype);
        options.recompute = wide ? Recompute::nothing : Recompute::block;
        auto cpu = must(make_cpu_backend(options));
        const Outcome expected = run_micro_batch(**cpu, m, dtype);
        const std::unique_ptr<Backend> device = gpu(options);
        // A micro-batch with other documents, or with none, leaves nothing behind.
        (void)run_micro_batch(*device, documents ? plain : with_documents(plain), dtype);
        const Outcome ours = run_micro_batch(*device, m, dtype);
        // The GPU rounds products to bf16 before RoPE and norms, the CPU after: fp32 shows that the
        // mathematics is the same, bf16 that nothing is left out.
        CHECK(ours.loss == doctest::Approx(expected.loss).epsilon(wide ? 1e-5 : 1e-2));
        CHECK(distance(ours.losses, expected.losses) < (wide ? 1e-4 : 0.1));
        CHECK(distance(ours.logits, expected.logits) < (wide ? 1e-4 : 0.1));
        for (size_t u = 0; u < ours.grads.size(); ++u) {
          CAPTURE(u);
          CHECK(distance(ours.grads[u], expected.grads[u]) < (wide ? 3e-4 : 0.2));
        }
      }
  }

  TEST_CASE("gpu: with products in fp8 a backend is near the CPU's, and repeats its bits") {
    // As in tests/model/reference_test.cpp: a value on the edge between two of fp8 is rounded to the
    // other one here and there, so the branches are small beside the residual stream.
    for (const DType dtype : {DType::f32, DType::bf16}) {
      BackendOptions options = fp8_options();
      options.precision = dtype;
      const bool wide = dtype == DType::f32 && kEmulated;  // tensor cores add fp8 with fewer bits
      if (const Status made = make(options).status();
          made.code() == Code::bad_config && !kEmulated) {
        MESSAGE(made.message());
        return;
      }
      TestModel m(options.shape, options.micro_batch_size);
      for (const Parameter& p : m.units[1].parameters)
        if (p.name.ends_with("o_proj.weight") || p.name.ends_with("down_proj.weight"))
          for (size_t i = 0; i < p.count; ++i) m.params[1][p.offset + i] *= 0.01f;
      const auto run = [&](const BackendOptions& of, bool twice = !kEmulated) {
        const std::unique_ptr<Backend> device = gpu(of);
        Outcome first = run_micro_batch(*device, m, dtype);
        if (!twice) return first;
        const Outcome again = run_micro_batch(*device, m, dtype);
        CHECK(first.losses == again.losses);
        CHECK(first.grads == again.grads);
        return first;
      };
      const Outcome of_cpu = run_micro_batch(**make_cpu_backend(options), m, dtype);
      const Outcome ours = run(options, true);
      CHECK(ours.loss == doctest::Approx(of_cpu.loss).epsilon(wide ? 1e-5 : 1e-2));
      CHECK(distance(ours.logits, of_cpu.logits) < (wide ? 1e-2 : 5e-2));
      size_t differ = 0;
      for (size_t i = 0; i < ours.logits.size(); ++i)
        if (!(std::abs(ours.logits[i] - of_cpu.logits[i]) < 1e-4f)) ++differ;
      if (wide) CHECK(differ < ours.logits.size() / 10);
      for (size_t u = 0; u < ours.grads.size(); ++u) {
        CAPTURE(u);
        CHECK(distance(ours.grads[u], of_cpu.grads[u]) < (wide ? 0.02 : 0.08));
      }
      BackendOptions other = options;
      for (const Recompute recompute : {Recompute::block, Recompute::mlp}) {
        other.recompute = recompute;
        CHECK(run(other).grads == ours.grads);
      }
      // Of the MLP 128 rows at a time: the rounding of a token needs no other token.
      other.part_bytes = 1;
      const Outcome in_parts = run(other);
      if (kEmulated) CHECK(in_parts.logits == ours.logits);
      other = options;
      other.fp8 = false;
      CHECK(run(other).logits != ours.logits);
    }
  }

  TEST_CASE("gpu: what is recomputed changes no bit, for every option of a block") {
    std::vector<ModelShape> shapes = with_options(small(false));
    shapes.push_back(small(true));
    bool wide = false;
    for (ModelShape shape : shapes) {
      wide = !wide;
      for (const DType dtype : {DType::f32, DType::bf16}) {
        if (kEmulated && !test::long_tests() && wide != (dtype == DType::f32)) continue;
        if (shape.head_width > 0) shape.head_width = shape.head_width > 2 ? 16 : 8;
        CAPTURE(options_text(shape));
        const TestModel m(shape, 2);
        BackendOptions options = m.options(dtype);
        const Outcome kept = run_micro_batch(*gpu(options), m, dtype);
        for (const Recompute recompute : {Recompute::block, Recompute::mlp}) {
          options.recompute = recompute;
          const Outcome again = run_micro_batch(*gpu(options), m, dtype);
          CHECK(again.losses == kept.losses);
          CHECK(again.grads == kept.grads);
        }
      }
    }
  }

  TEST_CASE("gpu: logits in several parts give loss and gradients of logits in one part") {
    for (const DType dtype : {DType::f32, DType::bf16})
      for (const bool tied : {false, true}) {
        CAPTURE(tied);
        const bool wide = dtype == DType::f32;
        const TestModel m(small(tied), 2);
        BackendOptions options = m.options(dtype);
        const Outcome whole = run_micro_batch(*gpu(options), m, dtype);
        // Four parts, of which the last is shorter; then one row at a time.
        const int64_t rows = 2 * kBlockSize,
                      row_bytes = kVocab * static_cast<int64_t>(bytes_of(dtype));
        for (const int64_t bytes : {(rows / 4 + 1) * row_bytes, int64_t{1}}) {
          options.part_bytes = bytes;
          const Outcome parts = run_micro_batch(*gpu(options), m, dtype);
          // A product of fewer rows may take another algorithm, with other bits.
          CHECK(distance(parts.losses, whole.losses) < (wide ? 1e-5 : 1e-2));
          CHECK(distance(parts.logits, whole.logits) < (wide ? 1e-5 : 1e-2));
          for (size_t u = 0; u < whole.grads.size(); ++u) {
            CAPTURE(u);
            CHECK(distance(parts.grads[u], whole.grads[u]) < (wide ? 1e-5 : 5e-2));
          }
        }
      }
  }

  TEST_CASE(
      "gpu: an MLP in several parts gives loss and gradients of an MLP in one part, recomputed "
      "or not") {
    ModelShape after = small(false);
    after.norm = NormPlacement::post;
    for (const DType dtype : {DType::f32, DType::bf16})
      for (const ModelShape& shape : {small(false), after}) {
        const TestModel m(shape, 2);
        BackendOptions options = m.options(dtype);
        const Outcome whole = run_micro_batch(*gpu(options), m, dtype);
        // Three parts, of which the last is shorter.
        options.part_bytes =
            (2 * kBlockSize * 2 / 5) * 2 * kHidden * static_cast<int64_t>(bytes_of(dtype));
        const Outcome parts = run_micro_batch(*gpu(options), m, dtype);
        CHECK(distance(parts.losses, whole.losses) < (dtype == DType::f32 ? 1e-6 : 1e-2));
        for (size_t u = 0; u < whole.grads.size(); ++u) {
          CAPTURE(u);
          CHECK(distance(parts.grads[u], whole.grads[u]) < (dtype == DType::f32 ? 1e-5 : 5e-2));
        }
        for (const Recompute recompute : {Recompute::block, Recompute::mlp}) {
          CAPTURE(static_cast<int>(recompute));
          options.recompute = recompute;
          const Outcome again = run_micro_batch(*gpu(options), m, dtype);
          CHECK(again.losses == parts.losses);
          CHECK(again.grads == parts.grads);
        }
      }
  }

  TEST_CASE("gpu: orthogonalized matrices are near the CPU's, wide, tall and square") {
    const TestModel m(small(false), 1);
    for (const DType dtype : {DType::f32, DType::bf16}) {
      BackendOptions options = m.options(dtype);
      options.muon = true;
      auto cpu = must(make_cpu_backend(options));
      const std::unique_ptr<Backend> device = gpu(options);
      for (const auto& [rows, columns] :
           {std::pair{kDim, kDim}, {kHidden, kDim}, {kDim, kHidden}, {kDim / 2, kDim}}) {
        INFO("rows = ", rows, ", columns = ", columns);
        std::vector<float> values(static_cast<size_t>(rows * columns));
        for (size_t i = 0; i < values.size(); ++i)
          values[i] = std::sin(static_cast<float>(i * i % 1009)) * 1e-3f;
        const std::vector<unsigned char> bytes = encode(values, dtype);
        std::vector<std::vector<float>> results;
        for (Backend* backend : {cpu->get(), device.get()}) {
          const auto memory = must(backend->allocate(bytes.size()));
          backend->copy_to_device(*memory, bytes.data(), bytes.size());
          backend->orthogonalize(rows, columns, *memory);
          std::vector<unsigned char> out(bytes.size());
          backend->copy_to_host(out.data(), *memory, out.size());
          results.push_back(decode(out, dtype));
        }
        CHECK(distance(results[1], results[0]) < (dtype == DType::f32 ? 1e-4 : 0.1));
      }
    }
  }

  TEST_CASE(
      "gpu: a state has the same hash as its host copy, and copies run beside the computation") {
    const TestModel m(small(false), 1);
    const std::unique_ptr<Backend> device = gpu(m.options());
    constexpr size_t total = 20 * kStateHashBlock + 3 * kShardAlign;
    std::vector<float> host(4 * total), copy(4 * total);
    for (size_t i = 0; i < host.size(); ++i) host[i] = static_cast<float>(i % 9973) * 0.25f;
    const auto memory = must(device->allocate(host.size() * sizeof(float)));
    auto* at = static_cast<float*>(*memory);
    device->copy_to_device(at, host.data(), host.size() * sizeof(float));
    const auto side = [](float* first, size_t parts) {
      return TrainState::Side::over({first, parts * total}, total);
    };
    for (const size_t parts : {3, 4})
      CHECK(device->start_state_hash(side(at, parts))() == state_hash(side(host.data(), parts)));
    CHECK(device->start_state_hash(side(at, 3))() != device->start_state_hash(side(at, 4))());
    for (const bool pinned : {true, false}) {
      std::ranges::fill(copy, 0.0f);
      if (pinned) device->pin_host(copy.data(), copy.size() * sizeof(float));
      device->start_copy(copy.data(), at, copy.size() * sizeof(float));
      (void)run_micro_batch(*device, m, DType::f32);
      device->finish_copies();
      if (pinned) device->unpin_host(copy.data());
      CHECK(copy == host);
    }
  }

#ifdef SIMPLESCALE_EMULATED_GPU
  TEST_CASE(
      "gpu: nobody waits for pinning or copies, which are right before, during and after it") {
    constexpr size_t piece = cuda::PinnedRange::kPieceBytes;
    // Begins and ends in the middle of a piece.
    std::vector<char> device(2 * piece + piece / 2), host(device.size());
    for (size_t i = 0; i < device.size(); i += 4099) device[i] = static_cast<char>(i % 251 + 1);
    cuda::HostCopies copies(2);
    cudaStream_t stream = nullptr;
    REQUIRE(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess);
    std::atomic<bool> waited = false;
    const auto copy = [&] {
      std::ranges::fill(host, 0);
      std::promise<void> started;
      fake_gpu::run_on(stream, [&waited, returned = started.get_future().share()] {
        if (returned.wait_for(std::chrono::seconds(20)) != std::future_status::ready) waited = true;
      });
      copies.start(stream, host.data() + 3, device.data() + 3, piece);
      copies.start(stream, host.data() + 3 + piece, device.data() + 3 + piece,
                   device.size() - 3 - piece);
      started.set_value();
      copies.finish();
      CHECK_FALSE(waited);  // start() for the stream
      return std::equal(host.begin() + 3, host.end(), device.begin() + 3);
    };
    copies.pin(host.data(), host.size());
    copies.unpin(host.data());
    fake_gpu::allow_pinning(0);
    copies.pin(host.data(), host.size());
    CHECK(copy());
    CHECK(fake_gpu::registered_pieces() == 0);
    fake_gpu::allow_pinning(SIZE_MAX);
    while (fake_gpu::registered_pieces() < 3) CHECK(copy());
    CHECK(copy());
    copies.unpin(host.data());
    CHECK(fake_gpu::registered_pieces() == 0);
    (void)cudaStreamDestroy(stream);
  }

  TEST_CASE("gpu: a backend waits for memory that the device frees after its process has started") {
    const TestModel m(small(false), 1);
    fake_gpu::fail_allocations(1);
    CHECK_NOTHROW(cuda::use_device(0));
    fake_gpu::fail_allocations(3);
    const std::unique_ptr<Backend> backend = gpu(m.options());
    CHECK(fake_gpu::failures_left() == 0);
    fake_gpu::fail_allocations(1);
    CHECK(backend->allocate(100).ok());
    CHECK(fake_gpu::failures_left() == 0);
  }

#ifdef SIMPLESCALE_EMULATED_GPU
  TEST_CASE("gpu: products in fp8 are refused for odd shapes, and by GPUs that have none") {
    BackendOptions options = fp8_options();
    options.shape.hidden += 8;
    const Status odd = make(options).status();
    CHECK(odd.code() == Code::bad_config);
    CHECK(odd.message() ==
          "products in fp8 on a GPU need hidden as a multiple of 16, and it is 216");
    for (const int major : {8, 10}) {
      fake_gpu::set_gpus({major});
      const Status other = make(fp8_options()).status();
      CHECK(says(other, Code::bad_config, "only Hopper GPUs (sm_90) do: set train.fp8 = false"));
    }
    fake_gpu::set_gpus({9});
  }

  TEST_CASE("gpu: a context made beforehand is on the device that was asked for, and can end") {
    fake_gpu::set_gpus({9, 9, 9});
    std::vector<std::string> calls;
    fake_gpu::record(&calls);
    for (const int device : {0, 1, 2}) CHECK(cuda::hold_context(device).ok());
    const Status beyond = cuda::hold_context(99);
    cuda::drop_context(0);
    CHECK(fake_gpu::devices_with_contexts() == std::set{1, 2});
    cuda::drop_context(2);  // the current one
    CHECK(fake_gpu::devices_with_contexts() == std::set{1});
    fake_gpu::record(nullptr);
    CHECK(calls == std::vector<std::string>{
                       "cublasLt: a handle on GPU 0", "cublasLt: a handle on GPU 1",
                       "cublasLt: a handle on GPU 2", "a context ends", "a context ends"});
    cuda::drop_context(1);  // after that of another one
    CHECK(fake_gpu::devices_with_contexts().empty());
    fake_gpu::fail_handles(true);
    const Status no_handle = cuda::hold_context(1);
    fake_gpu::fail_handles(false);
    CHECK(no_handle.message().starts_with("GPU 1: "));
    CHECK(no_handle.message().find("cublasLtCreate") != std::string::npos);
    CHECK(fake_gpu::devices_with_contexts().empty());
    fake_gpu::set_gpus({9});
    REQUIRE(cudaSetDevice(0) == cudaSuccess);
    CHECK(beyond.code() == Code::unavailable);
    CHECK(beyond.message().starts_with("there is no GPU 99"));
  }
#endif

  TEST_CASE("gpu: a state can be loaded and read back before, during and after its pinning") {
    constexpr size_t piece = cuda::PinnedRange::kPieceBytes;
    const TestModel m(small(false), 1);
    const std::unique_ptr<Backend> backend = gpu(m.options());
    // Begins and ends in the middle of a piece, as a part of a state does.
    std::vector<char> host(piece + piece / 2), back(host.size());
    for (size_t i = 0; i < host.size(); i += 4099) host[i] = static_cast<char>(i % 251 + 1);
    const auto memory = must(backend->allocate(host.size()));
    const auto there_and_back = [&] {
      backend->zero(*memory, host.size());
      backend->copy_to_device(*memory, host.data(), host.size());
      std::ranges::fill(back, 0);
      backend->copy_to_host(back.data(), *memory, back.size());
      return back == host;
    };
    const auto register_pieces = [](size_t pieces) {
      fake_gpu::allow_pinning(pieces);
      while (fake_gpu::registered_pieces() < pieces) std::this_thread::yield();
    };
    fake_gpu::allow_pinning(0);
    backend->pin_host(host.data(), host.size());
    for (const size_t pieces : {0, 1, 2}) {
      CAPTURE(pieces);
      register_pieces(pieces);
      CHECK(there_and_back());
    }
    backend->pin_host(back.data(), back.size());
    register_pieces(3);
    CHECK(there_and_back());
    fake_gpu::allow_pinning(SIZE_MAX);
    backend->unpin_host(host.data());
    backend->unpin_host(back.data());
    CHECK(fake_gpu::registered_pieces() == 0);
  }
#endif
}
