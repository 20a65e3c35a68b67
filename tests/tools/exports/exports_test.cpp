#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>

#include "runtime/base/files.hpp"
#include "tests/temp_folder.hpp"
#include "tools/exports/checksum.hpp"
#include "tools/exports/exporter.hpp"
#include "tools/exports/protobuf.hpp"
#include "tools/exports/tensorboard.hpp"
#include "tools/exports/wandb.hpp"

using namespace simplescale;
namespace fs = std::filesystem;
using test::TempFolder;

namespace {

std::string hex(const std::string& bytes) {
  std::string text;
  for (const char c : bytes) {
    constexpr const char* digits = "0123456789abcdef";
    text += digits[static_cast<unsigned char>(c) >> 4];
    text += digits[c & 15];
  }
  return text;
}

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
    newest = std::max(newest, entry.path().string());
  std::string text = *read_text(newest);
  for (size_t at = 0; at < text.size();) {
    uint64_t length = 0;
    std::memcpy(&length, text.data() + at, sizeof length);
    ProtobufField field;
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

/// The records in the folder's only run: their kinds, or the step of a history record.
std::string wandb_records(const std::string& folder) {
  std::string text, out;
  for (const auto& entry : fs::recursive_directory_iterator(folder))
    if (entry.path().extension() == ".wandb") text += *read_text(entry.path());
  for (const std::string& record : wandb::records(text)) {
    ProtobufField field, part, inner;
    for (ProtobufReader fields(record); fields.next(field);) {
      if (field.number == 17) out += "run ";
      if (field.number == 3) out += "summary ";
      if (field.number == 18) out += "exit ";
      if (field.number != 2) continue;
      for (ProtobufReader parts(field.bytes); parts.next(part);)
        for (ProtobufReader step(part.bytes); part.number == 2 && step.next(inner);)
          out += std::to_string(inner.value) + " ";
    }
  }
  return out;
}

}  // namespace

TEST_SUITE("exports") {
  TEST_CASE("checksum: the known values of 123456789") {
    CHECK(crc32("123456789") == 0xCBF43926);
    CHECK(crc32("6789", crc32("12345")) == 0xCBF43926);
    CHECK(crc32c("123456789") == 0xE3069283);
  }

  TEST_CASE("tensorboard: the bytes that TensorBoard's own classes write") {
    const MetricsRow r{1.5, {3, 300}, {{"loss", 2.5}, {"generation", 3}}};
    const std::string event = tensorboard::scalars_event(r);
    CHECK(hex(event) ==
          "09000000000000f83f10ac022a200a0b0a046c6f737315000020400a110a0a67656e65726174696f6e1500"
          "004040");
    CHECK(hex(tensorboard::record(event)) ==
          "2e00000000000000c5cb57fa09000000000000f83f10ac022a200a0b0a046c6f737315000020400a110a0a"
          "67656e65726174696f6e15000040403e3e1eb2");
    CHECK(hex(tensorboard::version_event(1.5)) ==
          "09000000000000f83f1a0d627261696e2e4576656e743a32");
    CHECK(hex(tensorboard::start_event(1.5, 9)) == "09000000000000f83f10093a020801");
  }

  TEST_CASE("tensorboard: reading stops at the first damaged record") {
    const std::string one = tensorboard::record(tensorboard::version_event(1)) +
                            tensorboard::record(tensorboard::scalars_event(row(1, 4)));
    const std::string two = one + tensorboard::record(tensorboard::scalars_event(row(2, 5)));
    CHECK(tensorboard::last_position(two) == Position{2, 5});
    CHECK(!tensorboard::last_position(""));
    for (size_t size = one.size(); size < two.size(); ++size)
      CHECK(tensorboard::last_position(two.substr(0, size)) == Position{1, 4});
    for (size_t i = one.size(); i < two.size(); ++i) {
      std::string damaged = two;
      damaged[i] = static_cast<char>(damaged[i] ^ 0x40);
      CHECK(tensorboard::last_position(damaged) == Position{1, 4});
    }
  }

  TEST_CASE("tensorboard: a new supervisor starts a new file; a START precedes a repeated step") {
    TempFolder folder;
    {
      auto sink = open_tensorboard(folder.path);
      REQUIRE(sink.ok());
      CHECK(!(*sink)->position());
      const MetricsRow rows[] = {row(1, 1), row(1, 2), row(1, 3), row(2, 2), row(2, 3)};
      REQUIRE((*sink)->write(rows).ok());
      CHECK(tensorboard_steps(folder.path) == "[1] 1 2 3 [2] 2 3 ");
    }
    auto sink = open_tensorboard(folder.path);
    REQUIRE(sink.ok());
    CHECK((*sink)->position() == Position{2, 3});
    const MetricsRow rows[] = {row(2, 4)};
    REQUIRE((*sink)->write(rows).ok());
    CHECK(tensorboard_steps(folder.path) == "[4] 4 ");
  }

  TEST_CASE("tensorboard: a second folder has the values over the tokens trained so far") {
    TempFolder folder;
    const auto with_tokens = [](uint64_t generation, uint64_t step) {
      MetricsRow r = row(generation, step);
      r.scalars.emplace_back("tokens", static_cast<double>(step << 40));
      return r;
    };
    {
      auto sink = open_tensorboard(folder.path);
      REQUIRE(sink.ok());
      const MetricsRow rows[] = {with_tokens(1, 1), with_tokens(1, 2), with_tokens(2, 2)};
      REQUIRE((*sink)->write(rows).ok());
      const std::string one = std::to_string(uint64_t{1} << 40),
                        two = std::to_string(uint64_t{2} << 40);
      CHECK(tensorboard_steps(folder.path + "/by_tokens") ==
            "[" + one + "] " + one + " " + two + " [" + two + "] " + two + " ");
    }
    auto sink = open_tensorboard(folder.path);
    REQUIRE(sink.ok());
    CHECK((*sink)->position() == Position{2, 2});
    const MetricsRow rows[] = {with_tokens(2, 3)};
    REQUIRE((*sink)->write(rows).ok());
    const std::string three = std::to_string(uint64_t{3} << 40);
    CHECK(tensorboard_steps(folder.path + "/by_tokens") == "[" + three + "] " + three + " ");
  }

  TEST_CASE("wandb: the bytes that the wandb package writes") {
    CHECK(hex(wandb::header() + wandb::fragments("abc", 7)) ==
          "3a572642e1be00a9209d53030001616263");
    const MetricsRow r{11.5, {3, 300}, {{"loss", 2.5}, {"generation", 3}}};
    CHECK(hex(wandb::history_record(r, 10, 2)) ==
          "0802125d0a0c0a046c6f7373820103322e350a120a0a67656e65726174696f6e820103332e300a0d0a055f73"
          "7465708201033330300a130a0a5f74696d657374616d7082010431312e350a100a085f72756e74696d658201"
          "03312e35120308ac02");
    CHECK(hex(wandb::exit_record(3, 7.9, 4)) == "080492010408031007");
  }

  TEST_CASE("wandb: records of every length are read back across blocks, up to the first damage") {
    std::string file = wandb::header();
    std::vector<std::string> put;
    for (size_t size = 0; file.size() < 300'000; size = size * 3 / 2 + 7) {
      for (const size_t n : {size % 70'000, size_t{32'754} - file.size() % 32'768}) {
        if (n > 70'000) continue;
        put.push_back(std::string(n, static_cast<char>('a' + put.size() % 26)));
        file += wandb::fragments(put.back(), file.size());
      }
    }
    CHECK(wandb::records(file) == put);
    for (size_t size = 0; size < file.size(); size += 997) {
      const auto found = wandb::records(std::string_view(file).substr(0, size));
      CHECK(found.size() < put.size());
      CHECK(std::equal(found.begin(), found.end(), put.begin()));
    }
    file[150'000] = static_cast<char>(file[150'000] ^ 1);
    CHECK(wandb::records(file).size() < put.size());
  }

  TEST_CASE(
      "wandb: a new supervisor continues the same run; a repeated step replaces the old one") {
    TempFolder folder;
    const Config config;
    {
      auto sink = open_wandb(folder.path, config);
      REQUIRE(sink.ok());
      const MetricsRow rows[] = {row(1, 1), row(1, 2), row(1, 3)};
      REQUIRE((*sink)->write(rows).ok());
      REQUIRE((*sink)->finish(0).ok());
      CHECK(wandb_records(folder.path) == "run 1 2 3 summary exit ");
    }
    auto sink = open_wandb(folder.path, config);
    REQUIRE(sink.ok());
    CHECK((*sink)->position() == Position{1, 3});
    CHECK(wandb_records(folder.path) == "run 1 2 3 ");
    const MetricsRow rows[] = {row(1, 4), row(2, 3), row(2, 4), row(3, 4)};
    REQUIRE((*sink)->write(rows).ok());
    CHECK(wandb_records(folder.path) == "run 1 2 3 4 ");
    CHECK((*sink)->position() == Position{3, 4});
    // LEAD-1: a deposed supervisor writes to an unlinked file.
    auto successor = open_wandb(folder.path, config);
    REQUIRE(successor.ok());
    const MetricsRow late[] = {row(3, 5)};
    REQUIRE((*sink)->write(late).ok());
    CHECK(wandb_records(folder.path) == "run 1 2 3 4 ");
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
      for (const std::string& record : wandb::records(text)) {
        ProtobufField field, part;
        for (ProtobufReader fields(record); fields.next(field);)
          for (ProtobufReader parts(field.bytes); field.number == 17 && parts.next(part);) {
            if (part.number == 2 || part.number == 3 || part.number == 10)
              shown += std::to_string(part.number) + "=" + std::string(part.bytes) + ";";
            if (part.number != 4) continue;
            const std::string key = "\x12\x09max_steps\x82\x01";  // then the length of its value
            const size_t at = part.bytes.find(key);
            REQUIRE(at != std::string_view::npos);
            shown += std::string(part.bytes.substr(at + key.size() + 1, 2)) + ";";
          }
      }
      return shown;
    };
    {
      auto sink = open_wandb(folder.path, config);
      REQUIRE(sink.ok());
      const MetricsRow rows[] = {row(1, 1)};
      REQUIRE((*sink)->write(rows).ok());
      CHECK(run_record() == "2=team;3=p\u00e9;10;10=a;10=b c;");
    }
    config.train.max_steps = 20;
    config.metrics.wandb_tags = config.metrics.wandb_entity = "";
    REQUIRE(open_wandb(folder.path, config).ok());
    CHECK(run_record() == "3=p\u00e9;20;");
    CHECK(wandb_records(folder.path) == "run 1 ");
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
    CHECK(tensorboard_steps(run.path + "/tb") == "[3] 3 [3] 3 4 ");
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
