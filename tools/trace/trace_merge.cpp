#include "tools/trace/trace_merge.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "runtime/base/json_members.hpp"
#include "runtime/base/parse_json.hpp"
#include "runtime/config/secrets.hpp"
#include "tools/report/records.hpp"

namespace simplescale {

using nlohmann::json;
using trace::Kind;

namespace {

/// Writes Chrome's trace format, JSON that Perfetto (ui.perfetto.dev) and chrome://tracing read.
class ChromeTrace {
 public:
  /// All times are in ns, of one clock, and not before origin_ns.
  explicit ChromeTrace(int64_t origin_ns) : origin_ns_(origin_ns) {}

  /// Names a process and its threads. label: shown beside the name; "": none. Processes are ordered
  /// by pid, threads by `order`.
  void process(int pid, const std::string& name, const std::string& label) {
    add("M", pid, 0, "process_name", {{"args", {{"name", name}}}});
    if (!label.empty()) add("M", pid, 0, "process_labels", {{"args", {{"labels", label}}}});
    add("M", pid, 0, "process_sort_index", {{"args", {{"sort_index", pid}}}});
  }
  void thread(int pid, int tid, const std::string& name, int order) {
    add("M", pid, tid, "thread_name", {{"args", {{"name", name}}}});
    add("M", pid, tid, "thread_sort_index", {{"args", {{"sort_index", order}}}});
  }
  /// Spans of one thread must nest.
  void span(int pid, int tid, const char* category, const std::string& name, int64_t begin_ns,
            int64_t duration_ns, const json& args) {
    add("X", pid, tid, name,
        {{"cat", category},
         {"ts", us(begin_ns)},
         {"dur", static_cast<double>(duration_ns) / 1e3},
         {"args", args}});
    end_ns_ = std::max(end_ns_, begin_ns + duration_ns);
    ++events_;
  }
  void instant(int pid, int tid, const std::string& name, int64_t at_ns, const json& args) {
    add("i", pid, tid, name, {{"s", "t"}, {"cat", "event"}, {"ts", us(at_ns)}, {"args", args}});
    end_ns_ = std::max(end_ns_, at_ns);
    ++events_;
  }
  /// One end of arrow `id` between two spans. A span of the thread must begin at at_ns.
  void flow(bool start, uint64_t id, int pid, int tid, const std::string& name, int64_t at_ns) {
    json event = {{"id", id}, {"cat", "message"}, {"ts", us(at_ns)}};
    if (!start) event["bp"] = "e";
    add(start ? "s" : "f", pid, tid, name, std::move(event));
  }

  /// Number of spans and instants.
  size_t events() const { return events_; }
  /// Time from the origin to the end of the last event.
  double ms() const { return static_cast<double>(end_ns_ - origin_ns_) / 1e6; }
  /// The file's text.
  std::string text() const {
    return "{\"displayTimeUnit\":\"ms\",\"baseTimeNanoseconds\":" + std::to_string(origin_ns_) +
           ",\"traceEvents\":[\n" + text_ + "\n]}\n";
  }

 private:
  double us(int64_t ns) const { return static_cast<double>(ns - origin_ns_) / 1e3; }
  void add(const char* kind, int pid, int tid, const std::string& name, json event) {
    event.update({{"ph", kind}, {"pid", pid}, {"tid", tid}, {"name", name}});
    if (!text_.empty()) text_ += ",\n";
    text_ += event.dump(-1, ' ', true, json::error_handler_t::replace);
  }
  const int64_t origin_ns_;
  int64_t end_ns_ = origin_ns_;
  size_t events_ = 0;
  std::string text_;
};

// --- Clocks: how far those of the hosts differ, estimated from messages ---

/// Identifies a message at both ends: connection id, number of the message; {0, 0}: unknown.
using MessageKey = std::pair<uint64_t, uint64_t>;
MessageKey key_of(const TraceEvent& e) {
  return {e.a, e.b};
}

struct Sent {
  const TracePart* part;
  const TraceEvent* event;
};
std::map<MessageKey, Sent> all_sent(const std::vector<TracePart>& parts) {
  std::map<MessageKey, Sent> sent;
  for (const TracePart& part : parts)
    for (const TraceProcess& process : part.processes)
      for (const TraceEvent& e : process.events)
        if (e.kind == Kind::sent && e.a != 0) sent[key_of(e)] = {&part, &e};
  return sent;
}

/// How far each host's clock is ahead of the first part's, in ns: half the difference of the
/// shortest transfer times in the two directions. Only hosts with messages in both directions.
std::map<std::string, int64_t> clock_errors(const std::vector<TracePart>& parts) {
  struct Shortest {
    std::optional<int64_t> there, back;
  };
  std::map<std::string, Shortest> hosts;
  const std::string& reference = parts.front().host;
  const auto sent = all_sent(parts);
  auto shorten = [](std::optional<int64_t>& best, int64_t ns) {
    best = best ? std::min(*best, ns) : ns;
  };
  for (const TracePart& part : parts)
    for (const TraceProcess& process : part.processes)
      for (const TraceEvent& e : process.events) {
        const auto from = e.kind == Kind::received ? sent.find(key_of(e)) : sent.end();
        if (from == sent.end() || from->second.part->host == part.host) continue;
        const int64_t ns = e.begin_ns - from->second.event->begin_ns;
        if (from->second.part->host == reference) shorten(hosts[part.host].there, ns);
        if (part.host == reference) shorten(hosts[from->second.part->host].back, ns);
      }
  std::map<std::string, int64_t> errors;
  for (const auto& [host, shortest] : hosts)
    if (shortest.there && shortest.back) errors[host] = (*shortest.there - *shortest.back) / 2;
  return errors;
}

/// Shifts the events of every host to the clock of the first part's host. Adds a note for each host
/// that it shifts.
void align_clocks(std::vector<TracePart>& parts, std::vector<std::string>& notes) {
  const auto errors = clock_errors(parts);
  for (const auto& [host, ns] : errors)
    notes.push_back(fmt::format("the clock of {} is {:.3f} ms {} that of {}; corrected", host,
                                std::abs(static_cast<double>(ns)) / 1e6,
                                ns > 0 ? "ahead of" : "behind", parts.front().host));
  for (TracePart& part : parts)
    if (const auto error = errors.find(part.host); error != errors.end())
      for (TraceProcess& process : part.processes)
        for (TraceEvent& e : process.events) e.begin_ns -= error->second;
}

constexpr int kRecoveryPid = 1, kIncidents = 1, kEvents = 2;
constexpr int kFirstLane = 1000;  // first thread id of the collectives' tracks

/// Sorts the supervisor first, then n9 before n10.
std::pair<size_t, std::string> order_of(const TracePart& part) {
  return {part.who == "supervisor" ? 0 : part.who.size(), part.who};
}

// --- Incidents ---

struct Line {
  int64_t at_ns = 0;
  json fields;
  std::string text(const char* key) const { return text_of(fields, key); }
  json details() const {
    return {{"subject", text("subject")},
            {"reason", text("reason")},
            {"step", fields.value("step", json())}};
  }
};

struct Incident {
  json number;
  std::vector<Line> phases;
  std::string summary;
};

std::vector<Line> parse_events(const std::vector<std::string>& texts, int64_t begin_ns,
                               int64_t end_ns) {
  std::vector<Line> lines;
  for (const std::string& text : texts) {
    json fields = parse_json(text);
    const double s = real_of(fields, "time");
    if (!(s > 0 && s < 4e9)) continue;
    const auto at_ns = static_cast<int64_t>(std::llround(s * 1e9));
    // Incidents that begin before the trace or end after it are cut.
    if (at_ns >= begin_ns && at_ns <= end_ns) lines.push_back({at_ns, std::move(fields)});
  }
  std::ranges::stable_sort(lines, {}, &Line::at_ns);
  return lines;
}

std::vector<Incident> incidents_of(const std::vector<Line>& lines) {
  std::vector<Incident> incidents;
  bool open = false;
  for (const Line& line : lines) {
    const json number = line.fields.value("incident", json());
    if (number.is_null()) continue;
    const bool another = !open || incidents.back().number != number;
    if (const std::string phase = line.text("phase"); !phase.empty()) {
      if (another) incidents.push_back({number, {}, ""});
      open = true;
      incidents.back().phases.push_back(line);
    } else if (!another && line.text("kind") == "recovered") {
      incidents.back().summary = line.text("reason");
      open = false;
    }
  }
  return incidents;
}

// --- Tracks ---

void write_recovery(ChromeTrace& out, const std::vector<Line>& lines) {
  out.process(kRecoveryPid, "recovery", "");
  out.thread(kRecoveryPid, kIncidents, "incidents", 1);
  out.thread(kRecoveryPid, kEvents, "events", 2);
  for (const Incident& incident : incidents_of(lines)) {
    const Line& first = incident.phases.front();
    out.span(kRecoveryPid, kIncidents, "recovery",
             "incident " + incident.number.dump() + ": " + first.text("subject"), first.at_ns,
             incident.phases.back().at_ns - first.at_ns, {{"summary", incident.summary}});
    int64_t since_ns = first.at_ns;
    for (const Line& line : incident.phases) {
      json args = line.details();
      args["kind"] = line.text("kind");
      out.span(kRecoveryPid, kIncidents, "recovery", line.text("phase"), since_ns,
               line.at_ns - since_ns, args);
      since_ns = line.at_ns;
    }
  }
  for (const Line& line : lines)
    out.instant(kRecoveryPid, kEvents, line.text("kind"), line.at_ns, line.details());
}

/// "shard@7" -> "shard"
std::string communicator_of(const TraceEvent& e) {
  return e.detail.substr(0, e.detail.find('@'));
}

/// Distributes intervals that may overlap over as few tracks as possible.
class Lanes {
 public:
  explicit Lanes(ChromeTrace& out, int pid) : out_(out), pid_(pid) {}
  int lane(const std::string& name, const TraceEvent& e) {
    std::vector<Lane>& lanes = lanes_[name];
    auto free = std::ranges::find_if(lanes, [&](const Lane& l) { return l.until <= e.begin_ns; });
    if (free == lanes.end()) {
      const int tid = kFirstLane + next_++;
      out_.thread(pid_, tid,
                  lanes.empty() ? name : name + " (" + std::to_string(lanes.size() + 1) + ")", tid);
      lanes.push_back({tid, 0});
      free = lanes.end() - 1;
    }
    free->until = e.begin_ns + e.duration_ns;
    return free->tid;
  }

 private:
  struct Lane {
    int tid;
    int64_t until;
  };
  ChromeTrace& out_;
  const int pid_;
  int next_ = 0;
  std::map<std::string, std::vector<Lane>> lanes_;
};

const char* category_of(Kind kind) {
  switch (kind) {
    case Kind::collective:
      return "collective";
    case Kind::sent:
    case Kind::received:
      return "message";
    default:
      return "work";
  }
}

std::string name_of(const TraceEvent& e) {
  switch (e.kind) {
    case Kind::span:
      return e.number >= 0 ? e.name + " " + std::to_string(e.number) : e.name;
    case Kind::sent:
      return "send " + e.name;
    case Kind::received:
      return "receive " + e.name;
    default:
      return e.name;
  }
}

json args_of(const TraceEvent& e) {
  json args = json::object();
  switch (e.kind) {
    case Kind::collective:
      args = {{"communicator", e.detail},
              {"operation", e.number},
              {"sent_bytes", e.a},
              {"received_bytes", e.b}};
      break;
    case Kind::sent:
    case Kind::received:
      args = {{"peer", e.detail}, {"bytes", e.number}};
      break;
    default:
      if (!e.detail.empty()) args = {{"detail", e.detail}};
  }
  if (e.unfinished) args["unfinished"] = true;
  return args;
}

/// An event and its track in the merged trace.
struct Place {
  int pid, tid;
  const TraceEvent* event;
};

void write_process(ChromeTrace& out, int pid, TraceProcess& process, std::vector<Place>& messages) {
  std::ranges::stable_sort(process.events, {}, &TraceEvent::begin_ns);
  std::vector<bool> named(UINT16_MAX + 1);
  Lanes lanes(out, pid);
  for (const TraceEvent& e : process.events) {
    if (e.kind == Kind::collective) {
      out.span(pid, lanes.lane(communicator_of(e), e), category_of(e.kind), name_of(e), e.begin_ns,
               e.duration_ns, args_of(e));
      continue;
    }
    const int tid = e.thread + 1;
    if (!named[e.thread]) {
      named[e.thread] = true;
      const std::string name =
          e.thread < process.threads.size() ? process.threads[e.thread] : "thread";
      out.thread(pid, tid, name, name == "compute" ? 0 : kFirstLane + 100 + tid);
    }
    if (e.kind == Kind::instant) {
      out.instant(pid, tid, name_of(e), e.begin_ns, args_of(e));
      continue;
    }
    out.span(pid, tid, category_of(e.kind), name_of(e), e.begin_ns, e.duration_ns, args_of(e));
    if (e.kind != Kind::span && e.a != 0) messages.push_back({pid, tid, &e});
  }
}

size_t write_arrows(ChromeTrace& out, const std::vector<Place>& messages) {
  std::map<MessageKey, const Place*> sent;
  for (const Place& place : messages)
    if (place.event->kind == Kind::sent) sent[key_of(*place.event)] = &place;
  uint64_t id = 0;
  for (const Place& to : messages) {
    if (to.event->kind != Kind::received) continue;
    const auto found = sent.find(key_of(*to.event));
    if (found == sent.end()) continue;  // sent before the trace, or by a process outside it
    const Place& from = *found->second;
    ++id;
    out.flow(true, id, from.pid, from.tid, from.event->name, from.event->begin_ns);
    out.flow(false, id, to.pid, to.tid, to.event->name, to.event->begin_ns);
    sent.erase(found);
  }
  return id;
}

}  // namespace

MergedTrace merge_trace(std::vector<TracePart> parts, const std::vector<std::string>& events) {
  MergedTrace merged;
  std::ranges::sort(parts, {}, order_of);
  int64_t begin_ns = INT64_MAX, end_ns = INT64_MIN;
  if (!parts.empty()) align_clocks(parts, merged.notes);
  for (const TracePart& part : parts) {
    begin_ns = std::min(begin_ns, part.begin_ns);
    end_ns = std::max(end_ns, part.end_ns);
  }
  const std::vector<Line> lines = parse_events(events, begin_ns, end_ns);
  int64_t origin_ns = begin_ns;
  for (const TracePart& part : parts)
    for (const TraceProcess& process : part.processes)
      for (const TraceEvent& e : process.events) origin_ns = std::min(origin_ns, e.begin_ns);
  ChromeTrace out(parts.empty() ? 0 : origin_ns);
  write_recovery(out, lines);
  std::vector<Place> messages;
  int pid = kRecoveryPid;
  for (TracePart& part : parts)
    for (TraceProcess& process : part.processes) {
      if (process.events.empty()) continue;
      out.process(++pid, process.name, part.host + ", process " + std::to_string(process.pid));
      write_process(out, pid, process, messages);
      ++merged.processes;
      int64_t oldest_ns = INT64_MAX;
      for (const TraceEvent& e : process.events) oldest_ns = std::min(oldest_ns, e.begin_ns);
      if (process.full && oldest_ns > part.begin_ns)
        merged.notes.push_back(
            process.name + ": the first " +
            fmt::format("{:.0f}", static_cast<double>(oldest_ns - begin_ns) / 1e6) +
            " ms are missing; raise metrics.trace_events to keep more events");
    }
  merged.messages = write_arrows(out, messages);
  merged.events = out.events();
  merged.ms = out.ms();
  merged.json = out.text();
  return merged;
}

Result<MergedTrace> merge_trace(const RunFolder& run, const std::string& name) {
  namespace fs = std::filesystem;
  const std::string folder = run.traces() + "/" + name;
  std::error_code error;
  if (!is_trace_name(name) || !fs::is_directory(folder, error))
    return Status(Code::not_found, run.path + " has no trace named " + name);
  std::vector<TracePart> parts;
  std::vector<std::string> notes, paths;
  for (fs::directory_iterator i(folder, error), end; !error && i != end; i.increment(error))
    if (i->path().extension() == ".jsonl") paths.push_back(i->path());
  for (const std::string& path : paths) {
    auto part = read_trace_part(path);
    if (part.ok())
      parts.push_back(part.take());
    else
      notes.push_back(part.status().message() + "; this part is left out");
  }
  if (parts.empty())
    return Status(Code::bad_data,
                  folder + " has no readable part" + (notes.empty() ? "" : ": " + notes.front()));
  std::vector<std::string> events;
  std::string line;
  for (LineFollower lines(run.events()); lines.next(line);) events.push_back(shown_events(line));
  MergedTrace merged = merge_trace(std::move(parts), events);
  merged.notes.insert(merged.notes.begin(), notes.begin(), notes.end());
  return merged;
}

}  // namespace simplescale
