#include "actors/supervisor/step_ledger.hpp"

#include <doctest/doctest.h>

#include <algorithm>

#include "actors/supervisor/unpublished_shards.hpp"

using namespace simplescale;

namespace {

const std::vector<job::Place> members = {{"n0.0", 0, 0}, {"n1.0", 1, 0}};

StepDone done(const char* trainer, uint64_t step, uint64_t generation = 4) {
  StepDone report;
  report.generation = generation;
  report.step = step;
  report.trainer = trainer;
  report.loss = 2.5;
  report.samples = {step * 8, 4};
  report.time = static_cast<double>(step);
  report.interval_ms = 2'000;
  return report;
}

/// A ledger of two groups of one trainer, recorded up to step 5, in generation 4.
StepLedger ledger() {
  Plan plan;
  plan.topology.groups = 2;
  plan.batch = BatchSchedule(10);
  plan.shape.block_size = 10;
  StepLedger steps(Config(), plan, 5);
  steps.begin(4, members, 5);
  return steps;
}

}  // namespace

TEST_SUITE("step ledger") {
  TEST_CASE("step ledger: shares and times of a micro-batch follow the weights of the generation") {
    Plan plan;
    plan.topology.groups = 2;
    plan.batch = BatchSchedule(10);
    StepLedger steps(Config(), plan, 5);
    CHECK(steps.micro_batches(6, {"n1.0", 1, 0}) == 0);  // no generation has begun
    const std::vector<uint32_t> weights = {1000, 500};
    steps.begin(4, members, 5, weights);
    CHECK(steps.micro_batches(6, {"n0.0", 0, 0}) == 7);
    CHECK(steps.micro_batches(6, {"n1.0", 1, 0}) == 3);
    CHECK(steps.samples(6, "n1.0").size() == 6);
    StepDone fast = done("n0.0", 6), slow = done("n1.0", 6);
    fast.samples = {0, 7};
    slow.samples = {7, 3};
    fast.busy_ms = slow.busy_ms = 100;
    fast.compute_ms = 70;  // the rest does not grow with the micro-batches
    slow.compute_ms = 0;   // not known
    CHECK(steps.report(fast));
    CHECK(steps.report(slow));
    const auto step = steps.take_complete();
    REQUIRE(step);
    CHECK(step->busy_ms.at("n0.0") == 10);
    CHECK(step->busy_ms.at("n1.0") == doctest::Approx(100.0 / 3));
    steps.resume(5, members, 5, {}, weights);
    CHECK(steps.micro_batches(6, {"n1.0", 1, 0}) == 3);
    steps.begin(6, members, 5);
    CHECK(steps.micro_batches(6, {"n1.0", 1, 0}) == 5);
  }

  TEST_CASE("step ledger: a step is complete when every member has reported it") {
    StepLedger steps = ledger();
    CHECK(steps.report(done("n0.0", 6)));
    CHECK(steps.report(done("n0.0", 7)));
    CHECK_FALSE(steps.take_complete());
    CHECK(steps.report(done("n1.0", 6)));
    const auto step = steps.take_complete();
    REQUIRE(step);
    CHECK(step->newest.step == 6);
    CHECK(step->samples.at("n0.0") == std::vector<uint64_t>{48, 4});
    CHECK_FALSE(steps.take_complete());
    steps.measure(*step);
    CHECK(steps.tokens_per_second() == 50);  // one step of 100 tokens in 2 s
    const auto lines = steps.record(*step);
    REQUIRE(lines.size() == 3);
    CHECK(lines[0].file == std::string("metrics.jsonl"));
    CHECK(lines[0].json["step_ms"] == 2'000);
    CHECK_FALSE(lines[0].json.contains("val_loss"));
    CHECK(lines[1].file == std::string("ledger.jsonl"));
    CHECK(lines[1].json == nlohmann::json::parse(
                               R"({"step":6,"trainer":"n0.0","generation":4,"samples":[[48,4]]})"));
    CHECK(steps.recorded_step() == 6);
  }

  TEST_CASE("step ledger: the samples of a member, and of all, leave skipped samples out") {
    Plan plan;
    plan.topology.groups = 2;
    plan.batch = BatchSchedule(8);
    plan.skipped = *SkippedSamples::parse("9-10");
    StepLedger steps(Config(), plan, 0);
    steps.begin(4, members, 0);
    CHECK(samples_text(steps.samples(1, "")) == "0-7");
    CHECK(samples_text(steps.samples(2, "n0.0")) == "8,11-13");
    CHECK(samples_text(steps.samples(2, "n1.0")) == "14-17");
    CHECK(steps.samples(2, "n2.0").empty());
  }

  TEST_CASE("step ledger: the first step with a changed learning rate names it") {
    StepLedger steps = ledger();
    steps.set_rates({{6, 5e-4}});
    for (const uint64_t step : {6u, 7u}) {
      const auto lines = steps.record(ReportedStep{done("n0.0", step), {{"n0.0", {0, 4}}}});
      REQUIRE(lines.size() == 2);
      CHECK(lines[1].json.contains("learning_rate") == (step == 6));
      if (step == 6) CHECK(lines[1].json["learning_rate"] == 5e-4);
    }
  }

  TEST_CASE("GEN-1: reports of another generation, or of a recorded step, have no effect") {
    StepLedger steps = ledger();
    CHECK_FALSE(steps.report(done("n0.0", 6, 3)));
    CHECK_FALSE(steps.report(done("n0.0", 6, 5)));
    CHECK_FALSE(steps.report(done("n0.0", 5)));
  }

  TEST_CASE("GEN-1: reports of two generations do not make a step complete together") {
    StepLedger steps = ledger();
    CHECK(steps.report(done("n0.0", 6)));
    steps.begin(5, members, 5);
    CHECK(steps.report(done("n1.0", 6, 5)));
    CHECK_FALSE(steps.take_complete());
  }

  TEST_CASE("step ledger: steps that a dead trainer could not report are recorded from the plan") {
    StepLedger steps = ledger();
    steps.report(done("n0.0", 6));
    const auto first = steps.take_committed(7);
    REQUIRE(first);
    CHECK(first->newest.loss == 2.5);
    CHECK(first->samples.at("n0.0") == std::vector<uint64_t>{48, 4});
    CHECK_FALSE(first->samples.at("n1.0").empty());
    steps.record(*first);
    const auto second = steps.take_committed(7);
    REQUIRE(second);
    CHECK(second->newest.step == 7);
    CHECK(std::isnan(second->newest.loss));
    CHECK(second->samples.size() == 2);
    const auto lines = steps.record(*second);
    CHECK(lines[0].json["loss"].is_null());
    CHECK(lines[0].json["step_ms"].is_null());
    CHECK(lines[0].json["tokens_per_second"].is_null());
    CHECK_FALSE(steps.take_committed(7));
  }

  TEST_CASE("step ledger: steps that nobody has reported get lines of the generation that begins") {
    // The disk had taken lines of generation 8, and not the state page with this generation. Lines
    // that named generation 4 counted neither for readers nor for the next supervisor.
    StepLedger steps = ledger();
    CHECK(steps.reported_up_to() == 5);
    steps.report(done("n0.0", 6));
    steps.report(done("n0.0", 7));
    steps.report(done("n0.0", 9));
    CHECK(steps.reported_up_to() == 7);
    const auto generation_of_next = [&] {
      return steps.record(*steps.take_committed(9))[0].json["generation"];
    };
    CHECK(generation_of_next() == 4);
    CHECK(generation_of_next() == 4);
    steps.begin(9, members, 9);
    CHECK(generation_of_next() == 9);
  }

  TEST_CASE("step ledger: during a batch warm-up every step counts its own tokens") {
    const BatchSchedule::Stage warmup[] = {{5, 30}};  // steps 1 to 6
    Plan plan;
    plan.topology.groups = 2;
    plan.batch = BatchSchedule(10, warmup);
    plan.shape.block_size = 10;
    plan.max_steps = 8;
    StepLedger steps(Config(), plan, 5);
    steps.begin(4, members, 5);
    for (const auto& [step, tokens, rate] : {std::tuple{6, 300, 50.0}, {7, 400, 100.0}}) {
      StepDone report = done("n0.0", static_cast<uint64_t>(step));
      report.interval_ms = 1'000;
      const ReportedStep reported{report, {}};
      steps.measure(reported);
      const auto line = steps.record(reported)[0].json;
      CHECK(line["tokens"] == tokens);
      CHECK(line["iter"] == tokens / 10 / 2);
      CHECK(line["tokens_per_second"] == rate);
    }
    CHECK(steps.tokens_per_second() == 75);
    CHECK(steps.remaining_s(7) == 1.3);  // 100 tokens
    CHECK(samples_text(steps.samples(6, "")) == "25-29");
  }

  TEST_CASE("step ledger: a step's rate is by the trainer's clock, not by when reports arrive") {
    // A new supervisor takes over; trainers report two steps again, all at once.
    StepLedger steps = ledger();
    steps.resume(4, members, 5);
    for (const uint64_t step : {6, 7})
      for (const char* trainer : {"n0.0", "n1.0"}) {
        StepDone report = done(trainer, step);
        report.interval_ms = step == 6 ? 500 : 2'000;
        REQUIRE(steps.report(report));
      }
    for (const double rate : {200.0, 50.0}) {
      const auto step = steps.take_complete();
      REQUIRE(step);
      steps.measure(*step);
      const auto line = steps.record(*step)[0].json;
      CHECK(line["tokens_per_second"] == rate);
      CHECK(line["step_ms"] == 1e3 * 100 / rate);
    }
    CHECK(steps.tokens_per_second() == 80);  // 200 tokens in 2.5 s
    // A recovery begins: the first step's interval begins with the generation.
    steps.begin(5, members, 7);
    StepDone report = done("n0.0", 8, 5);
    report.interval_ms = 1'000;
    steps.report(report);
    report.trainer = "n1.0";
    steps.report(report);
    const auto step = steps.take_complete();
    steps.measure(*step);
    CHECK(steps.record(*step)[0].json["tokens_per_second"] == 100);
    CHECK(steps.tokens_per_second() == 100);
  }

  TEST_CASE("step ledger: a step that is validated is complete with its validation loss") {
    StepLedger steps = ledger();
    CHECK(std::isnan(steps.val_loss()));
    for (const char* trainer : {"n0.0", "n1.0"}) {
      StepDone report = done(trainer, 6);
      report.validates = true;
      REQUIRE(steps.report(report));
    }
    CHECK_FALSE(steps.take_complete());
    CHECK_FALSE(steps.validated({4, 6, "n0.0", 1.25}));
    const auto step = steps.take_complete();
    REQUIRE(step);
    CHECK(steps.record(*step)[0].json["val_loss"] == 1.25);
    CHECK(steps.val_loss() == 1.25);
    CHECK_FALSE(steps.validated({4, 6, "n0.0", 1.25}));  // reported again
    CHECK(steps.is_past(5));
    CHECK_FALSE(steps.is_past(6));
  }

  TEST_CASE("step ledger: with a mixture, the line has the validation loss of each source") {
    Plan plan;
    plan.topology.groups = 2;
    plan.batch = BatchSchedule(10);
    plan.shape.block_size = 10;
    plan.mixture = {{"web", "code"}, {{0, {1, 1}}}};
    StepLedger steps(Config(), plan, 5);
    steps.begin(4, members, 5);
    CHECK(steps.val_losses().is_null());
    for (const char* trainer : {"n0.0", "n1.0"}) {
      StepDone report = done(trainer, 6);
      report.validates = true;
      REQUIRE(steps.report(report));
    }
    CHECK_FALSE(steps.validated({4, 6, "n0.0", 1.25, {1.25, std::nan("")}}));
    const nlohmann::json losses = {{"web", 1.25}, {"code", nullptr}};
    CHECK(steps.record(*steps.take_complete())[0].json["val_losses"] == losses);
    CHECK(steps.val_losses() == losses);
  }

  TEST_CASE("step ledger: the line has the losses by length and by position, and the padding") {
    Plan plan;
    plan.topology.groups = 2;
    plan.batch = BatchSchedule(10);
    plan.shape.block_size = 8;
    Config config;
    config.train.validation_lengths = {2, 4};
    StepLedger steps(config, plan, 5);
    steps.set_padding(0.0123456789);
    steps.begin(4, members, 5);
    CHECK(steps.val_loss_at().is_null());
    for (const char* trainer : {"n0.0", "n1.0"}) {
      StepDone report = done(trainer, 6);
      report.validates = true;
      REQUIRE(steps.report(report));
    }
    Validated result{4, 6, "n0.0", 1.25};
    result.lengths = {3, std::nan("")};
    result.positions = {5, 4, std::nan(""), 2.5};
    CHECK_FALSE(steps.validated(result));
    const nlohmann::json line = steps.record(*steps.take_complete())[0].json;
    const nlohmann::json at = {{"2", 3.0}, {"4", nullptr}};
    const nlohmann::json by_position = {{"0", 5.0}, {"1", 4.0}, {"2", nullptr}, {"4", 2.5}};
    CHECK(line["val_loss_at"] == at);
    CHECK(line["val_loss_by_position"] == by_position);
    CHECK(line["padding"] == 0.012346);
    CHECK(steps.val_loss_at() == at);
    CHECK(steps.val_loss_by_position() == by_position);
    CHECK(validation_of(line).size() == 3);  // a supervisor that takes over knows them
    ReportedStep other;
    other.newest = done("n0.0", 6);
    CHECK_FALSE(ledger().record(other)[0].json.contains("padding"));
  }

  TEST_CASE("step ledger: a trainer that dies in a validation costs no step and no loss") {
    StepLedger steps = ledger();
    for (const char* trainer : {"n0.0", "n1.0"}) {
      StepDone report = done(trainer, 6);
      report.validates = true;
      steps.report(report);
    }
    // n1.0 dies. The next generation begins at step 6 and repeats the validation.
    const auto step = steps.take_committed(6);
    REQUIRE(step);
    const auto first = steps.record(*step)[0].json;
    CHECK(first["loss"] == 2.5);
    CHECK_FALSE(first.contains("val_loss"));
    steps.begin(5, members, 6);
    const auto second = steps.validated({5, 6, "n0.0", 1.25});
    REQUIRE(second);
    CHECK(second->file == std::string("metrics.jsonl"));
    CHECK(second->json["val_loss"] == 1.25);
    CHECK(second->json["generation"] == 5);  // so that the line counts instead of the first one
    CHECK(second->json["loss"] == 2.5);
    CHECK_FALSE(steps.validated({6, 6, "n0.0", 1.25}));
  }

  TEST_CASE("step ledger: a loss is known if the records, or an earlier generation, have it") {
    StepLedger steps = ledger();
    steps.set_validations({{6, {{"val_loss", 1.25}}}});
    CHECK(steps.knows({4, 6, "n0.0", 1.25}));
    CHECK_FALSE(steps.knows({4, 6, "n0.0", 1.5}));  // of other samples
    CHECK_FALSE(steps.knows({4, 8, "n0.0", 1.25}));
    steps.validated({4, 8, "n0.0", 1.25});
    CHECK(steps.knows({5, 8, "n0.0", 1.25}));
  }

  TEST_CASE("step ledger: a step may have scores of tasks with its validation loss, or alone") {
    const TaskScores scores = {{.task = "a", .questions = 4, .right = 1, .right_normalized = 2}};
    const nlohmann::json shown = {{"a", {{"questions", 4}, {"acc", 0.25}, {"acc_norm", 0.5}}}};
    StepLedger steps = ledger();
    CHECK(steps.tasks().is_null());
    const auto make = [&](uint64_t step) {
      for (const char* trainer : {"n0.0", "n1.0"}) {
        StepDone report = done(trainer, step);
        report.validates = true;
        steps.report(report);
      }
      CHECK_FALSE(steps.take_complete());
    };
    make(6);
    CHECK_FALSE(steps.validated({4, 6, "n0.0", 1.25, {}, scores}));
    const auto both = steps.record(*steps.take_complete())[0].json;
    CHECK(both["val_loss"] == 1.25);
    CHECK(both["tasks"] == shown);
    make(7);
    CHECK_FALSE(steps.validated({4, 7, "n0.0", std::nan(""), {}, scores}));
    const auto alone = steps.record(*steps.take_complete())[0].json;
    CHECK_FALSE(alone.contains("val_loss"));
    CHECK(alone["tasks"] == shown);
    CHECK(steps.tasks() == shown);
    CHECK(steps.val_loss() == 1.25);
    CHECK(steps.knows({5, 7, "n0.0", std::nan(""), {}, scores}));
    CHECK_FALSE(steps.knows({5, 7, "n0.0", 1.25, {}, scores}));  // the loss is news
    CHECK(steps.knows({5, 6, "n0.0", 1.25}));                    // the tasks are scored no more
    CHECK_FALSE(steps.knows({5, 6, "n0.0", 1.25, {}, {{.task = "a", .questions = 4}}}));
    CHECK(validation_of(both) == nlohmann::json{{"val_loss", 1.25}, {"tasks", shown}});
    // A loss that was due, but no target counts.
    make(8);
    CHECK_FALSE(steps.validated({4, 8, "n0.0", std::nan(""), {}, scores, {0}}));
    const auto none = steps.record(*steps.take_complete())[0].json;
    CHECK((none.contains("val_loss") && none["val_loss"].is_null()));
    CHECK(none["tasks"] == shown);
    CHECK(std::isnan(steps.val_loss()));
  }

  TEST_CASE("step ledger: records go on after an older step only if they end later") {
    StepLedger steps = ledger();
    CHECK_FALSE(steps.rewind(5));
    CHECK_FALSE(steps.rewind(6));
    CHECK(steps.rewind(3));
    CHECK(steps.recorded_step() == 3);
  }

  TEST_CASE("step ledger: JOB-1, steps that count again keep their lines") {
    StepLedger steps = ledger();
    const job::State job;
    CHECK_FALSE(steps.regain(6, job));  // none was undone
    CHECK(steps.rewind(3));
    CHECK(steps.rewind(2));
    CHECK(steps.regain(4, job));
    CHECK(steps.recorded_step() == 4);
    CHECK(steps.regain(6, job));  // the line of step 6 is still to be written
    CHECK(steps.recorded_step() == 5);
    steps.rewind(3);
    steps.begin(6, members, 3);
    CHECK(steps.take_committed(4)->newest.step == 4);
    steps.record(*steps.take_committed(4));
    CHECK_FALSE(steps.regain(5, job));  // step 4 has been made again
    CHECK(steps.recorded_step() == 4);

    StepLedger successor = ledger();
    successor.resume(5, members, 3, StateVersion{5, 4});
    CHECK(successor.regain(5, job));
    CHECK(successor.recorded_step() == 5);
    successor.resume(5, members, 5, StateVersion{5, 4});
    CHECK_FALSE(successor.regain(6, job));
  }

  TEST_CASE("step ledger: JOB-2, lines of a history that was left again are not kept") {
    // Generation 2 began with step 9. Generation 3 took that back and gave the lines of steps 10 to 28
    // its number. Generation 4 begins with step 18 as generation 2 made it.
    job::State job;
    job.joined_step = 18;
    job.rollbacks = {{2, 10, 0, false}, {4, 10, 3, true}, {4, 29, 3, true}, {4, 19, 0, true}};
    StepLedger steps = ledger();
    steps.resume(3, members, 28, StateVersion{28, 3});
    CHECK(steps.regain(18, job));
    CHECK(steps.recorded_step() == 9);
  }

  TEST_CASE("step ledger: JOB-2, lines that were undone before are not regained with later steps") {
    // Generation 1 made the lines of steps 1 to 3, generation 2 began at step 0 and made 10 steps
    // that no line has, generation 3 began at step 0, and generation 4 regains step 10.
    job::State job;
    job.joined_step = 10;
    job.rollbacks = {{2, 1, 0, false}, {4, 1, 3, false}, {4, 11, 0, true}};
    StepLedger successor = ledger();
    successor.resume(3, members, 0, StateVersion{3, 1});
    CHECK_FALSE(successor.regain(10, job));
    CHECK(successor.take_committed(10)->newest.step == 1);
    // The same if one supervisor saw it all.
    StepLedger steps = ledger();
    steps.resume(1, members, 2, StateVersion{2, 1});
    steps.record(*steps.take_committed(3));
    CHECK(steps.rewind(0));
    steps.begin(2, members, 0);
    CHECK_FALSE(steps.rewind(0));
    steps.begin(3, members, 0);
    CHECK_FALSE(steps.regain(10, job));
    CHECK(steps.recorded_step() == 0);
    // The steps of generation 2 count.
    successor.resume(3, members, 0, StateVersion{10, 2});
    CHECK(successor.regain(10, job));
    CHECK(successor.recorded_step() == 10);
  }

  TEST_CASE("step ledger: redoing a step tells which replica was wrong") {
    StepLedger steps = ledger();
    steps.hashed("n0.0", 6, 11);
    steps.mismatch(6);
    steps.hashed("n1.0", 6, 22);  // its vote was aborted; the order of the reports does not matter
    StepDone report = done("n1.0", 7);
    CHECK(steps.wrong_states(report).empty());  // no hash
    report.state_hash = 22;
    CHECK(steps.wrong_states(report) == std::vector<std::string>{"n0.0"});
    CHECK(steps.wrong_states(report).empty());
  }

  TEST_CASE("step ledger: a hash of a step in which no replicas differed blames no trainer") {
    StepLedger steps = ledger();
    steps.hashed("n0.0", 6, 11);  // its vote failed for another reason
    StepDone report = done("n1.0", 7);
    report.state_hash = 22;
    CHECK(steps.wrong_states(report).empty());
    steps.hashed("n0.0", 6, 11);
    steps.mismatch(5);
    CHECK(steps.wrong_states(report).empty());
    steps.hashed("n0.0", 6, 11);
    report.step = 8;  // the hash is too old
    CHECK(steps.wrong_states(report).empty());
    steps.mismatch(6);
    report.step = 7;
    CHECK(steps.wrong_states(report).empty());
  }

  TEST_CASE("step ledger: hashes of different shards are not compared") {
    StepLedger steps = ledger();
    steps.begin(4, {{"n0.0", 0, 0}, {"n0.1", 0, 1}, {"n1.0", 1, 0}, {"n1.1", 1, 1}}, 5);
    steps.hashed("n0.1", 6, 11);
    steps.mismatch(6);
    StepDone report = done("n1.0", 7);
    report.state_hash = 22;
    CHECK(steps.wrong_states(report).empty());
    report.trainer = "n1.1";
    CHECK(steps.wrong_states(report) == std::vector<std::string>{"n0.1"});
  }

  TEST_CASE("shards are published once their step is recorded and replicas have compared it") {
    job::State job = job::make_state({1, 1, 1, 2, 1}, {"n0", "n1"});
    job.trainers["n0.0"].generation = 4;
    std::vector<ShardSaved> shards;
    shards.push_back({.generation = 4, .step = 6});
    CHECK(take_publishable(shards, job, 5).empty());
    CHECK(take_publishable(shards, job, 6).empty());
    CHECK(take_publishable(shards, job, 7).size() == 1);
    CHECK(take_publishable(shards, job, 8).empty());
    shards.push_back({.generation = 4, .step = 9});
    job.trainers["n0.0"].state = job::TrainerState::finished;
    job.trainers["n0.0"].step = 9;
    CHECK(take_publishable(shards, job, 9).size() == 1);
    shards.push_back({.generation = 4, .step = 10});
    job.rollbacks = {{5, 10}};
    CHECK(take_publishable(shards, job, 20).empty());
    job.rollbacks.clear();
    CHECK(take_publishable(shards, job, 20).empty());  // it was dropped
  }

  TEST_CASE("shards of a generation that the supervisor does not know wait until it hears of it") {
    job::State job = job::make_state({1, 1, 1, 2, 1}, {"n0", "n1"});
    job.trainers["n0.0"].generation = 4;
    std::vector<ShardSaved> shards;
    shards.push_back({.generation = 102, .step = 6});
    shards.push_back({.generation = 4, .step = 8});
    const auto ready = take_publishable(shards, job, 20);
    REQUIRE(ready.size() == 1);
    CHECK(ready[0].generation == 4);
    job.trainers["n1.0"].generation = 102;
    CHECK(take_publishable(shards, job, 20).size() == 1);
  }

  TEST_CASE("shards: a checkpoint is awaited if the publisher will publish it, and only then") {
    WrittenShards written;
    const auto add = [&](uint64_t generation, uint64_t step, uint64_t shard,
                         std::string error = {}) {
      ShardSaved saved{.generation = generation, .step = step, .shard = shard, .shards = 2};
      saved.error = std::move(error);
      return written.add(saved);
    };
    CHECK_FALSE(add(4, 10, 0));
    CHECK_FALSE(add(4, 10, 0));  // reported again
    CHECK(add(4, 10, 1));
    CHECK_FALSE(add(4, 10, 1));
    CHECK_FALSE(add(4, 20, 0, "disk full"));
    CHECK_FALSE(add(4, 20, 1));
    CHECK_FALSE(add(4, 20, 0));  // the publisher has given that step up
    CHECK_FALSE(add(5, 30, 0));
    CHECK_FALSE(add(4, 30, 0));
    CHECK_FALSE(add(4, 30, 1));  // a newer generation saves
    CHECK(add(5, 30, 1));
  }
}
