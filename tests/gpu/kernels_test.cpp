// Compares each of our device kernels with plain loops (tests/gpu/reference.hpp), at odd sizes and
// alignments: on a GPU, or emulated on the CPU (emulation.hpp).
#include <algorithm>
#include <array>
#include <bit>

#include "model/tokens.hpp"
#include "runtime/base/hash.hpp"
#include "runtime/training/state_hash.hpp"
#include "runtime/training/tree_sum.hpp"
#include "tests/gpu/device_values.hpp"
#include "tests/must.hpp"
#include "transport/nccl/tree_build.hpp"

using namespace simplescale;
using namespace simplescale::testing;
using cuda::Bf16;
namespace reference = simplescale::cuda::reference;

namespace {

constexpr cudaStream_t kStream = nullptr;
constexpr float kEps = 1e-5f;

/// Calls test(T{}, aligned) for both types, with data aligned to 16 bytes and not.
template <class Test>
void for_all(Test test) {
  for (const bool aligned : {true, false}) {
    CAPTURE(aligned);
    test(float{}, aligned);
    test(Bf16{}, aligned);
  }
}

}  // namespace

TEST_SUITE("kernels") {
  TEST_CASE("kernels: rms_norm and add_rms_norm") {
    for_all([]<class T>(T, bool aligned) {
      for (const int64_t C : {1, 37, 64, 520, 4104}) {
        CAPTURE(C);
        constexpr int64_t rows = 3;
        const Values<T> x(some<T>(rows * C), aligned), delta(some<T>(rows * C), aligned),
            gamma(some<T>(C), aligned), out(none<T>(rows * C), aligned),
            sum(none<T>(rows * C), aligned);
        auto expected = none<T>(rows * C), sums = none<T>(rows * C);
        cuda_ok(cuda::rms_norm(kStream, rows, C, x.data(), gamma.data(), kEps, out.data()));
        reference::rms_norm(rows, C, x.host().data(), gamma.host().data(), kEps, expected.data());
        check_near(out.host(), expected, 2);
        cuda_ok(cuda::add_rms_norm<T>(kStream, rows, C, x.data(), delta.data(), gamma.data(), kEps,
                                      sum.data(), out.data()));
        reference::add(rows * C, x.host().data(), delta.host().data(), sums.data());
        CHECK(same_bits(sum.host(), sums));
        reference::rms_norm(rows, C, sums.data(), gamma.host().data(), kEps, expected.data());
        check_near(out.host(), expected, 2);
      }
    });
  }

  TEST_CASE("kernels: rms_norm_backward and gamma's gradient") {
    for_all([]<class T>(T, bool aligned) {
      for (const auto& [rows, C] : {std::pair<int64_t, int64_t>{5, 37},
                                    {5, 2056},
                                    {517, 40},
                                    {7, 1024},
                                    {3, 1536},
                                    {2100, 8}})
        for (const int residual : {0, 1, 2}) {  // null, another tensor, dx itself
          INFO("C = ", C, ", residual = ", residual);
          const Values<T> x(some<T>(rows * C), aligned), gamma(some<T>(C), aligned),
              dy(some<T>(rows * C), aligned), other(some<T>(rows * C), aligned),
              dx(some<T>(rows * C), aligned), normed(none<T>(rows * C), aligned),
              grad(none<T>(C), aligned);
          const int64_t partials = cuda::gamma_partials(rows);
          const Values<float> partial(none<float>(partials * C));
          const T* from = residual == 0 ? nullptr : residual == 1 ? other.data() : dx.data();
          const std::vector<T> added = residual == 1 ? other.host() : dx.host();
          auto e_dx = none<T>(rows * C), e_normed = e_dx;
          std::vector<double> e_gamma(static_cast<size_t>(C));
          reference::rms_norm_backward(rows, C, x.host().data(), gamma.host().data(), kEps,
                                       dy.host().data(), residual ? added.data() : nullptr,
                                       e_dx.data(), e_normed.data(), e_gamma.data());
          cuda_ok(cuda::rms_norm_backward<T>(kStream, rows, C, x.data(), gamma.data(), kEps,
                                             dy.data(), from, dx.data(), normed.data(),
                                             partial.data()));
          cuda_ok(cuda::gamma_gradient(kStream, partials, C, partial.data(), grad.data()));
          check_near(dx.host(), e_dx, 4);
          check_near(normed.host(), e_normed, 2);
          auto rounded = none<T>(C);
          for (int64_t i = 0; i < C; ++i)
            reference::assign(rounded[static_cast<size_t>(i)], e_gamma[static_cast<size_t>(i)]);
          check_near(grad.host(), rounded, 20);  // a sum of `rows` terms
        }
    });
  }

  TEST_CASE("kernels: norm_add, and norms of the pieces of rows") {
    for_all([]<class T>(T, bool aligned) {
      for (const auto& [rows, pieces, width] :
           {std::array<int64_t, 3>{5, 1, 37}, {5, 3, 64}, {200, 3, 16}, {3, 1, 2056}}) {
        CAPTURE(width);
        const int64_t C = pieces * width, items = rows * pieces, ld = C + 8;
        const Values<T> x(some<T>(rows * C), aligned), y(some<T>(rows * C), aligned),
            gamma(some<T>(C), aligned), sum(none<T>(rows * C), aligned);
        auto expected = none<T>(rows * C);
        cuda_ok(cuda::norm_add<T>(kStream, rows, C, y.data(), gamma.data(), kEps, x.data(),
                                  sum.data()));
        reference::norm_add(rows, C, y.host().data(), gamma.host().data(), kEps, x.host().data(),
                            expected.data());
        check_near(sum.host(), expected, 2);

        const Values<T> data(some<T>(rows * ld), aligned), d(some<T>(rows * ld), aligned),
            before(none<T>(rows * C), aligned), grad(none<T>(width), aligned);
        const auto old = data.host(), old_d = d.host();
        std::vector<T> flat, flat_d;  // the pieces one behind the other
        for (int64_t i = 0; i < rows * C; ++i) {
          flat.push_back(old[static_cast<size_t>(i / C * ld + i % C)]);
          flat_d.push_back(old_d[static_cast<size_t>(i / C * ld + i % C)]);
        }
        cuda_ok(cuda::norm_pieces<T>(kStream, rows, pieces, width, gamma.data(), kEps, data.data(),
                                     ld, before.data(), C));
        CHECK(same_bits(before.host(), flat));
        auto e_data = old, e_d = old_d;
        reference::rms_norm(items, width, flat.data(), gamma.host().data(), kEps, expected.data());
        std::vector<double> e_gamma(static_cast<size_t>(width));
        reference::norm_pieces_backward(items, width, flat.data(), gamma.host().data(), kEps,
                                        flat_d.data(), e_gamma.data());
        for (int64_t i = 0; i < rows * C; ++i) {
          e_data[static_cast<size_t>(i / C * ld + i % C)] = expected[static_cast<size_t>(i)];
          e_d[static_cast<size_t>(i / C * ld + i % C)] = flat_d[static_cast<size_t>(i)];
        }
        check_near(data.host(), e_data, 2);
        const int64_t partials = cuda::gamma_partials(items);
        const Values<float> partial(none<float>(partials * width));
        cuda_ok(cuda::norm_pieces_backward<T>(kStream, rows, pieces, width, before.data(), C,
                                              gamma.data(), kEps, d.data(), ld, partial.data()));
        cuda_ok(cuda::gamma_gradient(kStream, partials, width, partial.data(), grad.data()));
        check_near(d.host(), e_d, 4);
        auto rounded = none<T>(width);
        for (int64_t i = 0; i < width; ++i)
          reference::assign(rounded[static_cast<size_t>(i)], e_gamma[static_cast<size_t>(i)]);
        check_near(grad.host(), rounded, 20);  // a sum of `items` terms
      }
    });
  }

  TEST_CASE("kernels: biases and their gradient") {
    for_all([]<class T>(T, bool aligned) {
      for (const auto& [rows, columns] : {std::pair<int64_t, int64_t>{5, 37}, {530, 264}}) {
        const Values<T> row(some<T>(columns), aligned), data(some<T>(rows * columns), aligned),
            grad(none<T>(columns), aligned);
        const auto biases = row.host();
        auto expected = data.host();
        std::vector<double> sums(static_cast<size_t>(columns));
        for (int64_t i = 0; i < rows * columns; ++i) {
          T& at = expected[static_cast<size_t>(i)];
          const double old = reference::value(at);
          sums[static_cast<size_t>(i % columns)] += old;
          reference::assign(at, old + reference::value(biases[static_cast<size_t>(i % columns)]));
        }
        const int64_t partials = cuda::gamma_partials(rows);
        const Values<float> partial(none<float>(partials * columns));
        cuda_ok(cuda::column_sums<T>(kStream, rows, columns, data.data(), partial.data()));
        cuda_ok(cuda::gamma_gradient(kStream, partials, columns, partial.data(), grad.data()));
        auto rounded = none<T>(columns);
        for (int64_t i = 0; i < columns; ++i)
          reference::assign(rounded[static_cast<size_t>(i)], sums[static_cast<size_t>(i)]);
        check_near(grad.host(), rounded, 20);
        cuda_ok(cuda::add_row<T>(kStream, rows, columns, row.data(), data.data()));
        CHECK(same_bits(data.host(), expected));
      }
    });
  }

  TEST_CASE("kernels: add, swiglu and its backward pass") {
    for_all([]<class T>(T, bool aligned) {
      for (const int64_t F : {1, 24, 53, 600}) {
        CAPTURE(F);
        constexpr int64_t rows = 3;
        const Values<T> gate_up(some<T>(rows * 2 * F, 3), aligned), d(some<T>(rows * F), aligned),
            act(none<T>(rows * F), aligned), dgate_up(none<T>(rows * 2 * F), aligned),
            sum(none<T>(rows * F), aligned);
        auto e_act = none<T>(rows * F), e_sum = e_act, e_dgate_up = none<T>(rows * 2 * F);
        reference::swiglu_backward(rows, F, gate_up.host().data(), d.host().data(),
                                   e_dgate_up.data(), e_act.data());
        reference::add(rows * F, gate_up.host().data(), d.host().data(), e_sum.data());
        cuda_ok(cuda::add<T>(kStream, rows * F, gate_up.data(), d.data(), sum.data()));
        CHECK(same_bits(sum.host(), e_sum));
        cuda_ok(cuda::swiglu<T>(kStream, rows, F, gate_up.data(), act.data()));
        check_near(act.host(), e_act, 2);
        cuda_ok(cuda::swiglu_backward<T>(kStream, rows, F, gate_up.data(), d.data(),
                                         dgate_up.data(), d.data()));
        check_near(dgate_up.host(), e_dgate_up, 2);
        CHECK(same_bits(d.host(), act.host()));
      }
    });
  }

  TEST_CASE("kernels: rope, and rope_backward from other strides") {
    for_all([]<class T>(T, bool aligned) {
      constexpr int64_t B = 2, T_ = 5, heads = 3, kv = 1, rows = B * T_;
      for (const int64_t D : {2, 6, 16, 64}) {
        CAPTURE(D);
        const int64_t Q = (heads + 2 * kv) * D;
        const Values<float> cosine(some<float>(T_ * D / 2)), sine(some<float>(T_ * D / 2));
        const Values<T> qkv(some<T>(rows * Q), aligned);
        auto expected = qkv.host();
        reference::rope(rows, heads + kv, D, T_, cosine.host().data(), sine.host().data(), false,
                        expected.data(), Q);
        cuda_ok(cuda::rope(kStream, rows, heads + kv, D, T_, cosine.data(), sine.data(), qkv.data(),
                           Q));
        check_near(qkv.host(), expected, 4);

        // dq: (B, T, H, D) in memory; dk and dv: (B, H, T, D), one behind the other.
        const Values<T> dq(some<T>(rows * heads * D), aligned),
            dkv(some<T>(2 * rows * kv * D), aligned), dqkv(none<T>(rows * Q), aligned);
        const auto q = dq.host(), k_v = dkv.host();
        for (int64_t r = 0; r < rows; ++r)
          for (int64_t h = 0; h < heads + 2 * kv; ++h)
            for (int64_t i = 0; i < D; ++i) {
              const int64_t b = r / T_, t = r % T_, other = (h - heads) / kv;
              const auto at = h < heads
                                  ? (r * heads + h) * D + i
                                  : ((other * B + b) * kv + (h - heads) % kv) * T_ * D + t * D + i;
              expected[static_cast<size_t>(r * Q + h * D + i)] =
                  (h < heads ? q : k_v)[static_cast<size_t>(at)];
            }
        reference::rope(rows, heads + kv, D, T_, cosine.host().data(), sine.host().data(), true,
                        expected.data(), Q);
        const cuda::HeadView<T> vk{dkv.data(), kv * T_ * D, T_ * D, D},
            vv{dkv.data() + rows * kv * D, kv * T_ * D, T_ * D, D},
            vq{dq.data(), T_ * heads * D, D, heads * D};
        cuda_ok(cuda::rope_backward<T>(kStream, B, T_, heads, kv, D, cosine.data(), sine.data(), vq,
                                       vk, vv, dqkv.data()));
        check_near(dqkv.host(), expected, 4);
      }
    });
  }

  TEST_CASE("kernels: cross-entropy, with and without its gradient and z-loss") {
    for_all([]<class T>(T, bool aligned) {
      for (const int64_t V : {1, 7, 1000, 4104}) {
        CAPTURE(V);
        const float z_loss = V == 7 || V == 4104 ? 0.02f : 0;
        constexpr int64_t rows = 4;
        const Values<T> logits(some<T>(rows * V, 20), aligned);
        const Values<int32_t> targets(
            {0, static_cast<int32_t>(V - 1), static_cast<int32_t>(V / 2), -1});
        const Values<float> losses(none<float>(rows));
        const auto before = logits.host();
        auto expected = before;
        auto e_losses = none<float>(rows);
        reference::cross_entropy(rows, V, expected.data(), targets.host().data(), 0.25f, z_loss,
                                 true, e_losses.data());
        cuda_ok(cuda::cross_entropy(kStream, rows, V, logits.data(), targets.data(), 0.25f, z_loss,
                                    false, losses.data()));
        CHECK(same_bits(logits.host(), before));
        check_near(losses.host(), e_losses, 4);
        cuda_ok(cuda::cross_entropy(kStream, rows, V, logits.data(), targets.data(), 0.25f, z_loss,
                                    true, losses.data()));
        check_near(losses.host(), e_losses, 4);
        check_near(logits.host(), expected);
      }
    });
  }

  TEST_CASE("kernels: embeddings, and their gradient in the order of rows") {
    for_all([]<class T>(T, bool aligned) {
      for (const int64_t C : {1, 37, 72, 1032}) {
        CAPTURE(C);
        constexpr int64_t V = 11, rows = 23;
        std::vector<int32_t> inputs, begin(V + 1), of(rows);
        for (int32_t i = 0; i < rows; ++i)
          inputs.push_back(i * i % 7);  // some tokens never occur, some often
        group_by_token(inputs, V, begin.data(), of.data());
        const Values<int32_t> tokens(inputs), first(begin), row(of);
        const Values<T> table(some<T>(V * C), aligned), out(none<T>(rows * C), aligned),
            grad(some<T>(V * C), aligned);
        cuda_ok(cuda::embed<T>(kStream, rows, C, table.data(), tokens.data(), out.data()));
        const auto from = table.host(), got = out.host();
        for (int64_t r = 0; r < rows; ++r)
          REQUIRE(std::memcmp(&got[static_cast<size_t>(r * C)],
                              &from[static_cast<size_t>(inputs[static_cast<size_t>(r)] * C)],
                              static_cast<size_t>(C) * sizeof(T)) == 0);
        auto expected = grad.host();
        reference::embed_backward(rows, V, C, inputs.data(), got.data(), expected.data());
        cuda_ok(cuda::embed_backward<T>(kStream, V, C, first.data(), row.data(), out.data(),
                                        grad.data()));
        check_near(grad.host(), expected, 2);
      }
    });
  }

  TEST_CASE("kernels: casts, sums of squares, AdamW") {
    for (const bool aligned : {true, false}) {
      for (const int64_t count : {1, 1031, 4096}) {
        CAPTURE(count);
        const Values<float> from(some<float>(count), aligned);
        const Values<Bf16> to(none<Bf16>(count), aligned);
        cuda_ok(cuda::to_bf16(kStream, count, from.data(), to.data()));
        auto expected = none<Bf16>(count);
        for (size_t i = 0; i < expected.size(); ++i) expected[i].bits = f32_to_bf16(from.host()[i]);
        CHECK(same_bits(to.host(), expected));

        const cuda::AdamWConstants constants{0.5f, 0.99f, 0.9f, 0.95f, 2e-3f, 1.7f, 1e-8f};
        auto squares = some<float>(count);
        for (float& s : squares) s *= s;
        const Values<float> gradient(some<float>(count), aligned), avg(some<float>(count), aligned),
            avg_sq(squares, aligned);
        auto param = from.host(), m = avg.host(), v = avg_sq.host();
        for (size_t i = 0; i < param.size(); ++i)
          reference::adamw(constants, gradient.host()[i], param[i], m[i], v[i]);
        cuda_ok(cuda::adamw(kStream, count, constants, gradient.data(), from.data(), avg.data(),
                            avg_sq.data(), from.data(), avg.data(), avg_sq.data(), to.data()));
        for (size_t i = 0; i < expected.size(); ++i) expected[i].bits = f32_to_bf16(from.host()[i]);
        CHECK(same_bits(to.host(), expected));
        CHECK(same_bits(from.host(), param));
        CHECK(same_bits(avg.host(), m));
        CHECK(same_bits(avg_sq.host(), v));

        auto mean = avg.host();
        for (size_t i = 0; i < mean.size(); ++i) {
          volatile float difference = from.host()[i] - mean[i], moved = difference * 0.003f;
          mean[i] += moved;
        }
        cuda_ok(cuda::average(kStream, count, 0.003f, from.data(), avg.data(), avg.data()));
        CHECK(same_bits(avg.host(), mean));
      }
    }
    const Values<float> values(some<float>(5 * 1024));
    const Values<double> sums(none<double>(5));
    cuda_ok(cuda::block_square_sums(kStream, 5, values.data(), sums.data()));
    for (int64_t b = 0; b < 5; ++b)
      CHECK(sums.host()[static_cast<size_t>(b)] ==
            doctest::Approx(reference::square_sum(values.host().data() + b * 1024, 1024))
                .epsilon(1e-13));
  }

  TEST_CASE("kernels: a leaf and the sums left of it are added with the CPU's bits") {
    for_all([]<class T>(T, bool aligned) {
      for (const int64_t count : {4, 37, 1024, 9001})
        for (const int left : {0, 1, 3, cuda::LeftSums::kMost}) {
          INFO("count = ", count, ", left = ", left);
          const auto size = static_cast<size_t>(count);
          const Values<T> leaf(some<T>(count), aligned);
          const Values<float> to(none<float>(count), aligned);
          const Values<float> sums(some<float>(left * count), aligned);
          const auto of_sums = sums.host();
          const auto of_leaf = leaf.host();
          cuda::LeftSums lefts{.count = left};
          std::vector<TreeSource> sources;  // of 2^left leaves
          uint64_t first = 0;
          for (int i = 0; i < left; ++i) {
            const auto level = static_cast<uint32_t>(left - 1 - i);
            lefts.sums[i] = sums.data() + i * count;
            sources.push_back({{level, first >> level}, of_sums.data() + i * count, DType::f32});
            first += uint64_t{1} << level;
          }
          sources.push_back(
              {{0, first}, of_leaf.data(), sizeof(T) == 4 ? DType::f32 : DType::bf16});
          std::vector<float> expected(size);
          tree_total(sources, expected.data(), DType::f32, size);
          cuda_ok(cuda::add_leaf(kStream, count, lefts, leaf.data(), to.data()));
          CHECK(same_bits(to.host(), expected));
        }
    });
  }

  TEST_CASE("kernels: sums of blocks in tree order have the CPU's bits") {
    // More blocks than a thread block has threads, fewer, and one; with gaps between the trees.
    std::vector<BlockTree> trees = {{1, 12}, {4097, 0}, {4100, 5}, {4132, 1}};
    std::vector<double> values(4134);
    for (size_t i = 0; i < values.size(); ++i)
      values[i] = std::exp(std::sin(static_cast<double>(i * i)) * 20);
    const Values<BlockTree> of(trees);
    const Values<double> device(values), sums(none<double>(4));
    cuda_ok(cuda::tree_sums(kStream, 4, of.data(), device.data(), sums.data()));
    const std::vector<double> found = sums.host();
    for (size_t i = 0; i < trees.size(); ++i)
      CHECK(found[i] ==
            sum_in_tree_order(&values[static_cast<size_t>(trees[i].first)], trees[i].blocks()));
  }

  TEST_CASE("kernels: Muon's momentum, update, combinations and norm") {
    for_all([]<class T>(T, bool aligned) {
      for (const int64_t count : {1, 1031, 4096}) {
        CAPTURE(count);
        const Values<float> gradient(some<float>(count), aligned), avg(some<float>(count), aligned),
            params(some<float>(count), aligned);
        const Values<T> x(some<T>(count), aligned), y(some<T>(count), aligned);
        auto g = gradient.host(), m = avg.host(), p = params.host();
        auto z = x.host();
        double squares = 0;
        for (size_t i = 0; i < g.size(); ++i) {
          const double mine = double{g[i]} * 0.5 * (1 - double{0.9f});
          m[i] = static_cast<float>(m[i] * double{0.9f} + mine);
          g[i] = static_cast<float>(m[i] * double{0.9f} + mine);
          p[i] = static_cast<float>(p[i] * double{0.99f} -
                                    reference::value(x.host()[i]) * double{0.02f});
          reference::assign(z[i], 3 * double{reference::value(x.host()[i])} -
                                      2 * double{reference::value(y.host()[i])});
          squares += std::pow(double{reference::value(x.host()[i])}, 2);
        }
        cuda_ok(cuda::muon_momentum(kStream, count, 0.9f, 0.5f, gradient.data(), avg.data(),
                                    avg.data()));
        cuda_ok(cuda::muon_update<T>(kStream, count, 0.99f, 0.02f, x.data(), params.data(),
                                     params.data()));
        const std::vector<T> unscaled = x.host();
        const Values<T> unit(unscaled, aligned);
        const Values<double> scratch(none<double>(cuda::normalize_scratch(count)));
        cuda_ok(cuda::normalize<T>(kStream, count, 0.5, unit.data(), scratch.data()));
        auto expected = unscaled;
        for (size_t i = 0; i < expected.size(); ++i)
          reference::assign(expected[i],
                            double{reference::value(unscaled[i])} / (std::sqrt(squares) + 0.5));
        check_near(unit.host(), expected, 2);
        cuda_ok(cuda::combine<T>(kStream, count, 3, x.data(), -2, y.data(), x.data()));
        check_near(gradient.host(), g, 2);
        check_near(avg.host(), m, 2);
        check_near(params.host(), p, 2);
        check_near(x.host(), z, 4);
      }
    });
  }

  TEST_CASE("kernels: moments in bf16 are those in fp32, rounded by the bits of their element") {
    const cuda::AdamWConstants constants{0.5f, 0.99f, 0.9f, 0.95f, 2e-3f, 1.7f, 1e-8f};
    const cuda::Rounding rounding{rounding_key(3, 7), (uint64_t{5} << 32) - 700};
    const auto rounded = [&](const std::vector<float>& values, int shift) {
      std::vector<Bf16> result(values.size());
      for (size_t i = 0; i < values.size(); ++i)
        result[i].bits =
            stochastic_bf16(std::bit_cast<uint32_t>(values[i]),
                            rounding_bits(rounding.key, rounding.element + i) >> shift & 0xffff);
      return result;
    };
    const auto widened = [](const std::vector<Bf16>& values) {
      std::vector<float> result;
      for (const Bf16 value : values) result.push_back(bf16_to_f32(value.bits));
      return result;
    };
    for (const bool aligned : {true, false}) {
      for (const int64_t count : {1, 1031, 4096}) {
        CAPTURE(count);
        auto squares = some<Bf16>(count);
        for (Bf16& s : squares) s.bits &= 0x7fff;
        const Values<float> gradient(some<float>(count), aligned), p(some<float>(count), aligned),
            same_gradient(gradient.host(), aligned), same_p(p.host(), aligned);
        const Values<Bf16> avg(some<Bf16>(count), aligned), avg_sq(squares, aligned);
        const Values<float> wide_avg(widened(avg.host()), aligned),
            wide_sq(widened(squares), aligned);
        const Values<Bf16> narrow(none<Bf16>(count), aligned);
        cuda_ok(cuda::adamw(kStream, count, constants, rounding, gradient.data(), p.data(),
                            avg.data(), avg_sq.data(), p.data(), avg.data(), avg_sq.data(),
                            narrow.data()));
        cuda_ok(cuda::adamw(kStream, count, constants, gradient.data(), same_p.data(),
                            wide_avg.data(), wide_sq.data(), same_p.data(), wide_avg.data(),
                            wide_sq.data(), nullptr));
        CHECK(same_bits(p.host(), same_p.host()));
        auto expected = none<Bf16>(count);
        for (size_t i = 0; i < expected.size(); ++i) expected[i].bits = f32_to_bf16(p.host()[i]);
        CHECK(same_bits(narrow.host(), expected));
        CHECK(same_bits(avg.host(), rounded(wide_avg.host(), 0)));
        CHECK(same_bits(avg_sq.host(), rounded(wide_sq.host(), 16)));

        const Values<float> wide(widened(avg.host()), aligned);
        cuda_ok(cuda::muon_momentum(kStream, count, 0.9f, 0.5f, rounding, gradient.data(),
                                    avg.data(), avg.data()));
        cuda_ok(cuda::muon_momentum(kStream, count, 0.9f, 0.5f, same_gradient.data(), wide.data(),
                                    wide.data()));
        CHECK(same_bits(gradient.host(), same_gradient.host()));
        CHECK(same_bits(avg.host(), rounded(wide.host(), 0)));
      }
    }
  }

  TEST_CASE("kernels: hashes equal xxHash's for any length of the last block") {
    static_assert(cuda::kHashBlock == kStateHashBlock);
    for (const int64_t count : {1024, 2048, 65536, 65536 + 1024, 3 * 65536 + 5120}) {
      CAPTURE(count);
      const Values<float> values(some<float>(count));
      const auto host = values.host();
      std::vector<Hash128> expected;
      hash_blocks(host, expected);
      const Values<uint64_t> hashes(none<uint64_t>(static_cast<int64_t>(2 * expected.size())));
      cuda_ok(cuda::hash_blocks(kStream, count, values.data(), hashes.data()));
      const auto got = hashes.host();
      for (size_t b = 0; b < expected.size(); ++b)
        CHECK(Hash128{got[2 * b], got[2 * b + 1]} == expected[b]);
    }
  }

  TEST_CASE("kernels: sums in tree order have the same bits as the CPU's") {
    for (const uint64_t first : {0, 3, 5})
      for (const uint64_t leaves : {1, 2, 3, 7, 12})
        for (const int64_t count : {1, 130, 1024})
          for (const bool narrow : {false, true}) {
            INFO("first = ", first, ", leaves = ", leaves);
            std::vector<std::unique_ptr<Values<float>>> wide;
            std::vector<std::unique_ptr<Values<Bf16>>> half;
            std::vector<std::vector<float>> wide_host;
            std::vector<std::vector<Bf16>> half_host;
            std::vector<TreeSource> on_device, on_host;
            for (uint64_t i = 0; i < leaves; ++i) {
              const bool aligned = count != 130;
              if (i % 2 == 1) {
                half_host.push_back(some<Bf16>(count));
                half.push_back(std::make_unique<Values<Bf16>>(half_host.back(), aligned));
                on_device.push_back({{0, first + i}, half.back()->data(), DType::bf16});
                on_host.push_back({{0, first + i}, nullptr, DType::bf16});
              } else {
                wide_host.push_back(some<float>(count));
                wide.push_back(std::make_unique<Values<float>>(wide_host.back(), aligned));
                on_device.push_back({{0, first + i}, wide.back()->data(), DType::f32});
                on_host.push_back({{0, first + i}, nullptr, DType::f32});
              }
            }
            for (uint64_t i = 0; i < leaves; ++i)
              on_host[i].data = i % 2 == 1 ? static_cast<const void*>(half_host[i / 2].data())
                                           : static_cast<const void*>(wide_host[i / 2].data());
            const auto n = static_cast<size_t>(count);
            std::vector<float> expected(n);
            const DType dtype = narrow ? DType::bf16 : DType::f32;
            tree_total(on_host, expected.data(), dtype, n);
            const Values<float> total(none<float>(count));
            const auto program = must(nccl::tree_total_program(on_device, total.data(), dtype));
            cuda_ok(nccl::run_tree_program(kStream, *program, count));
            CHECK(same_bits(total.host(), expected));
            if (narrow) continue;

            const size_t left = nodes_of_run(first, leaves).size();
            std::vector<std::vector<float>> sinks(left, std::vector<float>(n));
            std::vector<float*> to_host, to_device;
            std::vector<std::unique_ptr<Values<float>>> outs;
            for (auto& sink : sinks) {
              to_host.push_back(sink.data());
              outs.push_back(std::make_unique<Values<float>>(none<float>(count)));
              to_device.push_back(outs.back()->data());
            }
            tree_sum(on_host, to_host, n);
            const auto parts = must(nccl::tree_program(on_device, to_device));
            cuda_ok(nccl::run_tree_program(kStream, *parts, count));
            for (size_t i = 0; i < left; ++i) CHECK(same_bits(outs[i]->host(), sinks[i]));
          }
  }
}
