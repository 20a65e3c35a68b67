#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>

#include "runtime/base/files.hpp"
#include "runtime/tokenizer/protobuf_reader.hpp"
#include "tests/temp_folder.hpp"
#include "tools/exports/exporter.hpp"
#include "tools/exports/sinks.hpp"

using namespace simplescale;
namespace fs = std::filesystem;
using test::TempFolder;

namespace {

MetricsRow row(uint64_t generation, uint64_t step, double loss = 2.5) {
  return {10.0 + static_cast<double>(step),
          {generation, step},
          {{"loss", loss}, {"generation", static_cast<double>(generation)}}};
}

std::string line(const MetricsRow& row) {
  return "{\"time\":" + std::to_string(row.time_s) + ",\"step\":" + std::to_string(row.at.step) +
         ",\"generation\":" + std::to_string(row.at.generation) +
         ",\"loss\":" + std::to_string(*row.find("loss")) + "}\n";
}

/// The steps in the folder's newest file; steps with a SessionLog START in brackets.
std::string tensorboard_steps(const std::string& folder) {
  std::string newest, steps;
  for (const auto& entry : fs::directory_iterator(folder))
    if (entry.is_regular_file()) newest = std::max(newest, entry.path().string());
  std::string text = *read_text(newest);
  for (size_t at = 0; at < text.size();) {
    uint64_t length = 0;
    std::memcpy(&length, text.data() + at, sizeof length);
    ProtobufReader::Field field;
    uint64_t step = 0;
    bool starts = false, version = false;
    for (ProtobufReader fields(std::string_view(text).substr(at + 12, length));
         fields.next(field);) {
      if (field.number == 2) step = field.value;
      starts |= field.number == 7;
      version |= field.number == 3;
    }
    if (!version) steps += (starts ? "[" : "") + std::to_string(step) + (starts ? "] " : " ");
    at += 16 + length;
  }
  return steps;
}

/// The records in the contents of a .wandb file.
std::vector<std::string> records_in(const std::string& file) {
  std::vector<std::string> records;
  REQUIRE(file.starts_with(":W&B"));
  for (size_t at = 7; at < file.size();) {
    if (const size_t left = 32'768 - at % 32'768; left < 7) at += left;
    uint16_t size = 0;
    std::memcpy(&size, file.data() + at + 4, sizeof size);
    if (const char type = file[at + 6]; type == 1 || type == 2) records.emplace_back();
    records.back() += file.substr(at + 7, size);
    at += 7 + size;
  }
  return records;
}

/// The records in the folder's only run: their kinds, or the step of a history record.
std::string wandb_records(const std::string& folder) {
  std::string text, out;
  for (const auto& entry : fs::recursive_directory_iterator(folder))
    if (entry.path().extension() == ".wandb") text += *read_text(entry.path());
  for (const std::string& record : records_in(text)) {
    ProtobufReader::Field field, part, inner;
    for (ProtobufReader fields(record); fields.next(field);) {
      if (field.number == 17) out += "run ";
      if (field.number == 3) out += "summary ";
      if (field.number == 18) out += "exit ";
      if (field.number != 2) continue;
      for (ProtobufReader parts(field.data); parts.next(part);)
        for (ProtobufReader step(part.data); part.number == 2 && step.next(inner);)
          out += std::to_string(inner.value) + " ";
    }
  }
  return out;
}

}  // namespace

TEST_SUITE("exports") {
  TEST_CASE("tensorboard: a new file replaces the older ones and begins with a START") {
    TempFolder folder;
    for (const uint64_t steps : {3, 4}) {
      auto sink = open_tensorboard(folder.path);
      REQUIRE(sink.ok());
      std::string want = "[1] ";
      for (uint64_t step = 1; step <= steps; ++step) {
        const MetricsRow rows[] = {row(1, step)};
        REQUIRE((*sink)->write(rows).ok());
        want += std::to_string(step) + " ";
      }
      CHECK(tensorboard_steps(folder.path) == want);
      REQUIRE((*sink)->replace_older().ok());
      size_t files = 0;
      for (const auto& entry : fs::directory_iterator(folder.path))
        files += entry.is_regular_file();
      CHECK(files == 1);
      CHECK(tensorboard_steps(folder.path) == want);
    }
  }

  TEST_CASE("tensorboard: a second folder has the values over the tokens trained so far") {
    TempFolder folder;
    auto sink = open_tensorboard(folder.path);
    REQUIRE(sink.ok());
    std::string want;
    for (const uint64_t step : {1, 2}) {
      MetricsRow r = row(1, step);
      r.scalars.emplace_back("tokens", static_cast<double>(step << 40));
      REQUIRE((*sink)->write({&r, 1}).ok());
      const std::string tokens = std::to_string(step << 40) + " ";
      want += (want.empty() ? "[" + std::to_string(step << 40) + "] " : "") + tokens;
    }
    CHECK(tensorboard_steps(folder.path + "/by_tokens") == want);
  }

  TEST_CASE("wandb: records of every length are cut into blocks") {
    TempFolder folder;
    std::string want = "run ";
    auto sink = open_wandb(folder.path, Config(), 10);
    REQUIRE(sink.ok());
    for (uint64_t step = 1; step <= 60; ++step) {
      MetricsRow r = row(1, step);
      r.scalars.emplace_back(std::string(step * step * 31, 'a'), 1);
      REQUIRE((*sink)->write({&r, 1}).ok());
      want += std::to_string(step) + " ";
    }
    REQUIRE((*sink)->replace_older().ok());
    CHECK(wandb_records(folder.path) == want);
  }

  TEST_CASE("wandb: a new supervisor continues the same run; until then the old file stays") {
    TempFolder folder;
    const Config config;
    const MetricsRow rows[] = {row(1, 1), row(1, 2), row(1, 3)};
    auto sink = open_wandb(folder.path, config, 10);
    REQUIRE(sink.ok());
    REQUIRE((*sink)->write(rows).ok());
    REQUIRE((*sink)->replace_older().ok());
    REQUIRE((*sink)->finish(0).ok());
    CHECK(wandb_records(folder.path) == "run 1 2 3 summary exit ");
    auto successor = open_wandb(folder.path, config, 10);
    REQUIRE(successor.ok());
    REQUIRE((*successor)->write(std::span(rows).first(2)).ok());
    CHECK(wandb_records(folder.path) == "run 1 2 3 summary exit ");
    REQUIRE((*successor)->replace_older().ok());
    CHECK(wandb_records(folder.path) == "run 1 2 ");
    // LEAD-1: a deposed supervisor writes to an unlinked file.
    const MetricsRow late[] = {row(1, 4)};
    REQUIRE((*sink)->write(late).ok());
    CHECK(wandb_records(folder.path) == "run 1 2 ");
  }

  TEST_CASE(
      "wandb: the run has project, entity and tags, and the configuration of the newest start") {
    TempFolder folder;
    Config config;
    config.metrics.wandb_project = "p\u00e9";
    config.metrics.wandb_entity = "team";
    config.metrics.wandb_tags = " a,, b c ,";
    config.train.max_steps = 10;
    const auto run_record = [&] {
      std::string text;
      for (const auto& entry : fs::recursive_directory_iterator(folder.path))
        if (entry.path().extension() == ".wandb") text += *read_text(entry.path());
      std::string shown;
      for (const std::string& record : records_in(text)) {
        ProtobufReader::Field field, part;
        for (ProtobufReader fields(record); fields.next(field);)
          for (ProtobufReader parts(field.data); field.number == 17 && parts.next(part);) {
            if (part.number == 2 || part.number == 3 || part.number == 10)
              shown += std::to_string(part.number) + "=" + std::string(part.data) + ";";
            if (part.number != 4) continue;
            const std::string key = "\x12\x09max_steps\x82\x01";  // then the length of its value
            const size_t at = part.data.find(key);
            REQUIRE(at != std::string_view::npos);
            shown += std::string(part.data.substr(at + key.size() + 1, 2)) + ";";
          }
      }
      return shown;
    };
    const auto open = [&] {
      auto sink = open_wandb(folder.path, config, 10);
      REQUIRE(sink.ok());
      REQUIRE((*sink)->replace_older().ok());
    };
    open();
    CHECK(run_record() == "2=team;3=p\u00e9;10;10=a;10=b c;");
    config.train.max_steps = 20;
    config.metrics.wandb_tags = config.metrics.wandb_entity = "";
    open();
    CHECK(run_record() == "3=p\u00e9;20;");
  }

  TEST_CASE(
      "exporter: exports every line once across supervisors; LEAD-1, a deposed one writes "
      "nothing") {
    TempFolder folder;
    const RunFolder run{folder.path};
    Config config;
    config.metrics.tensorboard = config.metrics.wandb = true;
    std::ofstream metrics(run.metrics()), events(run.events());
    metrics << line(row(1, 1)) << line(row(1, 2)) << "{\"half\":" << std::flush;
    events << R"({"kind":"recovered","time":11.5,"step":1,"ms":5})" << std::endl;
    auto first = Exporter::make(run, config, [] { return true; });
    first->finish(3);
    CHECK(wandb_records(run.path + "/wandb") == "run 1 2 summary exit ");
    metrics.close();
    std::ofstream(run.metrics()) << line(row(1, 1)) << line(row(1, 2)) << line(row(1, 3))
                                 << line(row(2, 3)) << "no line\n"
                                 << line(row(2, 4));
    auto second = Exporter::make(run, config, [] { return true; });
    second->wake();
    second->finish(0);
    CHECK(wandb_records(run.path + "/wandb") == "run 1 2 3 4 summary exit ");
    CHECK(tensorboard_steps(run.path + "/tb") == "[1] 1 2 3 4 ");
    auto deposed = Exporter::make(run, config, [] { return false; });
    deposed->finish(1);
    CHECK(wandb_records(run.path + "/wandb") == "run 1 2 3 4 summary exit ");
    CHECK(Exporter::make(run, Config(), [] { return true; }) == nullptr);
  }

  TEST_CASE("records: the last line of a repeated step counts") {
    TempFolder folder;
    const RunFolder run{folder.path};
    std::ofstream(run.metrics()) << line(row(1, 1)) << line(row(1, 2)) << line(row(1, 3))
                                 << line(row(2, 2, 7)) << "{\"step\":3";
    std::ofstream(run.events()) << "{\"kind\":\"started\",\"time\":5}\n"
                                << R"({"kind":"validated","time":11,"step":2,"val_loss":1.5})"
                                << "\n"
                                << R"({"kind":"recovered","time":12,"step":1,"ms":40})"
                                << "\n"
                                << R"({"kind":"validated","time":13,"step":2,"val_loss":1.25})"
                                << "\n";
    const RunRecords records = read_records(run);
    REQUIRE(records.rows.size() == 2);
    CHECK(records.rows[1].find("loss") == 7.0);
    CHECK(!records.rows[1].find("mfu"));
    REQUIRE(records.recoveries.size() == 1);
    CHECK(records.recoveries[0].ms == 40);
    CHECK(records.val_loss == 1.25);
    CHECK(records.val_losses == std::vector<std::pair<uint64_t, double>>{{2, 1.25}});
    CHECK(parse_metrics(R"({"step":2,"generation":1,"val_loss":1.25})")->find("val_loss") == 1.25);
    const auto sources =
        parse_metrics(R"({"step":2,"generation":1,"val_losses":{"web":1.5,"code":null}})");
    CHECK(sources->find("val_loss/web") == 1.5);
    CHECK_FALSE(sources->find("val_loss/code"));
    const auto lengths =
        parse_metrics(R"({"step":2,"generation":1,"padding":0.25,"val_loss_at":{"512":2.5},)"
                      R"("val_loss_by_position":{"0":5.5,"1":null}})");
    CHECK(lengths->find("padding") == 0.25);
    CHECK(lengths->find("val_loss_at/512") == 2.5);
    CHECK(lengths->find("val_loss_by_position/0") == 5.5);
    CHECK_FALSE(lengths->find("val_loss_by_position/1"));
    CHECK(records.begin_s == 5);
    const auto none = parse_metrics(
        R"({"step":2,"generation":1,"loss":null,"val_loss":null,"grad_norm":0,"tokens":96})");
    CHECK_FALSE(none->find("loss"));
    CHECK_FALSE(none->find("val_loss"));
    CHECK(none->find("tokens") == 96);
  }

  TEST_CASE("records: scores of tasks, in a line and of the run") {
    const auto row = parse_metrics(
        R"({"step":2,"generation":1,"tasks":{"a":{"questions":4,"acc":0.5,"acc_norm":0.75},)"
        R"("b":{"words":3,"word_perplexity":7.5,"byte_perplexity":null},"c":3}})");
    CHECK(row->find("tasks/a/acc") == 0.5);
    CHECK(row->find("tasks/a/acc_norm") == 0.75);
    CHECK(row->find("tasks/b/word_perplexity") == 7.5);
    CHECK(row->scalars.size() == 4);  // with generation
    TempFolder folder;
    const RunFolder run{folder.path};
    std::ofstream(run.events())
        << R"({"kind":"validated","time":1,"step":0,"tasks":{"a":{"acc":0.25}}})"
        << "\n"
        << R"({"kind":"validated","time":2,"step":4,"val_loss":1.5})"
        << "\n"
        << R"({"kind":"validated","time":3,"step":8,"tasks":{"a":{"acc":0.5}}})"
        << "\n";
    const RunRecords records = read_records(run);
    CHECK(records.first_tasks["a"]["acc"] == 0.25);
    CHECK(records.tasks["a"]["acc"] == 0.5);
    CHECK(records.val_loss == 1.5);
  }
}
