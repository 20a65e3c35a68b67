#include "runtime/observe/trace.hpp"

#include <doctest/doctest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "runtime/observe/trace_parts.hpp"
#include "tests/must.hpp"
#include "tests/temp_folder.hpp"
#include "tools/trace/trace_merge.hpp"

using namespace simplescale;
using nlohmann::json;
namespace fs = std::filesystem;
using test::TempFolder;

namespace {

/// Records events while it exists.
struct Recorder {
  explicit Recorder(size_t events, const std::string& segment = "") {
    REQUIRE(trace::start(events, segment).ok());
  }
  ~Recorder() { REQUIRE(trace::start(0).ok()); }
};

std::vector<trace::Event> events_now() {
  auto own = must(trace::Reader::own());
  return (*own)->read().events;
}

std::string text(const char* field, size_t size) {
  return {field, strnlen(field, size)};
}
std::string name_of(const trace::Event& e) {
  return text(e.name, sizeof e.name);
}

TraceEvent event(trace::Kind kind, int64_t begin_ns, int64_t duration_ns, const std::string& name,
                 uint64_t a = 0, uint64_t b = 0, const std::string& detail = "") {
  TraceEvent e;
  e.kind = kind;
  e.begin_ns = begin_ns;
  e.duration_ns = duration_ns;
  e.name = name;
  e.a = a;
  e.b = b;
  e.detail = detail;
  return e;
}

/// A part with one process.
TracePart part(const std::string& who, const std::string& host, std::vector<TraceEvent> events) {
  TracePart p{who, host, 1'000'000'000, 2'000'000'000, {}};
  p.processes.push_back({who, 7, false, {"compute", "transport"}, std::move(events)});
  return p;
}

json parsed(const MergedTrace& merged) {
  json all = json::parse(merged.json);
  return all.at("traceEvents");
}

std::vector<json> with(const json& events, const char* key, const json& value) {
  std::vector<json> found;
  for (const json& e : events)
    if (e.contains(key) && e[key] == value) found.push_back(e);
  return found;
}

}  // namespace

TEST_SUITE("trace") {
  TEST_CASE("trace: without start() nothing is recorded") {
    CHECK_FALSE(trace::on());
    { const trace::Span span("x"); }
    trace::instant("y");
    CHECK(trace::Reader::own().status().code() == Code::not_found);
    CHECK(trace::start(1).code() == Code::bad_config);
  }

  TEST_CASE("trace: spans nest, and a span that has not ended is recorded as unfinished") {
    const Recorder recorder(64);
    trace::Span outer("outer", 12, "detail");
    {
      const trace::Span inner("inner");
      trace::instant("now");
    }
    const auto events = events_now();
    REQUIRE(events.size() == 3);
    CHECK(name_of(events[0]) == "outer");
    CHECK(events[0].number == 12);
    CHECK(text(events[0].detail, sizeof events[0].detail) == "detail");
    CHECK(events[0].duration_ns == trace::Event::kUnfinished);
    CHECK(name_of(events[1]) == "inner");
    CHECK(events[1].begin_ns >= events[0].begin_ns);
    CHECK(events[1].duration_ns >= 0);
    CHECK(events[2].kind == trace::Kind::instant);
    CHECK(events[2].begin_ns <= events[1].begin_ns + events[1].duration_ns);
    outer.end();
    const auto after = events_now();
    CHECK(after[0].duration_ns >= after[1].duration_ns);
    CHECK(std::all_of(after.begin(), after.end(),
                      [&](const auto& e) { return e.thread == after[0].thread; }));
  }

  TEST_CASE("trace: only the newest events are kept; ending an overwritten span changes no other") {
    const Recorder recorder(8);
    trace::Span old("old");
    for (int i = 0; i < 20; ++i) trace::Span("new", i);
    old.end();
    const trace::Recording recording = (*trace::Reader::own())->read();
    CHECK(recording.full);
    REQUIRE(recording.events.size() == 8);
    for (size_t i = 0; i < 8; ++i) {
      CHECK(name_of(recording.events[i]) == "new");
      CHECK(recording.events[i].number == static_cast<int64_t>(12 + i));
    }
  }

  TEST_CASE("trace: long names are truncated, and a span may end on another thread") {
    const Recorder recorder(8);
    trace::Span span(std::string(100, 'n'), 0, std::string(100, 'd'));
    std::thread([span = std::move(span)]() mutable { span.end(); }).join();
    const auto events = events_now();
    REQUIRE(events.size() == 1);
    CHECK(name_of(events[0]) == std::string(sizeof events[0].name, 'n'));
    CHECK(events[0].duration_ns >= 0);
  }

  TEST_CASE("trace: many threads record while another one reads consistent events") {
    const Recorder recorder(256);
    std::atomic<bool> stop{false};
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t)
      threads.emplace_back([&stop, t] {
        trace::name_thread(("worker " + std::to_string(t)).c_str());
        for (int64_t i = 0; !stop; ++i)
          trace::Span(
              {.number = i, .a = static_cast<uint64_t>(t), .b = static_cast<uint64_t>(2 * i)},
              "w" + std::to_string(t), "");
      });
    const auto reader = *trace::Reader::own();
    size_t seen = 0;
    while (seen < 20'000) {
      const trace::Recording recording = reader->read();
      seen += recording.events.size() + 1;
      for (const trace::Event& e : recording.events) {
        REQUIRE(e.b == 2 * static_cast<uint64_t>(e.number));
        REQUIRE(name_of(e) == "w" + std::to_string(e.a));
        REQUIRE(recording.threads[e.thread] == "worker " + std::to_string(e.a));
        REQUIRE(e.begin_ns <= recording.read_ns);
        REQUIRE(e.duration_ns <= recording.read_ns - e.begin_ns);
      }
    }
    stop = true;
    for (auto& thread : threads) thread.join();
  }

  TEST_CASE("trace: the slots of ended threads are reused") {
    const Recorder recorder(1024);
    for (int i = 0; i < 300; ++i) std::thread([] { trace::Span("x"); }).join();
    CHECK(events_now().size() == 300);
  }

  TEST_CASE("trace: another process reads a ring in shared memory, even of a killed process") {
    const std::string segment = "ss-test-" + std::to_string(getpid()) + "-trace";
    int ready[2];
    REQUIRE(pipe(ready) == 0);
    const pid_t child = fork();
    if (child == 0) {
      const Recorder recorder(16, segment);
      trace::Span working("working", 3);
      (void)!write(ready[1], "y", 1);
      for (;;) pause();
    }
    char byte = 0;
    REQUIRE(read(ready[0], &byte, 1) == 1);
    close(ready[0]);
    close(ready[1]);
    auto reader = trace::Reader::open(segment);
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    REQUIRE(reader.ok());
    const auto recording = (*reader)->read();
    REQUIRE(recording.events.size() == 1);
    CHECK(name_of(recording.events[0]) == "working");
    CHECK_FALSE(trace::Reader::open(segment).ok());
    auto other = must(SharedMemory::create(segment, 4096));
    CHECK(trace::Reader::open(segment).status().code() == Code::bad_data);
  }

  TEST_CASE("trace: events in the window are written and read back") {
    const Recorder recorder(64);
    const TempFolder folder;
    const RunFolder run{folder.path};
    // The offset between the clocks is measured anew each time, to about a microsecond.
    auto a_millisecond_later = [] {
      for (const int64_t until = trace::now_ns() + 1'000'000; trace::now_ns() < until;) {
      }
      return trace::now_ns();
    };
    { const trace::Span early("early"); }
    const int64_t wall = trace::wall_offset_ns();
    TraceWindow window{"step-00000001", a_millisecond_later() + wall, 0};
    (void)a_millisecond_later();
    { const trace::Span inside("a \"quoted\" name\n", 5, "x"); }
    trace::Span lasts({.number = 6, .a = 1, .b = 2, .kind = trace::Kind::collective}, "lasts",
                      "c@1");
    window.end_ns = a_millisecond_later() + wall;
    (void)a_millisecond_later();
    { const trace::Span late("late"); }
    const TraceSource source{"n0.0", 42, *trace::Reader::own()};
    REQUIRE(write_trace_part(run, window, "n0", {source}).ok());
    const auto read = must(read_trace_part(folder.path + "/traces/step-00000001/n0.jsonl"));
    CHECK(read->who == "n0");
    REQUIRE(read->processes.size() == 1);
    const TraceProcess& process = read->processes[0];
    CHECK(process.name == "n0.0");
    CHECK(process.pid == 42);
    std::map<std::string, TraceEvent> by_name;
    for (const TraceEvent& e : process.events) by_name[e.name] = e;
    CHECK(by_name.size() == 2);
    REQUIRE(by_name.contains("a ?quoted? name?"));
    CHECK(by_name["a ?quoted? name?"].number == 5);
    REQUIRE(by_name.contains("lasts"));
    CHECK(by_name["lasts"].unfinished);
    CHECK(by_name["lasts"].kind == trace::Kind::collective);
    CHECK(by_name["lasts"].b == 2);
    CHECK(trace_names(run) == std::vector<std::string>{"step-00000001"});

    CHECK(write_trace_part(run, {"../out", 0, 1}, "n0", {}).code() == Code::bad_data);
    const RunFolder deleted{folder.path + "/deleted"};
    CHECK_FALSE(write_trace_part(deleted, window, "n0", {source}).ok());
    CHECK_FALSE(fs::exists(deleted.path));
  }

  TEST_CASE("trace: only the newest recovery traces are kept") {
    const TempFolder folder;
    const RunFolder run{folder.path};
    for (int i = 1; i <= 40; ++i)
      REQUIRE(write_trace_part(run, {"recovery-" + std::to_string(10'000'000 + i), 0, 1}, "n0", {})
                  .ok());
    REQUIRE(write_trace_part(run, {"step-00000001", 0, 1}, "n0", {}).ok());
    CHECK(trace_names(run).size() == kRecoveryTracesKept + 1);
    CHECK_FALSE(fs::exists(folder.path + "/traces/recovery-10000008"));
    CHECK(fs::exists(folder.path + "/traces/recovery-10000009/n0.jsonl"));
  }

  TEST_CASE("trace: a damaged part is an error with its line") {
    const TempFolder folder;
    const std::string path = folder.path + "/x.jsonl";
    const std::string header = R"({"trace":1,"who":"n0","host":"h","begin_ns":1,"end_ns":2})";
    for (const char* bad :
         {"", "x", "[1]", R"({"trace":2,"who":"n0","host":"h","begin_ns":1,"end_ns":2})"}) {
      std::ofstream(path) << bad << (*bad ? "\n" : "");
      CHECK(read_trace_part(path).status().code() == Code::bad_data);
    }
    for (const char* bad : {"[1,2,0,0,0,0,0,\"x\",\"y\"]", "{\"process\":1}", "[", "3"}) {
      std::ofstream(path) << header << "\n" << bad << "\n";
      CHECK(says(read_trace_part(path).status(), Code::bad_data, "x.jsonl:2"));
    }
    std::ofstream(path) << header << "\n"
                        << R"({"process":"p","pid":1,"full":false,"threads":[]})"
                        << "\n[1,-2,0,0,0,0,0,\"x\",\"y\"]\n";
    CHECK(read_trace_part(path).status().code() == Code::bad_data);
  }

  TEST_CASE("trace: the merged file has tracks per thread and communicator, arrows and phases") {
    using enum trace::Kind;
    const int64_t t = 1'100'000'000;
    auto supervisor = part("supervisor", "h", {event(sent, t, 10, "FenceGeneration", 5, 1)});
    auto n0 = part("n0", "h",
                   {event(span, t, 1000, "step"), event(span, t + 10, 500, "forward"),
                    event(collective, t + 20, 100, "all_gather", 64, 128, "shard@3"),
                    event(collective, t + 50, 100, "reduce_scatter", 1, 2, "shard@3"),
                    event(collective, t + 130, 10, "all_gather", 1, 2, "shard@3"),
                    event(received, t + 700, 20, "FenceGeneration", 5, 1),
                    event(received, t + 800, 20, "Lead", 5, 2)});
    n0.processes[0].events[1].number = 3;
    const std::vector<std::string> events = {
        R"({"time":0.5,"kind":"long ago"})",
        R"({"time":1.2,"incident":1,"phase":"detect","kind":"trainer_down","subject":"n0.0","reason":"killed"})",
        R"({"time":1.25,"incident":1,"phase":"fence","kind":"fenced","subject":"","reason":""})",
        R"({"time":1.5,"incident":1,"phase":"resume","kind":"training","subject":"","reason":""})",
        R"({"time":1.5,"incident":1,"phase":null,"kind":"recovered","subject":"x","reason":"n0.0: killed; lost 0 steps"})",
        "half a li"};
    const MergedTrace merged = merge_trace({n0, supervisor}, events);
    CHECK(merged.processes == 2);
    CHECK(merged.messages == 1);
    CHECK(merged.notes.empty());
    const json all = parsed(merged);

    std::map<int, std::string> names;
    for (const json& e : with(all, "name", "process_name")) names[e["pid"]] = e["args"]["name"];
    CHECK(names == std::map<int, std::string>{{1, "recovery"}, {2, "supervisor"}, {3, "n0"}});
    CHECK(with(all, "name", "forward 3").size() == 1);
    // The second collective overlaps the first, the third overlaps none.
    const auto gathers = with(all, "name", "all_gather");
    REQUIRE(gathers.size() == 2);
    CHECK(gathers[0]["tid"] == gathers[1]["tid"]);
    CHECK(gathers[0]["args"]["communicator"] == "shard@3");
    CHECK(gathers[0]["args"]["received_bytes"] == 128);
    CHECK(with(all, "name", "reduce_scatter").at(0)["tid"] != gathers[0]["tid"]);

    const auto starts = with(all, "ph", "s"), ends = with(all, "ph", "f");
    REQUIRE(starts.size() == 1);
    REQUIRE(ends.size() == 1);
    CHECK(starts[0]["id"] == ends[0]["id"]);
    CHECK(starts[0]["pid"] == 2);
    CHECK(ends[0]["pid"] == 3);

    const auto phases = with(all, "cat", "recovery");
    REQUIRE(phases.size() == 4);
    CHECK(phases[0]["name"] == "incident 1: n0.0");
    CHECK(phases[0]["args"]["summary"] == "n0.0: killed; lost 0 steps");
    CHECK(phases[0]["dur"] == doctest::Approx(300'000));
    CHECK(phases[2]["name"] == "fence");
    CHECK(phases[2]["dur"] == doctest::Approx(50'000));
    CHECK(phases[3]["ts"] == doctest::Approx(phases[2]["ts"].get<double>() + 50'000));
    CHECK(with(all, "name", "long ago").empty());
    CHECK(with(all, "name", "recovered").size() == 1);
  }

  TEST_CASE("trace: a host with another clock is corrected by its messages") {
    using enum trace::Kind;
    const int64_t t = 1'100'000'000, ahead = 5'000'000;
    // 1 us of transfer in both directions; one message takes longer.
    auto supervisor = part("supervisor", "a",
                           {event(sent, t, 10, "x", 1, 1), event(sent, t + 5000, 10, "x", 1, 2),
                            event(received, t + 11'000, 10, "y", 2, 1)});
    auto n1 = part("n1", "b",
                   {event(received, t + 1000 + ahead, 10, "x", 1, 1),
                    event(received, t + 8000 + ahead, 10, "x", 1, 2),
                    event(sent, t + 10'000 + ahead, 10, "y", 2, 1)});
    const MergedTrace merged = merge_trace({n1, supervisor}, {});
    REQUIRE(merged.notes.size() == 1);
    CHECK(merged.notes[0] == "the clock of b is 5.000 ms ahead of that of a; corrected");
    const json all = parsed(merged);
    const double sent_at = with(all, "name", "send x")[0]["ts"],
                 came_at = with(all, "name", "receive x")[0]["ts"];
    CHECK(came_at - sent_at == doctest::Approx(1));
    // Messages in one direction only give no estimate.
    supervisor.processes[0].events.pop_back();
    CHECK(merge_trace({n1, supervisor}, {}).notes.empty());
  }

  TEST_CASE("trace: a trace without parts is valid; a missing one is not_found") {
    const MergedTrace merged = merge_trace(std::vector<TracePart>{}, {});
    CHECK(parsed(merged).is_array());
    const TempFolder folder;
    CHECK(merge_trace(RunFolder{folder.path}, "step-00000001").status().code() == Code::not_found);
    CHECK(merge_trace(RunFolder{folder.path}, "..").status().code() == Code::not_found);
  }
}
