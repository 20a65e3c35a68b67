#include "tools/report/summary.hpp"

#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/must.hpp"
#include "tests/temp_folder.hpp"

using namespace simplescale;
namespace fs = std::filesystem;

namespace {

SweepResult result(const char* name, const char* state, std::optional<double> loss,
                   std::optional<double> val_loss, const char* rate) {
  RunSummary run;
  run.folder = std::string("/s/") + name;
  run.name = name;
  run.state = state;
  run.step = 5;
  run.max_steps = 9;
  run.loss = loss;
  run.val_loss = val_loss;
  return {run, {{"train.learning_rate", rate}, {"run.seed", "1"}}};
}

/// The first words of the table's lines.
std::string order_of(const std::string& table) {
  std::string order;
  for (size_t at = 0; at < table.size(); at = table.find('\n', at) + 1)
    order += table.substr(at, 3) + "|";
  return order;
}

}  // namespace

TEST_SUITE("summary") {
  TEST_CASE("sweep table: a column for each varied key, the best run first and marked") {
    std::vector<SweepResult> results = {
        result("a", "finished", 2.0, 2.5, "1e-3"), result("b", "new", {}, {}, "3e-3"),
        result("c", "finished", 2.2, 2.4, "1e-2"), result("d", "stopped", 1.0, 1.0, "3e-2")};
    mark_best(results);
    const std::string table = sweep_table(results, "/s");
    CAPTURE(table);
    CHECK(table.starts_with("  run  learning_rate  seed  state     step    loss  val loss"));
    CHECK(has(table, "\n* c             1e-2     1  finished   5/9  2.2000    2.4000"));
    // By validation loss; only finished runs can be the best; those without a loss are last.
    CHECK(order_of(table) == "  r|* c|  d|  a|  b|");
    const auto list = nlohmann::json::parse(sweep_json(results));
    CHECK(list[2]["best"] == true);
    CHECK(list[0]["choices"]["train.learning_rate"] == "1e-3");
    CHECK(table.find("accuracy") == std::string::npos);
    // A run without a validation loss is not the best, unless no run has one.
    results[2].run.val_loss.reset();
    results[2].run.loss = 0.5;
    mark_best(results);
    CHECK(order_of(sweep_table(results, "/s")) == "  r|* a|  d|  b|  c|");
    for (SweepResult& each : results) each.run.val_loss.reset();
    mark_best(results);
    CHECK(order_of(sweep_table(results, "/s")) == "  r|* c|  d|  a|  b|");
  }

  TEST_CASE("runs table: from names a run as the table does, and a checkpoint by its run") {
    test::TempFolder folder;
    fs::create_directories(folder.path + "/a/checkpoints");
    std::ofstream(folder.path + "/a/config.toml") << "";
    const auto from = [&](const std::string& path) {
      RunSummary run;
      run.folder = folder.path + "/b";
      run.from = path;
      std::string table = summary_table({run}, folder.path);
      table.pop_back();
      return table.substr(table.rfind("-  ") + 3);  // behind "when", which is unknown
    };
    CHECK(from(folder.path + "/a") == "a");
    CHECK(from(folder.path + "/a/checkpoints/step-00000004/") == "a step-00000004");
    CHECK(from("/models/llama") == "/models/llama");
    CHECK(from("s3://bucket/run/step-00000004") == "s3://bucket/run/step-00000004");
  }

  TEST_CASE("runs table: the mean accuracy of the tasks, if a run has one") {
    RunSummary plain, scored;
    plain.folder = "/s/a", scored.folder = "/s/b";
    plain.state = scored.state = "finished";
    scored.tasks = {{"x", {{"acc", 0.5}}}, {"y", {{"acc", 0.25}}}, {"z", {{"words", 3}}}};
    const std::string table = summary_table({plain, scored}, "/s");
    CAPTURE(table);
    CHECK(table.find("val loss  accuracy  tokens/s") != std::string::npos);
    CHECK(table.find("0.3750") != std::string::npos);
    const auto list = nlohmann::json::parse(summary_json({plain, scored}));
    CHECK(list[0]["tasks"].is_null());
    CHECK(list[1]["tasks"]["y"]["acc"] == 0.25);
  }
}
