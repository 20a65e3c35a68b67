// An update of a state in host memory, in one pass: the values and the hashes of several passes.
#include "model/cpu/shard.hpp"

#include <doctest/doctest.h>

#include <random>

#include "runtime/training/state_hash.hpp"

using namespace simplescale;

namespace {

/// A state's values, and what they are made of.
struct State {
  State(size_t total, const StateFormat& format) : values(total * format.bytes() / sizeof(float)) {
    side = TrainState::Side::over(values, total, format.moments);
  }
  std::vector<float> values;
  TrainState::Side side;
};

}  // namespace

TEST_SUITE("shard") {
  TEST_CASE("shard: one pass over a state makes the values and the hashes of several passes") {
    constexpr size_t kTotal = 5 * kStateHashBlock + 3 * 1024;
    std::mt19937 random(1);
    std::uniform_real_distribution<float> some(-1, 1);
    std::vector<float> gradient(kTotal);
    for (float& value : gradient) value = some(random);
    const std::vector<ParameterRun> runs = {
        {0, 1000, 1, 0, 0, 77},
        {1000, kStateHashBlock, 0.5f, 0.1f, 0, 5000},
        {1000 + kStateHashBlock, 7, 1, 0, 0, 900000},
        {1007 + kStateHashBlock, kTotal - kStateHashBlock - 1007, 1, 0.1f, 0, 1000000}};
    for (const StateFormat format : {StateFormat{false, DType::f32},
                                     {true, DType::f32},
                                     {false, DType::bf16},
                                     {true, DType::bf16}})
      for (const DType precision : {DType::f32, DType::bf16})
        for (const size_t threads : {1, 3}) {
          CAPTURE(format.ema);
          CAPTURE(to_string(format.moments));
          State from(kTotal, format), one(kTotal, format), several(kTotal, format);
          for (float& value : from.side.params) value = some(random);
          for (float& value : from.side.ema) value = some(random);
          const AdamW options{.learning_rate = 0.01f,
                              .gradient_scale = 0.5f,
                              .step = 3,
                              .moments = {format.moments, rounding_key(5, 3)}};
          std::vector<float> rounded(kTotal), rounded_again(kTotal);
          cpu::HostUpdate update({.options = options,
                                  .runs = runs,
                                  .gradient = gradient.data(),
                                  .from = from.side,
                                  .to = one.side,
                                  .average_weight = 0.25f,
                                  .precision = precision,
                                  .rounded = rounded.data()},
                                 on_threads(threads));
          size_t before = 0;
          for (const size_t end : {size_t{1}, size_t{1}, 2 * kStateHashBlock + 1, kTotal}) {
            const size_t done = update.up_to(end);
            CHECK(done >= end);
            CHECK(done >= before);
            before = done;
            for (const size_t i : {end - 1, done - 1})
              CHECK(one.side.params[i] != from.side.params[i]);
            if (done < kTotal) CHECK(one.side.params[done] == 0);
          }
          CHECK(before == kTotal);

          cpu::adamw(on_threads(2), precision, options, runs, gradient.data(),
                     from.side.params.data(), from.side.exp_avg.data(), from.side.exp_avg_sq.data(),
                     several.side.params.data(), several.side.exp_avg.data(),
                     several.side.exp_avg_sq.data(), rounded_again.data());
          if (format.ema)
            cpu::average(nullptr, 0.25f, kTotal, several.side.params.data(), from.side.ema.data(),
                         several.side.ema.data());
          CHECK(std::ranges::equal(std::as_bytes(std::span(one.values)),
                                   std::as_bytes(std::span(several.values))));
          CHECK(std::ranges::equal(std::as_bytes(std::span(rounded)),
                                   std::as_bytes(std::span(rounded_again))));
          CHECK(update.hash_of_from() == state_hash(from.side));
          CHECK(update.hash_of_to() == state_hash(several.side));

          std::vector<float> cast(kTotal);
          cpu::cast(on_threads(2), precision, several.side.params.data(), cast.data(), kTotal);
          CHECK(std::ranges::equal(std::as_bytes(std::span(cast)),
                                   std::as_bytes(std::span(rounded))));
        }
  }
}
