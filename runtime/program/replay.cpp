#include "runtime/program/replay.hpp"

#include <algorithm>
#include <map>
#include <optional>
#include <set>

namespace simplescale {
namespace {

/// The bytes of buffers that are as large as the most that they ever hold.
class Buffers {
 public:
  void hold(size_t buffer, size_t bytes) { most_[buffer] = std::max(most_[buffer], bytes); }
  size_t bytes() const {
    size_t sum = 0;
    for (const auto& [buffer, bytes] : most_) sum += bytes;
    return sum;
  }

 private:
  std::map<size_t, size_t> most_;
};

/// The nodes of a sum in tree order.
struct Nodes {
  std::vector<TreeNode> nodes;
  size_t most = 0;
  void add(const std::vector<TreeNode>& more) {
    nodes.insert(nodes.end(), more.begin(), more.end());
    nodes = merged(nodes);
    most = std::max(most, nodes.size());
  }
};

}  // namespace

BufferBytes replayed_bytes(const Program& program, const ShardLayout& layout, DType precision,
                           const Shares& shares, uint64_t group) {
  const size_t size = bytes_of(precision);
  const auto part = [&](size_t unit) {  // lm_head's part of tied embeddings is as large as they are
    return layout.count[unit < layout.count.size() ? unit : 0];
  };
  const auto whole = [&](size_t unit) { return part(unit) * layout.shards; };
  std::set<size_t> resident;  // units of experts of which a trainer has its own only
  for (const Task& task : program)
    if (task.op == Op::route) resident.insert(task.unit);
  Buffers gathered, gradients, sums, slices, further, totals;
  std::map<size_t, Nodes> waves, slice_of;
  std::map<size_t, size_t> window_of;
  bool tied = false;
  const auto gradient = [&](size_t unit, size_t slot) {
    if (slot != Task::kNone) gradients.hold(slot, whole(unit) * size);
  };
  for (const Task& task : program) {
    const auto leaf = [&]() -> std::vector<TreeNode> {
      return {{0, shares.leaf(group, 0, static_cast<uint64_t>(task.micro_batch))}};
    };
    switch (task.op) {
      case Op::gather:
        gathered.hold(task.slot,
                      (resident.contains(task.unit) ? part(task.unit) : whole(task.unit)) * size);
        break;
      case Op::head:
        tied = task.slot2 != Task::kNone;
        gradient(layout.count.size(), task.slot2);
        [[fallthrough]];
      case Op::backward:
      case Op::backward_embed:
        gradient(task.unit, task.slot);
        break;
      case Op::add: {
        Nodes& wave = waves[task.sum];
        if (task.frame == 0) wave = {};
        wave.add(leaf());
        sums.hold(task.sum, wave.most * whole(task.unit) * sizeof(float));
        break;
      }
      case Op::reduce: {
        const std::vector<TreeNode> nodes = shares.turn(group, static_cast<uint64_t>(task.turn));
        const size_t buffer = window_of[task.unit] =
            task.window == Task::kNone ? task.unit : task.window;
        if (nodes.empty()) break;
        Nodes& slice = slice_of[task.unit];
        slice.add(layout.shards == 1 ? leaf() : nodes);
        const size_t bytes = part(task.unit) * sizeof(float);
        const bool apart = task.window != Task::kNone && layout.shards == 1;  // further digits
        slices.hold(buffer, (apart ? 1 : slice.most) * bytes);
        if (apart)
          further.hold(tied && task.unit + 1 == layout.count.size() ? 1 : 0,
                       (slice.most - 1) * bytes);
        break;
      }
      case Op::exchange:
        if (shares.groups() > 1) totals.hold(window_of[task.unit], part(task.unit) * sizeof(float));
        break;
      default:
        break;
    }
  }
  return {.gather = gathered.bytes(),
          .gradient = gradients.bytes(),
          .sums = sums.bytes(),
          .slices = slices.bytes() + further.bytes() + totals.bytes()};
}

namespace {

std::string text_of(const Task& task) {
  return std::string(to_string(task.op)) + " of unit " + std::to_string(task.unit) + " in turn " +
         std::to_string(task.turn);
}

/// The collectives of an axis, each begun by all its ranks in the same order.
class Axis {
 public:
  explicit Axis(size_t ranks) : started_(ranks) {}

  /// A rank of the axis starts its next collective at that time. Returns its number.
  Result<size_t> start(size_t rank, const Task& task, double at, double cost) {
    const size_t number = started_[rank]++;
    if (number == works_.size()) works_.push_back({task, cost});
    Work& work = works_[number];
    if (work.task.op != task.op || work.task.unit != task.unit || work.task.turn != task.turn)
      return Status(Code::internal,
                    "starts " + text_of(task) + " where another one starts " + text_of(work.task));
    work.begin = std::max(work.begin, at);
    ++work.ranks;
    return number;
  }
  /// Its begin and end, once all ranks have started it and those before.
  std::optional<std::pair<double, double>> times(size_t number) {
    for (; done_ <= number; ++done_) {
      Work& work = works_[done_];
      if (work.ranks < started_.size()) return {};
      work.begin = std::max(work.begin, free_);
      free_ = work.end = work.begin + work.cost;
    }
    return std::pair(works_[number].begin, works_[number].end);
  }

 private:
  struct Work {
    Task task;
    double cost = 0, begin = 0, end = 0;
    size_t ranks = 0;  // that have started it
  };
  std::vector<size_t> started_;  // by each rank
  std::vector<Work> works_;
  size_t done_ = 0;
  double free_ = 0;
};

/// A rank's compute thread.
class Thread {
 public:
  Thread(const Program& program, Axis& group, size_t shard, Axis& replicas, size_t replica)
      : program_(program),
        group_{group, shard},
        replicas_{replicas, replica},
        background_(
            std::ranges::any_of(program, [](const Task& task) { return task.op == Op::reduced; })),
        through_host_(
            std::ranges::any_of(program, [](const Task& task) { return task.op == Op::download; })),
        times_(program.size()) {}

  /// Executes tasks until one has to wait for another rank. False: it has executed none.
  Result<bool> advance(const Cost& cost) {
    const size_t first = next_;
    for (; next_ < program_.size(); ++next_) {
      SS_ASSIGN(const bool done, execute(program_[next_], cost(program_[next_])));
      if (!done) break;
    }
    return next_ > first;
  }
  /// The task that waits; null if all are executed.
  const Task* waiting() const { return next_ < program_.size() ? &program_[next_] : nullptr; }
  /// After all threads have executed their tasks.
  std::vector<TimedTask> times() {
    for (const Work& work : started_) {
      const auto [begin, end] = *work.axis->times(work.number);
      times_[work.task] = {work.lane, begin, end};
    }
    return std::move(times_);
  }

 private:
  struct Place {
    Axis& axis;
    size_t rank;
  };
  struct Work {
    Axis* axis;
    Lane lane;
    size_t number, task;  // in the axis, in the program
  };

  /// False: it has to wait.
  Result<bool> execute(const Task& task, double cost) {
    switch (task.op) {
      case Op::gather:
        return start(group_, Lane::gather, task, cost, gathers_[task.unit]);
      case Op::reduce:
        if (!background_) return take(at_, cost);  // made by the compute thread
        return start(group_, Lane::reduce, task, cost, reductions_[buffer_of(task)]);
      case Op::exchange:
        SS_RETURN_IF_ERROR(
            start(replicas_, Lane::exchange, task, cost, exchanges_[task.unit]).status());
        exchanges_[Task::kNone] = exchanges_[task.unit];  // the newest
        return true;
      case Op::download:
        if (!wait_for(exchanges_, task.unit)) return false;
        SS_RETURN_IF_ERROR(
            start({downloads_, 0}, Lane::download, task, cost, download_of_[task.unit]).status());
        own_[Op::download] = download_of_[task.unit];
        return true;
      case Op::downloaded:
        return wait_for(download_of_, task.unit);
      case Op::hash:
        if (!through_host_) return take(at_, cost);
        return start({hashes_, 0}, Lane::hash, task, cost, own_[Op::hash]);
      case Op::check:
        return wait_for(own_, Op::hash) && take(at_, cost);
      case Op::update: {
        const std::optional<double> ready = end_of(own_, Op::download);
        return take(*ready, cost);
      }
      case Op::reduced:
        return wait_for(reductions_, buffer_of(task));
      case Op::finish:
        return wait_for(exchanges_, Task::kNone);
      case Op::vote:
        return vote(task, cost);
      case Op::route:
      case Op::route_backward:
        return start(group_, Lane::gather, task, cost, tokens_[{task.unit, task.frame}]);
      case Op::combine:
      case Op::combine_backward:
        if (!returning_) {
          SS_ASSIGN(const bool started,
                    start(group_, Lane::gather, task, cost, tokens_[{task.unit, task.frame}]));
          returning_ = started;
        }
        if (!wait_for(tokens_, {task.unit, task.frame})) return false;
        returning_ = false;
        return true;
      case Op::embed:
      case Op::forward:
      case Op::head:
      case Op::evaluate:
      case Op::backward: {
        std::optional<double> ready = end_of(gathers_, task.unit);
        const std::optional<double> sent = end_of(tokens_, {task.unit, task.frame});
        return ready && sent && take(std::max(*ready, *sent), cost);
      }
      default:
        return take(at_, cost);
    }
  }
  /// Whose reduction it is: of a gradient or of a wave's sum.
  static size_t buffer_of(const Task& task) {
    return task.sum == Task::kNone ? 2 * task.slot : 2 * task.sum + 1;
  }
  /// Inside the group, then across groups.
  Result<bool> vote(const Task& task, double cost) {
    for (size_t axis = 0; axis < 2; ++axis) {
      if (votes_.size() == axis) {
        const Place& place = axis == 0 ? group_ : replicas_;
        SS_ASSIGN(const size_t number, place.axis.start(place.rank, task, at_, cost));
        votes_[axis] = {&place.axis, Lane::compute, number, next_};
      }
      if (!wait_for(votes_, axis)) return false;
    }
    return true;
  }

  template <class Key = size_t>
  using WorksOf = std::map<Key, Work>;
  using Works = WorksOf<>;
  Result<bool> start(const Place& place, Lane lane, const Task& task, double cost, Work& work) {
    SS_ASSIGN(const size_t number, place.axis.start(place.rank, task, at_, cost));
    work = {&place.axis, lane, number, next_};
    started_.push_back(work);
    return true;
  }
  /// When that collective has ended; now if there is none. Empty: not all ranks have started it.
  template <class Key>
  std::optional<double> end_of(const WorksOf<Key>& works, std::type_identity_t<Key> which) const {
    const auto work = works.find(which);
    if (work == works.end()) return at_;
    const auto times = work->second.axis->times(work->second.number);
    if (!times) return {};
    return std::max(at_, times->second);
  }
  /// The task lasts from now until that collective has ended.
  template <class Key>
  bool wait_for(const WorksOf<Key>& works, std::type_identity_t<Key> which) {
    const std::optional<double> end = end_of(works, which);
    return end && take(at_, *end - at_);
  }
  bool take(double begin, double cost) {
    TimedTask& task = times_[next_];
    if (task.end_s == 0) task.begin_s = begin;
    task.end_s = at_ = begin + cost;
    return true;
  }

  const Program& program_;
  const Place group_, replicas_;
  const bool background_;    // the sums of a group
  const bool through_host_;  // the state is in host memory, and the task `hash` runs beside others
  Axis downloads_{1}, hashes_{1};
  std::vector<TimedTask> times_;
  size_t next_ = 0;
  double at_ = 0;
  Works gathers_;            // of each unit the newest
  Works reductions_;         // by buffer
  Works exchanges_, votes_;  // of each unit; of both axes
  // The rows of resident experts: by unit and frame, the newest. What they return is sent when it is
  // awaited, although a trainer sends it earlier.
  WorksOf<std::pair<size_t, int>> tokens_;
  bool returning_ = false;  // the present task has started it
  Works download_of_;       // of each unit
  WorksOf<Op> own_;         // the newest download and hash
  std::vector<Work> started_;
};

}  // namespace

Result<Timeline> replay(const std::vector<const Program*>& program_of_rank, size_t shards,
                        const Cost& cost) {
  const size_t ranks = program_of_rank.size(), groups = ranks / shards;
  std::vector<Axis> of_group(groups, Axis(shards)), of_shard(shards, Axis(groups));
  std::vector<Thread> threads;
  threads.reserve(ranks);
  for (size_t rank = 0; rank < ranks; ++rank)
    threads.emplace_back(*program_of_rank[rank], of_group[rank / shards], rank % shards,
                         of_shard[rank % shards], rank / shards);
  const auto name = [](size_t rank) { return "rank " + std::to_string(rank); };
  for (bool some = true; some;) {
    some = false;
    for (size_t rank = 0; rank < ranks; ++rank) {
      const Result<bool> advanced = threads[rank].advance(cost);
      if (!advanced.ok()) return advanced.status().in(name(rank));
      some |= *advanced;
    }
  }
  for (size_t rank = 0; rank < ranks; ++rank)
    if (const Task* task = threads[rank].waiting())
      return Status(Code::internal, name(rank) + " waits forever in " + text_of(*task));
  Timeline timeline;
  for (Thread& thread : threads) timeline.push_back(thread.times());
  return timeline;
}

}  // namespace simplescale
