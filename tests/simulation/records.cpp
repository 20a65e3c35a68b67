// The journal of a supervisor: metrics.jsonl and ledger.jsonl, one line for each step and file. The
// journal looks at the term files, and writes a little later; then it syncs, and only then it sets
// its mark. It may be frozen between any two of these, and write when another supervisor leads. A
// write may fail and leave half a line; what was not synced is lost with its host. Which lines count
// is decided by actors/supervisor/records_end.hpp.
#include <algorithm>
#include <utility>

#include "tests/simulation/cluster.hpp"
#include "tests/simulation/invariants.hpp"

namespace simplescale::simulation {

namespace {
/// Spaces in place of half a line.
void blank(Disk::Line& half) {
  half = {{0, 0}, half.term, true, true, true};
}
}  // namespace

/// As StepLedger::record(): every step of the current history has its line.
void Cluster::record_step(Supervisor& by, uint64_t generation, uint64_t step) {
  by.recorded = step;
  by.recorded_generation = generation;
  by.undone.reset();
  if (!by.beyond.contains({generation, step, all_trainers}))
    by.journal.ledger.lines.push_back({generation, step});
  if (!by.beyond.contains({generation, step, ""}))
    by.journal.metrics.lines.push_back({generation, step});
  set_mark(by, step);
}

void Cluster::set_mark(Supervisor& by, uint64_t step) {
  by.journal.mark = step;
  if (options.bug != Bug::undone_marked)  // the steps after it were undone
    by.journal.marked = std::min(by.journal.marked, step);
  run_journal(by, random.between(100, 5000));
}

void Cluster::run_journal(Supervisor& by, Time delay) {
  if (by.journal.running || by.journal.stopped) return;
  by.journal.running = true;
  after(delay, [this, &by] { journal(by, JournalStep::look); });
}

void Cluster::journal(Supervisor& by, JournalStep step) {
  if (!by.up || ended) return;
  Journal& j = by.journal;
  const Time wakes = wakes_at(by);
  if (wakes > now) {
    after(wakes - now + random.between(1, 50) * ms, [this, &by, step] { journal(by, step); });
    return;
  }
  switch (step) {
    case JournalStep::look:
      if (by.term != disk.newest_term) {
        j.stopped = true;  // LEAD-1
        return;
      }
      if (freeze_journal_due && &by == leader()) {
        freeze_journal_due = false;
        hang_supervisor(random.between(1, 8) * second);
      }
      return journal(by, JournalStep::write);
    case JournalStep::write: {
      bool written = true;
      for (auto [own, file] : {std::pair(&j.ledger, &disk.ledger), {&j.metrics, &disk.metrics}}) {
        if (!written || own->written == own->lines.size()) continue;
        written = write_line(by, *own, *file);
        // The lines of a step are a piece; the journal looks before each of them.
        if (written) return journal(by, JournalStep::look);
      }
      if (written || options.bug == Bug::mark_without_line) {
        after(random.between(1, 50) * ms, [this, &by] { journal(by, JournalStep::sync); });
        if (options.bug == Bug::mark_unsynced) settle_journal(by);
      } else {
        after(200 * ms, [this, &by] { journal(by, JournalStep::look); });
      }
      return;
    }
    case JournalStep::sync:
      if (disk.failing_until > now && options.bug != Bug::mark_without_line) {
        j.ledger.written = j.metrics.written = 0;  // all is written again
        after(200 * ms, [this, &by] { journal(by, JournalStep::look); });
        return;
      }
      for (auto* lines : {&disk.ledger, &disk.metrics})
        for (auto line = lines->rbegin(); line != lines->rend() && !line->synced; ++line)
          line->synced = line->term == by.term;
      if (by.term != disk.newest_term) {
        j.stopped = true;  // LEAD-1
        return;
      }
      if (j.page) disk.state = std::exchange(j.page, nullptr);
      disk.generation = std::max(disk.generation, j.generation);
      settle_journal(by);
      j.running = false;
      if (j.mark || !j.ledger.lines.empty() || !j.metrics.lines.empty())
        run_journal(by, random.between(100, 5000));
      return;
  }
}

/// Appends the next line that is not in the file yet. False: the disk is full.
bool Cluster::write_line(const Supervisor& by, Journal::File& own, std::vector<Disk::Line>& file) {
  const RecordLine& line = own.lines[own.written];
  const bool fails = disk.failing_until > now;
  if (fails && (own.half || random.chance(50))) return false;
  const bool after_half = !file.empty() && !file.back().whole && !file.back().ended;
  const bool rest = after_half && own.half && file.back().term == by.term;
  // A deposed journal has looked at the end of the file before it was frozen.
  const bool mends = by.term == disk.newest_term && !fails &&
                     options.bug != Bug::half_line_continued && options.bug != Bug::half_line_left;
  if (after_half && !rest && mends) blank(file.back());
  if (rest)
    file.back() = {line, by.term, true, true, false};
  else if ((after_half || own.half) && !mends)  // one line with the half before it, or half a line
    file.push_back({line, by.term, false, true, false});
  else
    file.push_back({line, by.term, !fails, !fails, false});
  own.half = fails;
  if (!fails) ++own.written;
  return !fails;
}

/// What was written is on the disk.
void Cluster::settle_journal(Supervisor& by) {
  Journal& j = by.journal;
  for (Journal::File* file : {&j.ledger, &j.metrics}) {
    const size_t done = options.bug == Bug::mark_without_line ? file->lines.size() : file->written;
    file->lines.erase(file->lines.begin(), file->lines.begin() + static_cast<long>(done));
    file->written = 0;
  }
  // A mark that came after these lines waits for the next ones.
  if (!j.mark || !j.ledger.lines.empty() || !j.metrics.lines.empty()) return;
  mark(by, *std::exchange(j.mark, std::nullopt));
  invariants->records_marked(by, by.journal.marked);
}

/// The journal's mark changes: agents forget reports of steps that the records hold.
void Cluster::mark(Supervisor& by, uint64_t step) {
  by.journal.marked = step;
  for (const auto& [node, link] : by.links)
    if (connected(by, node)) forget_reports(nodes[node], step);
}

void Cluster::forget_reports(Node& node, uint64_t step) {
  std::erase_if(node.reports, [&](const StepReport& report) { return report.step <= step; });
}

/// The host of a supervisor dies: what its journal has not synced may be lost.
void Cluster::lose_unsynced(uint64_t term) {
  if (!random.chance(50)) return;
  for (auto* lines : {&disk.ledger, &disk.metrics})
    while (!lines->empty() && !lines->back().synced && lines->back().term == term)
      lines->pop_back();
}

/// What readers and new supervisors find.
RecordedSteps Cluster::recorded_steps() const {
  RecordedSteps steps;
  for (const Disk::Line& line : disk.metrics)
    if (line.whole && line.line.step > 0)
      steps.metrics.insert({line.line.generation, line.line.step});
  for (const Disk::Line& line : disk.ledger)
    if (line.whole && line.line.step > 0)
      steps.ledger[{line.line.generation, line.line.step}][all_trainers] = rows;
  return steps;
}

/// A new supervisor makes half a line harmless.
void Cluster::mend_records(const Claim& claim) {
  for (auto* lines : {&disk.ledger, &disk.metrics}) {
    const size_t had = lines == &disk.ledger ? claim.lines.first : claim.lines.second;
    if (options.bug == Bug::prepares_unfenced && lines->size() > had) lines->resize(had);
    if (options.bug == Bug::records_cut && claim.from)
      while (!lines->empty() && lines->back().line.step > claim.from->job.committed_step)
        lines->pop_back();
    if (options.bug == Bug::half_line_left || lines->empty() || lines->back().ended) continue;
    blank(lines->back());
  }
}

}  // namespace simplescale::simulation
