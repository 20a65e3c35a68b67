#include "runtime/program/program.hpp"

#include <algorithm>

namespace simplescale {
namespace {

/// Which buffer of which pool holds which unit, as the tasks so far leave it.
class Slots {
 public:
  Slots(const std::vector<size_t>& pool_of_unit, const std::vector<BufferPool>& pools)
      : pool_of_unit_(pool_of_unit) {
    for (size_t pool = 0; pool < pools.size(); ++pool)
      slots_.insert(slots_.end(), pools[pool].slots, Slot{.pool = pool});
  }
  bool empty() const { return slots_.empty(); }
  std::optional<size_t> find(size_t unit) const {
    for (size_t i = 0; i < slots_.size(); ++i)
      if (slots_[i].unit == unit) return i;
    return {};
  }
  /// The buffer of the unit's pool that was used least recently, but not that of `current`.
  size_t oldest(size_t unit, std::optional<size_t> current) const {
    std::optional<size_t> best;
    for (size_t i = 0; i < slots_.size(); ++i) {
      const Slot& slot = slots_[i];
      if (slot.pool != pool_of_unit_[unit] || (current && slot.unit == current)) continue;
      if (!best || slot.last_use < slots_[*best].last_use) best = i;
    }
    SS_ASSERT(best);  // no two successive units share a pool of one buffer
    return *best;
  }
  std::optional<size_t> held_by(size_t slot) const { return slots_[slot].unit; }
  void use(size_t slot, std::optional<size_t> unit) {
    slots_[slot].unit = unit;
    slots_[slot].last_use = ++uses_;
  }

 private:
  struct Slot {
    size_t pool = 0;
    std::optional<size_t> unit = {};
    uint64_t last_use = 0;
  };
  const std::vector<size_t>& pool_of_unit_;
  std::vector<Slot> slots_;
  uint64_t uses_ = 0;
};

bool computes(Op op) {
  return op >= Op::embed && op <= Op::backward_embed;
}
/// The passes of a turn, unit by unit. k: its first micro-batch. hashed: in the last turn's backward
/// pass, the hash of the committed state begins before this unit.
void add_passes(const ProgramOptions& o, size_t turn, int k, bool backward, size_t hashed,
                Program& program) {
  const size_t head = o.units - 1;
  const auto add_one = [&](Op op, size_t unit, int frame) {
    program.push_back({.op = op,
                       .unit = unit,
                       .turn = static_cast<int>(turn),
                       .micro_batch = k + frame,
                       .frame = frame});
  };
  const auto add = [&](Op op, size_t unit) {
    for (int frame = 0; frame < o.turns[turn]; ++frame) add_one(op, unit, frame);
  };
  add(Op::embed, 0);
  for (size_t unit = 1; unit < head; ++unit) {
    for (int frame = 0; frame < o.turns[turn]; ++frame) {
      add_one(Op::forward, unit, frame);
      // Tokens travel while the next micro-batch passes the block.
      if (o.is_resident(unit + 1)) add_one(Op::route, unit + 1, frame);
    }
    if (o.is_resident(unit)) add(Op::combine, unit);
  }
  if (!backward) return add(Op::evaluate, head);
  add(Op::head, head);
  for (size_t unit = head - 1; unit > 0; --unit) {
    if (unit == hashed && turn + 1 == o.turns.size()) program.push_back({.op = Op::hash});
    if (o.is_resident(unit)) add(Op::route_backward, unit);
    add(Op::backward, unit);
    if (o.is_resident(unit)) add(Op::combine_backward, unit);
  }
  add(Op::backward_embed, 0);
  add(Op::record, 0);
}

/// Gathers each unit one ahead of its use, unless a buffer still holds it.
Program with_gathers(const Program& passes, const ProgramOptions& o, const BufferPlan& plan) {
  Slots slots(plan.pool_of_unit_gather, plan.gather);
  if (slots.empty()) return passes;
  Program program;
  const auto gather = [&](size_t unit, std::optional<size_t> current) {
    if (slots.find(unit)) return;
    const size_t slot = slots.oldest(unit, current);
    slots.use(slot, unit);
    program.push_back({.op = Op::gather, .unit = unit, .slot = slot});
  };
  for (size_t i = 0; i < passes.size(); ++i) {
    const Task& task = passes[i];
    if (needs_unit(task)) {
      if (const auto second = second_unit(task, o)) {
        gather(*second, {});
        slots.use(*slots.find(*second), *second);
      }
      gather(task.unit, {});
      slots.use(*slots.find(task.unit), task.unit);
      size_t next = i + 1;
      while (next < passes.size() && (!needs_unit(passes[next]) || passes[next].unit == task.unit))
        ++next;
      if (next < passes.size()) gather(passes[next].unit, task.unit);
    }
    program.push_back(task);
  }
  return program;
}

/// Reduces each turn's gradients of a unit after the passes that make them, and waits for the
/// reduction before. A wave's gradients are added first, if there is a buffer for their sum. After
/// the last turn the groups exchange their sums. With a state in host memory a unit's total gradient
/// is downloaded when the next unit's is exchanged, or when its window is needed.
Program with_reductions(const Program& passes, const ProgramOptions& o, const BufferPlan& plan) {
  Slots slots(plan.pool_of_unit_gradient, plan.gradient),
      sums(plan.pool_of_unit_gradient, plan.sums), windows(plan.pool_of_unit_window, plan.windows);
  std::optional<Task> pending;         // a reduction
  std::optional<size_t> undownloaded;  // a unit that is exchanged
  Program program;
  const auto download = [&] {
    if (undownloaded) program.push_back({.op = Op::download, .unit = *undownloaded});
    undownloaded.reset();
  };
  const auto settle = [&] {
    if (!pending) return;
    if (plan.sums_in_background) {
      program.push_back(*pending);
      program.back().op = Op::reduced;
    }
    const bool last = pending->turn + 1 == static_cast<int>(o.turns.size()) &&
                      pending->frame + 1 == o.turns.back();
    const size_t unit = pending->unit;
    pending.reset();
    if (!last) return;
    program.push_back({.op = Op::exchange, .unit = unit});
    download();
    if (plan.through_host && unit < o.units) undownloaded = unit;
  };
  const auto take_window = [&](size_t unit) {
    if (windows.empty()) return Task::kNone;
    if (const auto window = windows.find(unit)) return *window;
    const size_t window = windows.oldest(unit, {});
    if (const auto held = windows.held_by(window)) {
      if (pending && pending->unit == *held) settle();
      if (undownloaded == held) download();
      program.push_back({.op = Op::downloaded, .unit = *held});
    }
    windows.use(window, unit);
    return window;
  };
  const auto take = [&](size_t unit) -> size_t {
    if (slots.empty()) return Task::kNone;
    const size_t slot = slots.oldest(unit, {});
    if (pending && pending->sum == Task::kNone && pending->slot == slot) settle();
    slots.use(slot, unit);
    return slot;
  };
  const auto take_sum = [&](size_t unit) {
    const size_t sum = sums.oldest(unit, {});
    if (pending && pending->sum == sum) settle();
    sums.use(sum, unit);
  };
  const auto reduce = [&](Task task, size_t unit, size_t slot) {
    task.unit = unit;
    task.slot = slot;
    task.slot2 = Task::kNone;
    const int wave = o.turns[static_cast<size_t>(task.turn)];
    if (wave > 1 && !sums.empty()) {
      task.op = Op::add;
      task.sum = *sums.find(unit);
      program.push_back(task);
      if (task.frame + 1 < wave) return;
    }
    task.op = Op::reduce;
    task.window = take_window(unit);
    program.push_back(task);
    if (plan.sums_in_background) settle();  // the one before
    pending = task;
    if (!plan.sums_in_background) settle();
  };
  for (Task task : passes) {
    const bool makes =
        task.op == Op::head || task.op == Op::backward || task.op == Op::backward_embed;
    const bool tied_head = task.op == Op::head && o.tied;
    if (makes && task.frame == 0 && o.turns[static_cast<size_t>(task.turn)] > 1 && !sums.empty()) {
      take_sum(task.unit);
      if (tied_head) take_sum(o.units);
    }
    if (makes) task.slot = take(task.unit);
    if (tied_head) task.slot2 = take(o.units);
    program.push_back(task);
    if (!makes) continue;
    reduce(task, task.unit, task.slot);
    if (tied_head) reduce(task, o.units, task.slot2);
  }
  settle();
  download();
  return program;
}

}  // namespace

ProgramOptions program_options(const std::vector<Unit>& units, bool tied, bool resident) {
  ProgramOptions options{.units = units.size(), .tied = tied, .resident = resident};
  for (size_t unit = 0; unit < units.size(); ++unit)
    if (units[unit].kind == Unit::Kind::experts) options.of_experts.push_back(unit);
  return options;
}

std::optional<size_t> second_unit(const Task& task, const ProgramOptions& o) {
  if (o.tied && (task.op == Op::head || task.op == Op::evaluate)) return 0;
  const Op reads_block = o.resident ? Op::route_backward : Op::backward;
  if (task.op == reads_block && std::ranges::binary_search(o.of_experts, task.unit))
    return task.unit - 1;
  return {};
}

bool needs_unit(const Task& task) {
  return computes(task.op) && task.op != Op::backward_embed && task.op != Op::route &&
         task.op != Op::combine && task.op != Op::combine_backward;
}

Program step_program(const ProgramOptions& options, const BufferPlan& plan) {
  Program passes;
  int k = 0;
  for (size_t turn = 0; turn < options.turns.size(); k += options.turns[turn++])
    add_passes(options, turn, k, true, plan.through_host ? options.units - 2 : 1, passes);
  passes.push_back({.op = Op::check});  // while the last sum is made
  Program program = with_reductions(with_gathers(passes, options, plan), options, plan);
  program.push_back({.op = Op::finish});
  for (const Op op : {Op::vote, Op::update, Op::commit}) program.push_back({.op = op});
  return program;
}

Program loss_program(const ProgramOptions& options, const BufferPlan& plan) {
  Program passes;
  add_passes(options, 0, 0, false, 1, passes);
  return with_gathers(passes, options, plan);
}

const char* to_string(Op op) {
  static constexpr const char* kNames[] = {
      "gather",         "embed",      "route",          "forward",  "combine",
      "head",           "evaluate",   "route_backward", "backward", "combine_backward",
      "backward_embed", "add",        "reduce",         "reduced",  "exchange",
      "download",       "downloaded", "record",         "hash",     "check",
      "finish",         "vote",       "update",         "commit"};
  return kNames[static_cast<size_t>(op)];
}

std::string to_text(const Program& program, const std::vector<Unit>& units) {
  std::string text;
  for (const Task& task : program) {
    text += to_string(task.op);
    if (task.op < Op::hash)
      text += ' ' + (task.unit < units.size() ? units[task.unit].name : "lm_head");
    if (computes(task.op) || task.op == Op::add || task.op == Op::reduce || task.op == Op::record)
      text += ", micro-batch " + std::to_string(task.micro_batch);
    if (task.sum != Task::kNone)
      text += ", sum " + std::to_string(task.sum);
    else if ((task.op == Op::gather || task.op == Op::reduce || task.op == Op::reduced) &&
             task.slot != Task::kNone)
      text += ", buffer " + std::to_string(task.slot);
    text += '\n';
  }
  return text;
}

}  // namespace simplescale
