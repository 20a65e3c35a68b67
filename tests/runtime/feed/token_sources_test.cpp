// The samples of several sources: which, in which order, and how often.
#include "runtime/feed/token_sources.hpp"

#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <set>

#include "runtime/feed/mixture_report.hpp"
#include "tests/must.hpp"
#include "tests/temp_folder.hpp"

using namespace simplescale;

namespace {

Mixture two(uint64_t a, uint64_t b) {
  return {{"a", "b"}, {{0, {a, b}}}};
}

/// nanoGPT tokens 0, 1, 2, ... from `first`.
std::string token_file(const std::string& path, uint16_t first, size_t count) {
  std::vector<uint16_t> tokens(count);
  for (size_t i = 0; i < count; ++i) tokens[i] = static_cast<uint16_t>(first + i);
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(tokens.data()), static_cast<long>(2 * count));
  return path;
}

Config config_of(const std::string& folder) {
  Config config;
  config.run.name = "r";
  config.model.preset = "micro";
  config.model.vocab = 32'000;
  config.train.max_steps = 10;
  config.data.folder = folder + "/prepared";
  config.data.validation_fraction = 0;
  config.data.blend = {{"a", token_file(folder + "/a.bin", 0, 10'000), 3, ""},
                       {"b", token_file(folder + "/b.bin", 20'000, 1'300), 1, ""}};
  return config;
}

}  // namespace

TEST_SUITE("token sources") {
  TEST_CASE("token sources: one source is drawn in its own order, bit for bit") {
    const SampleOrder order(1000, 7, true, *SkippedSamples::parse("3-5,90"));
    const MixedOrder mixed = order;
    for (uint64_t i = 0; i < 3000; ++i) {
      CHECK(mixed.sample(i) == DrawnSample{0, order.position(i)});
      CHECK(mixed.at_place(i) == DrawnSample{0, order.position_at(i)});
    }
  }

  TEST_CASE("token sources: each source is drawn in its own permutation, every epoch whole") {
    const SampleOrder a(13, 1, true), b(5, 2, true);
    const MixedOrder mixed(two(2, 1), {a, b}, {});
    const MixtureSchedule schedule(two(2, 1));
    std::map<size_t, std::vector<uint64_t>> drawn;
    for (uint64_t i = 0; i < 300; ++i) {
      const auto [source, position] = mixed.sample(i);
      CHECK(source == schedule.at(i).source);
      drawn[source].push_back(position);
    }
    for (const auto& [source, positions] : drawn) {
      const SampleOrder& order = source == 0 ? a : b;
      for (size_t k = 0; k < positions.size(); ++k) CHECK(positions[k] == order.position(k));
      const std::set<uint64_t> epoch(positions.begin(),
                                     positions.begin() + static_cast<long>(order.samples()));
      CHECK(epoch.size() == order.samples());  // MIX-2: none is seen twice before all were seen
    }
  }

  TEST_CASE("token sources: skipped samples are left out of the mixture, all others stay") {
    const auto skipped = *SkippedSamples::parse("3-5,20");
    const MixedOrder mixed(two(2, 1), {SampleOrder(13, 1, true), SampleOrder(5, 2, true)}, skipped);
    for (uint64_t place = 0; place < 100; ++place)
      CHECK(mixed.at_place(place) == mixed.sample(skipped.sample_at(place)));
  }

  TEST_CASE("token sources: a blend's files are read where the order says") {
    const test::TempFolder folder;
    const Config config = config_of(folder.path);
    const Plan plan = make_plan(config).take();
    auto data = open_tokens(config, plan.shape);
    REQUIRE_MESSAGE(data.status().code() == Code::ok, data.status().message());
    const TokenSources tokens = data->train();
    const MixedOrder order = sample_order(config, plan, *data);
    const int64_t block = plan.shape.block_size;
    std::vector<int32_t> row(static_cast<size_t>(block + 1));
    uint64_t of_b = 0;
    for (uint64_t i = 0; i < 40; ++i) {
      const DrawnSample sample = order.sample(i);
      REQUIRE(tokens.read_sample(sample, block, row.data()).ok());
      const int32_t first = sample.source == 0 ? 0 : 20'000;
      CHECK(row[0] == first + static_cast<int32_t>(sample.position) * block);
      CHECK(row.back() == row[0] + block);
      of_b += sample.source;
      CHECK(has(tokens.place_of(sample, block), sample.source ? "b.bin" : "a.bin"));
    }
    CHECK(of_b == 10);
    // The seed of a source depends on its name only: another blend draws its samples alike.
    Config other = config;
    std::swap(other.data.blend[0], other.data.blend[1]);
    const Plan turned = make_plan(other).take();
    const auto again = open_tokens(other, turned.shape);
    CHECK(sample_order(other, turned, *again).orders()[1].position(3) ==
          order.orders()[0].position(3));
  }

  TEST_CASE("token sources: epochs are told beforehand, and many epochs are warned of") {
    const test::TempFolder folder;
    Config config = config_of(folder.path);
    config.train.global_batch_size = 80;
    const Plan plan = make_plan(config).take();
    const auto data = must(open_tokens(config, plan.shape));
    const auto uses = source_uses(plan, *data);
    REQUIRE(uses.size() == 2);
    CHECK(uses[0].samples == 600);
    CHECK(uses[1].samples == 200);
    CHECK(uses[1].epoch == 1299 / static_cast<uint64_t>(plan.shape.block_size));
    const auto warnings = mixture_warnings(uses);
    REQUIRE_FALSE(warnings.empty());
    CHECK(warnings.back().starts_with("data.blend: the run reads \"b\" "));
    CHECK(mixture_table(uses).find("epochs") != std::string::npos);
    config.data.blend[1].weight.reset();
    const Plan without = make_plan(config).take();
    CHECK(mixture_warnings(source_uses(without, *data)).back() ==
          "data.blend: the run never reads \"b\"");
  }

  TEST_CASE("token sources: texts of a blend share the tokenizer of the first one") {
    const test::TempFolder folder;
    Config config = config_of(folder.path);
    for (const char* name : {"t", "u"}) {
      const std::string path = folder.path + "/" + name + ".txt";
      std::ofstream(path) << "text\n";
      config.data.blend.push_back({name, path, 1, ""});
    }
    const auto sources = sources_of(config);
    CHECK(sources[0].config.tokenizer.path.empty());
    CHECK(sources[2].config.tokenizer.path.empty());
    CHECK(data_folder(sources[2].config) == folder.path + "/prepared/t");
    CHECK(sources[3].config.tokenizer.path == folder.path + "/prepared/t/tokenizer.json");
    CHECK(data_folder(sources[3].config) == folder.path + "/prepared/u");
    CHECK(needs_preparation(config));
    config.data.folder.clear();
    CHECK(data_folder(sources_of(config)[3].config) == "data/r/u");
    config.data.blend[3].folder = "/mine";
    CHECK(data_folder(sources_of(config)[3].config) == "/mine");
    config.data.blend.resize(2);
    CHECK_FALSE(needs_preparation(config));
  }
}
