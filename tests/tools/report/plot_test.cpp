#include "tools/report/plot.hpp"

#include <doctest/doctest.h>
#include <unistd.h>

#include <filesystem>
#include "tests/temp_folder.hpp"

using namespace simplescale;

namespace {

PlotRun run_of(const std::string& name, double first, double last, uint64_t steps) {
  PlotRun run{name, {}};
  for (uint64_t step = 1; step <= steps; ++step) {
    const double part = static_cast<double>(step - 1) / static_cast<double>(steps);
    run.records.rows.push_back({0,
                                {1, step},
                                {{"loss", first + part * (last - first)},
                                 {"grad_norm", 0.5},
                                 {"lr", 1e-3},
                                 {"tokens_per_second", 20'000}}});
  }
  return run;
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

/// The data block of this name.
std::string block(const std::string& script, const std::string& name) {
  const size_t begin = script.find("$" + name + " << END\n");
  REQUIRE(begin != std::string::npos);
  const size_t data = script.find('\n', begin) + 1;
  return script.substr(data, script.find("END\n", data) - data);
}

}  // namespace

TEST_SUITE("plot") {
  TEST_CASE("plot: values so large that doubles are wider apart than an axis's marks") {
    for (const double low : {1e16, -1e16, 1e300, 5e-324})
      CHECK(has(plot_script({run_of("a", low, low + 2, 50)}, "a.svg"), "set yrange"));  // it ends
    CHECK(has(plot_script({run_of("a", 1e16, 1e16 + 2, 50)}, "a.svg"), "[9e+15:1.1e+16]"));
  }

  TEST_CASE("plot: loss, gradient norm, learning rate and rate, validations and incidents") {
    PlotRun run = run_of("it's `mine`", 3, 2, 100);
    run.records.val_losses = {{0, 4}, {50, 2.5}, {100, 2.75}};
    run.records.recoveries = {{0, 400, 30}, {0, 600, 60}};
    const std::string script = plot_script({run}, "/tmp/a.svg");
    for (const char* title : {"loss (nats per token)'", "gradient norm before clipping'",
                              "learning rate'", "tokens per second'"})
      CHECK(has(script, title));
    CHECK(has(script, "'it''s mine'"));
    CHECK(has(script,
              "step 100, loss 2.0100, validation loss 2.7500 (lowest 2.5000 at step 50), "
              "2 incidents (1.0 s in all)"));
    CHECK(block(script, "val0") == "0 4\n50 2.5\n100 2.75\n");
    CHECK(has(script, "set arrow 1 from 30,"));
    CHECK(has(script, "set arrow 2 from 60,"));
    CHECK(has(script, "'20k' 20000"));
    CHECK_FALSE(has(script, "logarithmic"));
    CHECK(has(plot_script({run_of("a", 8, 1, 100)}, "a.svg"), "logarithmic"));
  }

  TEST_CASE("plot: a smooth curve is a mean around each step and does not lag") {
    PlotRun run = run_of("a", 1, 1, 9);
    run.records.rows[4].scalars = {{"loss", 10}};
    const std::string script = plot_script({run}, "a.png", 4);
    CHECK(block(script, "raw0_0") == "1 1\n2 1\n3 1\n4 1\n5 10\n6 1\n7 1\n8 1\n9 1\n");
    CHECK(block(script, "smooth0_0") == "1 1\n2 1\n3 2\n4 3\n5 4\n6 3\n7 2\n8 1\n9 1\n");
    CHECK(has(script, "mean of 4 steps"));
    CHECK_FALSE(has(plot_script({run}, "a.png", 0), "mean of"));
  }

  TEST_CASE("plot: a step without a rate leaves a gap in the rate only") {
    PlotRun run = run_of("a", 3, 2, 3);
    run.records.rows[1].scalars.pop_back();
    const std::string script = plot_script({run}, "a.svg");
    CHECK(block(script, "raw3_0") == "1 20000\n3 20000\n");
    CHECK(block(script, "raw0_0").starts_with("1 3\n2 "));
  }

  TEST_CASE("plot: gnuplot draws runs of one step, without validation, and many of them") {
    const test::TempFolder temporary;
    const std::string& folder = temporary.path;
    PlotRun bare = run_of("bare", 3, 2, 1);
    bare.records.rows[0].scalars = {{"loss", 3}};
    std::vector<PlotRun> many(30, run_of("\"many\"", 9, 1, 40));
    many[3].records.recoveries = {{0, 400, 30}};
    many[4].records.val_losses = {{40, 0.5}};
    many[5].records = {};
    for (const auto& runs : {std::vector{bare}, many})
      for (const char* name : {"/a.svg", "/a.png"}) {
        const Status drawn = draw_plot(runs, folder + name);
        if (drawn.code() == Code::not_found) continue;  // gnuplot is not installed
        CHECK_MESSAGE(drawn.ok(), drawn.message());
        CHECK(std::filesystem::file_size(folder + name) > 1'000);
      }
    CHECK(draw_plot({bare}, folder + "/a.gif").code() == Code::usage);
    CHECK(draw_plot({PlotRun{"empty", {}}}, folder + "/a.svg").code() == Code::not_found);
  }

  TEST_CASE("plot: a program's tasks are boxes in the lanes of what executes them") {
    ProgramPlot plot{.title = "it's a step", .facts = "estimated", .units = {{"embed"}, {"block"}}};
    plot.program = {{.op = Op::gather, .unit = 1},
                    {.op = Op::forward, .unit = 1},
                    {.op = Op::forward, .unit = 1},
                    {.op = Op::reduced, .unit = 1}};
    plot.times = {{Lane::gather, 0, 2},
                  {Lane::compute, 2, 3},
                  {Lane::compute, 3, 3.5},
                  {Lane::compute, 3.5, 4}};
    const std::string script = program_script(plot, "/tmp/a.svg");
    CHECK(block(script, "lane0_forward") == "2 0 2 3 -0.4 0.4\n3 0 3 3.5 -0.4 0.4\n");
    CHECK(block(script, "lane0_waits") == "3.5 0 3.5 4 -0.4 0.4\n");
    CHECK(block(script, "lane1_gather") == "0 -1 0 2 -1.4 -0.6\n");
    CHECK(has(script, "set ytics scale 0 ('computes' 0,'gathers' -1)"));
    CHECK(has(script, "'it''s a step'"));
    CHECK(has(script, "set xlabel 's'"));
    CHECK(has(script, "set label 'block' at 2.5,0"));
    CHECK(has(script, "set yrange [-3.6:0.6]"));
    // With a state in host memory there are more lanes.
    ProgramPlot offloads = plot;
    offloads.program.insert(offloads.program.end(),
                            {{.op = Op::download, .unit = 1}, {.op = Op::hash}});
    offloads.times.insert(offloads.times.end(), {{Lane::download, 1, 2}, {Lane::hash, 2, 4}});
    const std::string more = program_script(offloads, "a.svg");
    CHECK(block(more, "lane4_download") == "1 -4 1 2 -4.4 -3.6\n");
    CHECK(block(more, "lane5_state") == "2 -5 2 4 -5.4 -4.6\n");
    CHECK(has(more, "'downloads' -4,'hashes' -5)"));
    CHECK(has(more, "set yrange [-5.6:0.6]"));
    // Boxes that are narrower than a pixel are drawn together.
    plot.times[2] = {Lane::compute, 3, 3.0005};
    plot.times[3] = {Lane::compute, 3.0005, 9e3};
    CHECK(block(program_script(plot, "a.svg"), "lane0_forward") == "2 0 2 3.0005 -0.4 0.4\n");

    const test::TempFolder temporary;
    const std::string& folder = temporary.path;
    for (const char* name : {"/a.svg", "/a.png"}) {
      const Status drawn = draw_program(plot, folder + name);
      if (drawn.code() == Code::not_found) return;  // no gnuplot
      REQUIRE(drawn.ok());
      CHECK(std::filesystem::file_size(folder + name) > 1000);
    }
    CHECK(draw_program(plot, folder + "/a.gif").code() == Code::usage);
  }
}
