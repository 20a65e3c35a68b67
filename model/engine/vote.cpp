#include "model/engine/vote.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>

namespace simplescale {
namespace {

constexpr size_t kAxesMax = 3;
constexpr size_t kHashNumbers = sizeof(Hash128) / sizeof(double);

/// The fixed part of a ballot on the wire; numbers follow. Peers run the same build on the same
/// machine type.
struct BallotHeader {
  uint64_t step;
  uint64_t trained;  // of all ranks that it stands for
  Hash128 signature, layout;
  float learning_rate;
  uint8_t stop, save, pause, code;
  int32_t
      failed[kAxesMax];  // place on each axis of the rank that failed; -1: no rank failed by itself
  char message[220];
};
static_assert(sizeof(BallotHeader) % sizeof(double) == 0);

void set_failure(BallotHeader& header, const Status& failure) {
  header.code = static_cast<uint8_t>(failure.code());
  std::ranges::fill(header.message, '\0');
  failure.message().copy(header.message, sizeof(header.message) - 1);
}

BallotHeader header_of(const Ballot& ballot) {
  BallotHeader header{};
  header.step = ballot.step;
  header.signature = ballot.signature;
  header.layout = ballot.layout;
  header.trained = ballot.trained;
  header.learning_rate = ballot.learning_rate;
  header.stop = ballot.control.stop;
  header.save = ballot.control.save;
  header.pause = ballot.control.pause;
  std::ranges::fill(header.failed, -1);
  set_failure(header, ballot.failure);
  return header;
}

/// With all digits, two different numbers have different texts.
std::string text(double value, int digits = 17) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.*g", digits, value);
  return text;
}

Status failure_of(const BallotHeader& header) {
  if (header.code == static_cast<uint8_t>(Code::ok)) return {};
  const size_t length = strnlen(header.message, sizeof(header.message));
  return {is_code(header.code) ? static_cast<Code>(header.code) : Code::internal,
          std::string(header.message, length)};
}

/// What an axis's ranks are called in messages.
std::string voter_of(const Axis& axis, size_t place) {
  const std::string kind = axis.name == kShardAxis       ? "trainer"
                           : axis.name == kReplicateAxis ? "group"
                                                         : axis.name;
  return kind + ' ' + std::to_string(place);
}

/// The records of all ranks of an axis, in their order.
struct Votes {
  std::vector<BallotHeader> headers;
  std::vector<double> numbers;  // as many of each rank
};

Result<Votes> exchange(const Axis& axis, const BallotHeader& header,
                       const std::vector<double>& numbers, WaitClock& wait) {
  const size_t ranks = static_cast<size_t>(axis.members->size()),
               of_numbers = numbers.size() * sizeof(double), bytes = sizeof(header) + of_numbers;
  std::vector<char> mine(bytes), all(bytes * ranks);
  std::memcpy(mine.data(), &header, sizeof(header));
  std::memcpy(mine.data() + sizeof(header), numbers.data(), of_numbers);
  const Waiting waiting(wait);
  SS_RETURN_IF_ERROR(axis.members->all_gather_bytes(mine.data(), all.data(), bytes)->wait());
  Votes votes{std::vector<BallotHeader>(ranks), std::vector<double>(ranks * numbers.size())};
  for (size_t rank = 0; rank < ranks; ++rank) {
    const char* of = all.data() + rank * bytes;
    std::memcpy(static_cast<void*>(&votes.headers[rank]), of, sizeof(header));
    std::memcpy(votes.numbers.data() + rank * numbers.size(), of + sizeof(header), of_numbers);
  }
  return votes;
}

/// The vote of all ranks of axes[level]. Numbers of targets are whole, so their sum is exact. The
/// failure is the first in rank order, where a voter that disagrees with voter 0 on step, signature,
/// layout or learning rate counts as failed.
BallotHeader combined(const std::vector<BallotHeader>& votes, const Axes& axes, size_t level) {
  BallotHeader result = votes[0];
  result.trained = 0;
  std::ranges::fill(result.failed, -1);
  Status failure;
  for (size_t rank = 0; rank < votes.size(); ++rank) {
    const BallotHeader& header = votes[rank];
    result.trained += header.trained;
    result.stop |= header.stop;
    result.save |= header.save;
    result.pause |= header.pause;
    if (!failure.ok()) continue;
    failure = failure_of(header);
    if (!failure.ok()) {
      std::ranges::copy(header.failed, result.failed);
      result.failed[level] = static_cast<int32_t>(rank);
    }
    auto differ = [&](const std::string& what, const std::string& first, const std::string& here) {
      if (failure.ok())
        failure = {Code::internal, what + first + " on " + voter_of(axes[level], 0) + ", " + here +
                                       " on " + voter_of(axes[level], rank)};
    };
    if (header.step != result.step)
      differ("step ", std::to_string(result.step), std::to_string(header.step));
    if (header.signature != result.signature)  // SIGNATURE-1
      differ("numerics signature ", result.signature.hex(), header.signature.hex());
    if (header.layout != result.layout)
      differ("layout hash ", result.layout.hex(), header.layout.hex());
    if (header.learning_rate != result.learning_rate)
      differ("learning rate ", text(result.learning_rate), text(header.learning_rate));
  }
  set_failure(result, failure);
  return result;
}

double tree_mean(std::span<const double> leaves) {
  std::vector<TreeNode> nodes;
  for (uint64_t i = 0; i < leaves.size(); ++i) nodes.push_back({0, i});
  return tree_total(nodes, leaves) / static_cast<double>(leaves.size());
}

}  // namespace

Vote::Vote(const std::vector<Unit>& units, const ShardLayout& layout, const Shares& shares,
           Axes axes)
    : units_(&units), layout_(&layout), shares_(&shares), axes_(std::move(axes)) {
  SS_ASSERT(axes_.size() <= kAxesMax && axes_[0].name == kShardAxis);
  for (size_t rank = 0; rank < layout.shards; ++rank) {
    std::vector<BlockTree> trees;
    for (size_t unit = 0; unit < units.size(); ++unit) {
      const Run run = run_of(unit, rank);
      auto first = static_cast<int64_t>(layout.offset[unit] / kShardAlign);
      for (const TreeNode& node : nodes_of_run(run.first, run.count)) {
        trees.push_back({first, node.level});
        first += trees.back().blocks();
      }
    }
    squares_ = std::max(squares_, trees.size());
    if (rank == static_cast<size_t>(axes_[0].members->rank())) trees_ = std::move(trees);
  }
}

/// Blocks that are padding only are left out: their number depends on the layout.
Vote::Run Vote::run_of(size_t unit, size_t rank) const {
  const size_t blocks = ((*units_)[unit].count + kShardAlign - 1) / kShardAlign;
  const size_t per_rank = layout_->count[unit] / kShardAlign;
  const size_t first = std::min(blocks, rank * per_rank);
  return {first, std::min(blocks, (rank + 1) * per_rank) - first};
}

double Vote::grad_norm(std::span<const double* const> squares_of_rank) const {
  std::vector<const double*> at(squares_of_rank.begin(), squares_of_rank.end());
  double total = 0;
  for (size_t unit = 0; unit < units_->size(); ++unit) {
    std::vector<TreeNode> nodes;
    std::vector<double> sums;
    for (size_t rank = 0; rank < at.size(); ++rank) {
      const Run run = run_of(unit, rank);
      for (const TreeNode& node : nodes_of_run(run.first, run.count)) {
        nodes.push_back(node);
        sums.push_back(*at[rank]++);
      }
    }
    total += tree_total(nodes, sums);
  }
  return std::sqrt(total);
}

/// Folds the ranks' records over the axes. A rank's numbers are its sums of squares, its routers' counts,
/// its state's hash and its losses. Of a group the first become the norm, and the counts, which are
/// whole numbers, are added; nothing else is combined.
Result<Verdict> Vote::hold(const Ballot& ballot, WaitClock& wait) {
  SS_ASSERT(ballot.squares.size() == trees_.size());
  const size_t shards = layout_->shards,
               losses_max = (shares_->most_leaves() + shards - 1) / shards,  // room in every record
      own = kHashNumbers + losses_max;
  const size_t counts = ballot.router_counts.size();
  std::vector<double> numbers = ballot.squares;
  numbers.resize(squares_ + counts + own);
  double* const mine = numbers.data() + squares_;
  std::ranges::copy(ballot.router_counts, mine);
  std::memcpy(mine + counts, &ballot.state_hash, sizeof(Hash128));
  std::ranges::copy(ballot.losses, mine + counts + kHashNumbers);
  BallotHeader header = header_of(ballot);
  for (size_t level = 0; level < axes_.size(); ++level) {
    SS_ASSIGN(Votes votes, exchange(axes_[level], header, numbers, wait));
    header = combined(votes.headers, axes_, level);
    numbers = level == 0 ? of_group(votes.numbers, counts) : std::move(votes.numbers);
  }

  Verdict verdict;
  verdict.trained = header.trained;
  verdict.agreed = {header.stop != 0, header.save != 0, header.pause != 0};
  verdict.status = failure_of(header);
  std::string where;
  std::optional<int> failed = 0;  // its rank
  for (size_t level = axes_.size(); level-- > 0;) {
    const Axis& axis = axes_[level];
    const int32_t place = header.failed[level];
    if (place < 0) failed.reset();
    if (failed) failed = *failed * axis.members->size() + place;
    if (place >= 0)
      where += (where.empty() ? "" : ": ") + voter_of(axis, static_cast<size_t>(place));
  }
  verdict.suspect = failed;
  if (failed) verdict.cause = verdict.status.message();
  if (!where.empty()) verdict.status = verdict.status.in(where);

  std::vector<Hash128> hashes;
  std::vector<double> losses(shares_->leaves());
  Status norms;
  verdict.grad_norm = numbers[0];
  verdict.router_counts.resize(counts);
  const double* next = numbers.data();
  for (uint64_t group = 0; group < shares_->groups(); ++group) {
    const double norm = *next++;
    if (norms.ok() && norm != verdict.grad_norm &&
        (std::isfinite(norm) || std::isfinite(verdict.grad_norm)))
      norms = {Code::mismatch,
               "the replicas computed different gradient norms: " + text(verdict.grad_norm) +
                   " in group 0, " + text(norm) + " in group " + std::to_string(group)};
    for (int64_t& count : verdict.router_counts) count += static_cast<int64_t>(*next++);
    for (uint64_t shard = 0; shard < shards; ++shard, next += own) {
      std::memcpy(static_cast<void*>(&hashes.emplace_back()), next, sizeof(Hash128));
      for (uint64_t k = 0; k < shares_->count(group, shard); ++k)
        losses[shares_->leaf(group, shard, k)] = next[kHashNumbers + k];
    }
  }
  SS_ASSERT(next == numbers.data() + numbers.size());
  if (verdict.status.ok()) {
    verdict.mismatch = find_mismatch(ballot.step - 1, shards, hashes);
    verdict.status = verdict.mismatch ? verdict.mismatch->status() : norms;
    if (verdict.mismatch) verdict.suspect = suspect_of(*verdict.mismatch, shards);
  }
  verdict.loss = tree_mean(losses);
  if (verdict.status.ok() && !(std::isfinite(verdict.loss) && std::isfinite(verdict.grad_norm))) {
    verdict.cause =
        "loss " + text(verdict.loss, 4) + " or gradient norm " + text(verdict.grad_norm, 4);
    verdict.status = {Code::bad_data, verdict.cause + " is not finite"};
    verdict.suspect = suspect_of(losses, *shares_);
  }
  verdict.status = verdict.status.in("step " + std::to_string(ballot.step));
  return verdict;
}

/// Its norm, its routers' counts, then of each trainer what follows these.
std::vector<double> Vote::of_group(const std::vector<double>& numbers, size_t counts) const {
  const size_t of_trainer = numbers.size() / layout_->shards;
  std::vector<const double*> squares;
  for (size_t rank = 0; rank < layout_->shards; ++rank)
    squares.push_back(&numbers[rank * of_trainer]);
  std::vector<double> group = {grad_norm(squares)};
  group.resize(1 + counts);
  for (const double* of : squares)
    for (size_t i = 0; i < counts; ++i) group[1 + i] += of[squares_ + i];
  for (const double* of : squares)
    group.insert(group.end(), of + squares_ + counts, of + of_trainer);
  return group;
}

Result<Verdict> Vote::compare_layouts(const Hash128& layout, WaitClock& wait) {
  std::vector<Hash128> world;
  {
    const Waiting waiting(wait);
    SS_ASSIGN(world, gather_world(axes_, std::vector<Hash128>{layout}));
  }
  Verdict verdict;
  for (size_t rank = 0; rank < world.size() && verdict.status.ok(); ++rank)
    if (world[rank] != world[0])
      verdict.status = {Code::internal, "layout hash " + world[0].hex() + " on rank 0, " +
                                            world[rank].hex() + " on rank " + std::to_string(rank)};
  return verdict;
}

Result<Verdict> Vote::compare(uint64_t step, const Hash128& state_hash, WaitClock& wait) {
  struct Record {
    Hash128 hash;
    uint64_t step;
  };
  std::vector<Record> world;
  {
    const Waiting waiting(wait);
    SS_ASSIGN(world, gather_world(axes_, std::vector<Record>{{state_hash, step}}));
  }
  const size_t shards = layout_->shards;
  Verdict verdict;
  std::vector<Hash128> hashes;
  for (size_t rank = 0; rank < world.size(); ++rank) {
    hashes.push_back(world[rank].hash);
    if (verdict.status.ok() && world[rank].step != world[0].step)
      verdict.status = {Code::internal, "rank 0 holds step " + std::to_string(world[0].step) +
                                            ", rank " + std::to_string(rank) + " step " +
                                            std::to_string(world[rank].step)};
  }
  if (!verdict.status.ok()) return verdict;
  verdict.mismatch = find_mismatch(world[0].step, shards, hashes);
  if (!verdict.mismatch) return verdict;
  verdict.status = verdict.mismatch->status();
  verdict.suspect = suspect_of(*verdict.mismatch, shards);
  return verdict;
}

std::optional<Mismatch> find_mismatch(uint64_t step, size_t shards,
                                      std::span<const Hash128> hashes) {
  const size_t groups = hashes.size() / shards;
  for (size_t shard = 0; shard < shards; ++shard) {
    Mismatch found{.step = step, .shard = static_cast<int>(shard)};
    for (size_t group = 0; group < groups; ++group)
      found.of_group.push_back(hashes[group * shards + shard]);
    const auto& all = found.of_group;
    auto copies = [&](const Hash128& hash) {
      return static_cast<size_t>(std::count(all.begin(), all.end(), hash));
    };
    if (copies(all[0]) == groups) continue;
    for (const Hash128& hash : all)
      if (2 * copies(hash) > groups) found.right = hash;
    return found;
  }
  return {};
}

std::optional<int> suspect_of(const Mismatch& mismatch, size_t shards) {
  const std::vector<int> wrong = mismatch.wrong();
  if (wrong.size() != 1) return {};
  return wrong[0] * static_cast<int>(shards) + mismatch.shard;
}

std::optional<int> suspect_of(std::span<const double> losses, const Shares& shares) {
  std::optional<int> suspect;
  for (uint64_t group = 0; group < shares.groups(); ++group)
    for (uint64_t i = 0; i < shares.count(group); ++i) {
      if (std::isfinite(losses[shares.leaf(group, i)])) continue;
      const int rank = static_cast<int>(group * shares.shards() + shares.shard(group, i));
      if (suspect && *suspect != rank) return {};
      suspect = rank;
    }
  return suspect;
}

std::vector<int> Mismatch::wrong() const {
  std::vector<int> groups;
  for (size_t group = 0; right && group < of_group.size(); ++group)
    if (of_group[group] != *right) groups.push_back(static_cast<int>(group));
  return groups;
}

Status Mismatch::status() const {
  std::string text = "the replicas of shard " + std::to_string(shard) + " differ after step " +
                     std::to_string(step);
  const std::vector<int> lost_majority = wrong();
  if (lost_majority.empty())
    text += "; no majority shows which one is wrong, so the step is made again";
  for (size_t i = 0; i < lost_majority.size(); ++i)
    text += (i ? " and of group " : ": most agree, and not with that of group ") +
            std::to_string(lost_majority[i]);
  return {Code::mismatch, text};
}

}  // namespace simplescale
