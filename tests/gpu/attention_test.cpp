// Compares cuDNN's attention with libtorch's, on a GPU, whose kernels have no plain reference here:
// backend_test.cpp compares the backend, which takes either, with the CPU's.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <vector>

#include "model/cuda/aten.hpp"
#include "tests/gpu/device_values.hpp"

using namespace simplescale;
using namespace simplescale::cuda;
using namespace simplescale::testing;

namespace {

/// A view of (batch, heads, T, D) as the values in this order.
std::vector<Bf16> values_of(const HeadView<Bf16>& view, const AttentionShape& s, int64_t heads) {
  std::vector<Bf16> memory(static_cast<size_t>(
      (s.batch - 1) * view.batch + (heads - 1) * view.head + (s.T - 1) * view.token + s.D)),
      values;
  device_copy(memory.data(), view.data, memory.size() * sizeof(Bf16));
  for (int64_t b = 0; b < s.batch; ++b)
    for (int64_t h = 0; h < heads; ++h)
      for (int64_t t = 0; t < s.T; ++t) {
        const auto row = memory.begin() + b * view.batch + h * view.head + t * view.token;
        values.insert(values.end(), row, row + s.D);
      }
  return values;
}

/// Output, dq, dk and dv.
using Results = std::array<std::vector<Bf16>, 4>;

Results results_of(Aten& aten, const AttentionShape& s, AttentionKernel forward,
                   AttentionKernel backward, const Values<Bf16>& qkv, const Values<Bf16>& d_out) {
  aten.use(forward);
  const Aten::SavedPtr saved = aten.attention(qkv.data());
  std::vector<Bf16> out(static_cast<size_t>(s.batch * s.T * s.heads * s.D));
  device_copy(out.data(), aten.attended(*saved), out.size() * sizeof(Bf16));
  aten.use(backward);
  const auto d = aten.attention_backward<Bf16>(qkv.data(), *saved, d_out.data());
  return {out, values_of(d.dq, s, s.heads), values_of(d.dk, s, s.kv_heads),
          values_of(d.dv, s, s.kv_heads)};
}

/// The largest difference divided by the largest value.
double distance(const std::vector<Bf16>& a, const std::vector<Bf16>& b) {
  double worst = 0, largest = 1e-30;
  REQUIRE(a.size() == b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    const double x = reference::value(a[i]), y = reference::value(b[i]);
    if (!(std::abs(x - y) <= worst)) worst = std::abs(x - y);
    largest = std::max(largest, std::abs(y));
  }
  return worst / largest;
}

}  // namespace

TEST_SUITE("gpu") {
  TEST_CASE(
      "gpu: cuDNN's attention is near libtorch's, also mixed with it, and its deterministic "
      "backward "
      "pass repeats its bits") {
    constexpr auto kFlash = AttentionKernel::flash, kCudnn = AttentionKernel::cudnn;
    // The last three are computed in parts: of samples, of heads, of four heads.
    for (const auto& [batch, heads, kv_heads, T, D] : {std::array<int64_t, 5>{2, 4, 2, 256, 64},
                                                       {2, 4, 4, 200, 64},
                                                       {2, 4, 1, 200, 128},
                                                       {2, 4, 4, 256, 128},
                                                       {4, 32, 4, 2048, 16},
                                                       {1, 32, 4, 4096, 16},
                                                       {1, 12, 12, 5999, 16}}) {
      AttentionShape s{batch, heads, kv_heads, T, D};
      s.ld_qkv = (heads + 2 * kv_heads) * D;
      CAPTURE(s.text());
      const Values<Bf16> qkv(some<Bf16>(batch * T * s.ld_qkv)),
          d_out(some<Bf16>(batch * T * heads * D));
      for (const bool deterministic : {true, false}) {
        CAPTURE(deterministic);
        Aten aten(0, DType::bf16, s, deterministic, nullptr);
        const auto run = [&](AttentionKernel forward, AttentionKernel backward) {
          return results_of(aten, s, forward, backward, qkv, d_out);
        };
        const Results flash = run(kFlash, kFlash), cudnn = run(kCudnn, kCudnn),
                      again = run(kCudnn, kCudnn), half = run(kCudnn, kFlash),
                      other = run(kFlash, kCudnn);
        for (size_t i = 0; i < flash.size(); ++i) {
          CAPTURE(i);
          for (const Results* each : {&cudnn, &half, &other})
            CHECK(distance((*each)[i], flash[i]) < 3e-2);
          if (deterministic) CHECK(same_bits(again[i], cudnn[i]));
        }
      }
    }
  }
}
