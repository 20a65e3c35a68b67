// verify: every error in a run folder is reported with its file and line.
#include <doctest/doctest.h>

#include <atomic>
#include <thread>

#include "runtime/checkpoint/checkpoint_format.hpp"
#include "runtime/checkpoint/mixture_record.hpp"
#include "tests/must.hpp"
#include "tests/runtime/checkpoint/fixture.hpp"
#include "tools/convert/commands.hpp"
#include "tools/verify/verify_run.hpp"

using namespace simplescale;
using namespace simplescale::test;
namespace fs = std::filesystem;

TEST_SUITE_BEGIN("verify");

namespace {

std::string metric(uint64_t step, uint64_t generation = 0) {
  return R"({"time":1.5,"step":)" + std::to_string(step) +
         R"(,"iter":1,"loss":null,"grad_norm":1,"lr":0.1,"step_ms":3,"tokens":8,"tokens_per_second":5,"mfu":0.1,)"
         R"("remaining_s":3,"generation":)" +
         std::to_string(generation) + "}\n";
}
std::string event(const std::string& phase) {
  return R"({"time":1,"generation":0,"step":1,"incident":1,"phase":)" + phase +
         R"(,"kind":"started","subject":"n0","reason":"","ms":0})" + "\n";
}
std::string event_of(uint64_t generation, const std::string& kind, const std::string& reason,
                     const std::string& more = "") {
  return R"({"time":1,"generation":)" + std::to_string(generation) +
         R"(,"step":1,"incident":null,"phase":null,"kind":")" + kind +
         R"(","subject":"","reason":")" + reason + R"(","ms":null)" + more + "}\n";
}
std::string joined(uint64_t generation, const std::string& layout) {
  return event_of(generation, "joined", "", R"(,"layout":)" + layout);
}
std::string entry(uint64_t step, uint64_t generation, const std::string& samples,
                  const std::string& trainer = "n0.0") {
  return R"({"step":)" + std::to_string(step) + R"(,"trainer":")" + trainer + R"(","generation":)" +
         std::to_string(generation) + R"(,"samples":)" + samples + "}\n";
}

/// A valid run of three steps of 8 samples on two trainers; step 2 was trained twice.
struct Run {
  MemoryFolder folder;
  std::string ledger = entry(1, 0, "[[0,2],[4,2]]") + entry(1, 0, "[[2,2],[6,2]]", "n0.1") +
                       entry(2, 0, "[[8,2]]") + entry(2, 1, "[[8,8]]") +
                       entry(3, 1, "[[20,4],[16,4]]");
  std::string metrics = metric(1) + metric(2) + metric(2, 1) + metric(3, 1);
  std::string events = event("null") + event("\"detect\"") + joined(1, R"([["n0"]])");
  Run() {
    spew(folder / "config.toml", "[train]\nglobal_batch_size = 8\n");
    const ModelShape shape = tiny_shape();
    for (const uint64_t step : {1, 3})
      REQUIRE(
          save(folder / "checkpoints", random_state(shape, 1, true), info_of(shape, step), 2).ok());
  }
  /// "" if the run is valid, else all lines of the report.
  std::string problems() {
    spew(folder / "ledger.jsonl", ledger);
    spew(folder / "metrics.jsonl", metrics);
    spew(folder / "events.jsonl", events);
    const auto verified = must(verify_command(folder.path));
    CHECK(verified->text.ends_with(verified->ok ? ": valid\n" : ": INVALID\n"));
    return verified->ok ? "" : verified->text;
  }
};

#define CHECK_HAS(text, part)                                          \
  do {                                                                 \
    const std::string has_text = (text);                               \
    CHECK_MESSAGE(has_text.find(part) != std::string::npos, has_text); \
  } while (false)

}  // namespace

TEST_CASE("verify: a valid run has no problems") {
  Run run;
  CHECK(run.problems() == "");
  run.ledger += R"({"step":4,"trai)";  // killed while writing
  run.metrics += R"({"ti)";
  CHECK(run.problems() == "");
  run.ledger = run.ledger.substr(0, run.ledger.rfind('{')) +
               entry(4, 1, "[[24,2]]");  // step 4 is not committed
  CHECK(run.problems() == "");
}

TEST_CASE("verify: JOB-2, the ledger of each committed step covers its samples exactly once") {
  const auto with = [](const std::string& line) {
    Run run;
    run.ledger = run.ledger.substr(0, run.ledger.find(R"({"step":3)")) + line;
    return run.problems();
  };
  CHECK_HAS(with(""), "step 3: has no line");
  CHECK_HAS(with(entry(3, 1, "[[16,4],[21,3]]")), "step 3: samples 20 to 20 are missing");
  CHECK_HAS(with(entry(3, 1, "[[16,4]]")), "step 3: samples 20 to 23 are missing");
  CHECK_HAS(with(entry(3, 1, "[]")), "step 3: samples 16 to 23 are missing");
  CHECK_HAS(with(entry(3, 1, "[[16,8]]") + entry(3, 1, "[[18,1]]", "n1.0")),
            "step 3: sample 18 is there twice");
  CHECK_HAS(with(entry(3, 1, "[[15,9]]")), "step 3: sample 15 is not of this step");
  CHECK_HAS(with(entry(3, 1, "[[16,9]]")), "step 3: sample 24 is not of this step");
  CHECK_HAS(with(entry(3, 1, "[[16,8]]") + entry(3, 2, "[[16,4]]")),
            "step 3: samples 20 to 23 are missing");
  CHECK_HAS(with(entry(3, 1, "[[16,18446744073709551615]]")), "step 3: ");
  CHECK_HAS(with(entry(3, 1, "[[16,-8]]")), "ledger.jsonl: line 5: ");
  CHECK_HAS(with(entry(3, 1, "7")), "ledger.jsonl: line 5: ");
}

TEST_CASE("verify: JOB-2, samples that the run leaves out are in no step, and later ones move up") {
  Run run;
  spew(run.folder / "config.toml",
       "[train]\nglobal_batch_size = 8\n[data]\nskip_samples = \"19-20,30\"\n");
  const std::string two = run.ledger.substr(0, run.ledger.find(R"({"step":3)"));
  const auto with = [&](const std::string& samples) {
    run.ledger = two + entry(3, 1, samples);
    return run.problems();
  };
  CHECK(with("[[16,3],[21,5]]") == "");
  CHECK_HAS(with("[[16,8]]"), "step 3: has samples 16 to 23, but data.skip_samples = \"19-20,30\"");
  CHECK_HAS(with("[[16,3],[21,3]]"), "step 3: samples 22 to 23 are missing");
  CHECK_HAS(with("[[16,3],[21,6]]"), "step 3: sample 24 is not of this step");
}

TEST_CASE("verify: log lines must be objects with their keys, and no step may be missing") {
  Run run;
  run.metrics = metric(1) + metric(3);
  CHECK_HAS(run.problems(), "metrics.jsonl: steps 2 to 2 are missing");
  run.metrics = metric(1) + "garbage\n" + metric(2) + metric(3);
  CHECK_HAS(run.problems(), "metrics.jsonl: line 2: not a JSON object");
  run.metrics = metric(1) + metric(2) + metric(3) + "{\"step\":4}\n";
  CHECK_HAS(run.problems(), "metrics.jsonl: line 4: no \"time\"");
  run.metrics = metric(3) + metric(2) + metric(1);
  CHECK_HAS(run.problems(), "metrics.jsonl: line 2: step 2 of generation 0 after step 3");
  run.metrics = std::string("\x01\x02 nothing that was written by us");
  CHECK_HAS(run.problems(), "ledger.jsonl: has 3 steps, metrics.jsonl none");
  Run other;
  other.events += "{}\n";
  CHECK_HAS(other.problems(), "events.jsonl: line 4: no \"time\"");
  other.events = event("\"dance\"");
  CHECK_HAS(other.problems(), "events.jsonl: line 1: phase is \"dance\"");
}

TEST_CASE("verify: LEAD-1, lines that a deposed supervisor repeats do not count") {
  Run run;
  run.metrics += metric(1) + metric(2);
  run.ledger += entry(2, 1, "[[8,8]]") + entry(3, 1, "[[20,4],[16,4]]");
  CHECK(run.problems() == "");
  const auto with_loss = [](const std::string& line, const char* loss) {
    return std::string(line).replace(line.find("null"), 4, loss);
  };
  run.metrics += with_loss(metric(2, 1), "2") + with_loss(metric(2, 1), "9");
  CHECK_HAS(run.problems(), "line 8: step 2 of generation 1 again, with another loss");
  Run undone;  // started again from step 1; step 4 was not recorded as a whole
  undone.metrics = metric(1) + metric(2) + metric(3) + metric(4) + metric(2, 1) + metric(3, 1);
  undone.ledger += entry(4, 0, "[[24,4]]");
  CHECK(undone.problems() == "");
  // The ledger lacked steps 2 to 4: a successor names its newest generation, which began with step 4.
  Run behind;
  behind.metrics = metric(1) + metric(2) + metric(3) + metric(4, 1);
  behind.metrics += metric(2, 1) + metric(3, 1) + metric(4, 1);
  behind.ledger += entry(4, 1, "[[24,8]]");
  CHECK(behind.problems() == "");
  behind.metrics += metric(5, 1) + metric(7, 1) + metric(6, 1);
  CHECK_HAS(behind.problems(), "line 10: step 6 of generation 1 after step 7 of generation 1");
}

TEST_CASE("verify: each generation has an event, and its trainers belong to its layout") {
  Run run;
  run.events = event("null");
  CHECK_HAS(run.problems(), "metrics.jsonl: generation 1 is in no line of events.jsonl");
  CHECK_HAS(run.problems(), "ledger.jsonl: generation 1 is in no line of events.jsonl");
  run.events += event_of(101, "took_over", "");  // its supervisor died with its last events
  CHECK(run.problems() == "");
  run.events += event_of(7, "committed", "");
  CHECK_HAS(run.problems(), "generation 1 is in no line of events.jsonl");
  run.events = event("null");
  run.events += event_of(1, "validated", "");  // from a version that did not record layouts
  CHECK(run.problems() == "");
  run.events += joined(1, R"([["n0"],["n1"]])");
  CHECK(run.problems() == "");
  run.ledger += entry(3, 1, "[]", "n1.0");
  CHECK(run.problems() == "");
  run.ledger += entry(3, 1, "[]", "n2.0");
  CHECK_HAS(run.problems(), "line 7: \"n2.0\" does not train in generation 1");
}

TEST_CASE("verify: missing lines at the end are detected") {
  Run run;
  fs::create_directories(run.folder / "control");
  spew(run.folder / "control/end.json", R"({"instance":"x","exit":0,"reason":"trained 3 steps"})");
  CHECK_HAS(run.problems(), "the run has ended (trained 3 steps; control/end.json), and no event");
  run.events += event_of(1, "finished", "trained 3 steps");
  CHECK(run.problems() == "");
  run.events += event("null");  // the run was started again and has not ended
  CHECK_HAS(run.problems(), "no event says so");
  spew(run.folder / "control/end.json", "");
  CHECK(run.problems() == "");
  run.metrics = metric(1) + metric(2);
  run.ledger = run.ledger.substr(0, run.ledger.find(R"({"step":3)"));
  CHECK_HAS(run.problems(), "metrics.jsonl: ends at step 2, but there is a checkpoint of step 3");
}

TEST_CASE("verify: all damaged checkpoints and missing files are named") {
  Run run;
  for (const char* step : {"step-00000001", "step-00000003"}) {
    const std::string path =
        run.folder / "checkpoints/" + step + "/shard-00001-of-00002.safetensors";
    std::string bytes = contents(path);
    bytes[9] = static_cast<char>(bytes[9] ^ 1);
    spew(path, bytes);
  }
  const std::string problems = run.problems();
  CHECK_HAS(problems, "step-00000001/shard-00001-of-00002.safetensors");
  CHECK_HAS(problems, "step-00000003/shard-00001-of-00002.safetensors");
  MemoryFolder empty;
  CHECK(verify_command(empty.path).status().code() == Code::bad_data);
  spew(empty / "config.toml", "[train]\nglobal_batch_size = 8\n");
  const auto verified = must(verify_command(empty.path));
  CHECK_FALSE(verified->ok);
  for (const char* name :
       {"ledger.jsonl is missing", "metrics.jsonl is missing", "events.jsonl is missing"})
    CHECK_HAS(verified->text, name);
  spew(empty / "config.toml", "[train\n");
  CHECK_HAS(verify_command(empty.path)->text, "config.toml:1: ");
}

TEST_CASE("verify: checkpoints that the run removes or replaces meanwhile are no errors") {
  Run run;
  REQUIRE(run.problems() == "");  // writes the files
  const std::string folder = run.folder / "checkpoints";
  std::atomic<bool> over = false;
  std::thread training([&] {
    const ModelShape shape = tiny_shape();
    const auto state = random_state(shape, 1, true);
    while (!over)
      for (const uint64_t step : {2, 1}) {
        const std::string older = checkpoint_format::step_folder_name(3 - step);
        CHECK(save(folder, state, info_of(shape, step), 2).ok());
        CHECK(checkpoint_format::remove_checkpoint(folder, older, system_files()).ok());
      }
  });
  size_t removed = 0;
  std::string invalid;
  for (int i = 0; i < 2000 && removed == 0 && invalid.empty(); ++i) {
    const auto verified = must(verify_command(run.folder.path));
    removed += verified->text.find("removed by the run meanwhile") != std::string::npos;
    if (!verified->ok) invalid = verified->text;
  }
  over = true;
  training.join();
  CHECK(invalid == "");
  CHECK(removed > 0);
  fs::remove(folder + "/step-00000003/manifest.json");  // not removed by the run: it is broken
  CHECK_HAS(verify_command(run.folder.path)->text, "step-00000003/manifest.json");
  CHECK_FALSE(verify_command(run.folder.path)->ok);
}

TEST_CASE("verify: the ledger tells what was seen of each source, and the checkpoint agrees") {
  const Mixture mixture = {{"web", "code"}, {{0, {3, 1}}, {16, {1, 1}}}};
  const auto of = [&](const MixtureRecord& record, const Mixture& configured) {
    Run run;
    auto info = info_of(tiny_shape(), 3);
    info.resume = resume_text(record);
    REQUIRE(save(run.folder / "checkpoints", random_state(tiny_shape(), 1), info, 2).ok());
    REQUIRE(run.problems() == "");  // writes the files
    const auto verified = must(verify_command(run.folder.path, {configured, {}}));
    return verified->text;
  };
  const MixtureRecord record = {mixture, {16, 8}, {32, 5}};
  CHECK(mixture_in(resume_text(record)) == record);
  CHECK_FALSE(mixture_in("{}"));
  CHECK_FALSE(mixture_in("{\"mixture\":{\"sources\":7}}"));
  const std::string fine = of(record, mixture);
  CHECK_HAS(fine, "web: 16 samples seen, 66.67 %, 0.500 epochs of 32 samples");
  CHECK_HAS(fine, "code: 8 samples seen, 33.33 %, 1.600 epochs of 5 samples");
  CHECK_HAS(fine, ": valid\n");
  CHECK_HAS(of({mixture, {15, 9}, {32, 5}}, mixture),
            "the checkpoint of step 3 records 15 samples of web, the ledger has 16");
  Mixture other = mixture;
  other.stages[1].weights = {1, 2};
  CHECK_HAS(of(record, other),
            "the checkpoint of step 3 was made with another mixture than config.toml has: from "
            "sample 16 on the weights were web 1, code 1 and are now web 1, code 2");
}

TEST_CASE(
    "commands: digest, export and import take a checkpoint or a run, and print what they did") {
  Run run;
  const auto of_run = digest_command(run.folder.path),
             of_step = digest_command(run.folder / "checkpoints/step-00000003");
  REQUIRE(of_run.ok());
  CHECK(*of_run == *of_step);
  CHECK(*of_run == *digest_command(run.folder / "checkpoints"));
  CHECK(*of_run != *digest_command(run.folder / "checkpoints/step-00000001"));
  std::vector<uint64_t> used;  // a run that trains removes step 3 while it is read
  const Status next = with_checkpoint(run.folder.path, [&](Checkpoint& checkpoint) {
    used.push_back(checkpoint.info().step);
    if (used.size() > 1) return Status();
    std::filesystem::rename(checkpoint.folder(), run.folder / "removed");
    return Status(Code::io, "gone");
  });
  CHECK(next.ok());
  CHECK(used.size() == 2);
  CHECK((used.front() == 3 && used.back() < 3));
  std::filesystem::rename(run.folder / "removed", run.folder / "checkpoints/step-00000003");
  CHECK(with_checkpoint(run.folder.path, [](Checkpoint&) {
          return Status(Code::io, "x");
        }).code() == Code::io);
  CHECK(digest_command(run.folder / "none").status().code() == Code::bad_data);
  MemoryFolder empty;
  CHECK(digest_command(empty.path).status().code() == Code::bad_data);
  CHECK(export_command(run.folder.path, empty / "hf", "float8").status().code() == Code::usage);
  const auto exported = must(export_command(run.folder.path, empty / "hf", "bfloat16"));
  CHECK_HAS(*exported, "exported step 3");
  const auto imported = must(import_command(empty / "hf", empty / "new"));
  CHECK_HAS(*imported, "imported " + std::to_string(parameter_count(tiny_shape())) + " parameters");
  CHECK(imported->find("warning") == std::string::npos);
  std::ofstream(empty / "hf/tokenizer.json") << R"({"model": {"type": "WordPiece"}})";
  const auto beside = must(import_command(empty / "hf", empty / "unsupported"));
  CHECK_HAS(*beside, "warning: its tokenizer cannot be used here: ");
  CHECK_HAS(*beside, "WordPiece");
}

TEST_SUITE_END();
