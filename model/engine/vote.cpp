#include "model/engine/vote.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>

namespace simplescale {
namespace {

/// The fixed part of a ballot on the wire; doubles follow. Peers run the same build on the same
/// machine type.
struct BallotHeader {
  uint64_t step;
  uint64_t trained;  // of a group: of all its ranks
  Hash128 state_hash, signature, layout;
  float learning_rate;
  uint8_t stop, save, pause, code;
  int32_t failed;  // of a group: the shard that failed, -1 for none
  char message[220];
};
static_assert(sizeof(BallotHeader) % sizeof(double) == 0);

BallotHeader header_of(const Ballot& ballot) {
  BallotHeader header{};
  header.step = ballot.step;
  header.signature = ballot.signature;
  header.layout = ballot.layout;
  header.trained = ballot.trained;
  header.learning_rate = ballot.learning_rate;
  header.state_hash = ballot.state_hash;
  header.stop = ballot.control.stop;
  header.save = ballot.control.save;
  header.pause = ballot.control.pause;
  header.code = static_cast<uint8_t>(ballot.failure.code());
  header.failed = -1;
  ballot.failure.message().copy(header.message, sizeof(header.message) - 1);
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

/// The records of all ranks of one communicator.
struct Exchange {
  std::vector<char> all;
  size_t bytes = 0;
  BallotHeader header(size_t rank) const {
    BallotHeader header;
    std::memcpy(&header, all.data() + rank * bytes, sizeof(header));
    return header;
  }
  const double* numbers(size_t rank) const {
    return reinterpret_cast<const double*>(all.data() + rank * bytes + sizeof(BallotHeader));
  }
  /// In rank order.
  std::vector<Hash128> state_hashes(size_t ranks) const {
    std::vector<Hash128> hashes;
    for (size_t rank = 0; rank < ranks; ++rank) hashes.push_back(header(rank).state_hash);
    return hashes;
  }
};

Result<Exchange> exchange(Collective& collective, const BallotHeader& header,
                          const std::vector<double>& numbers, WaitClock& wait) {
  Exchange result;
  result.bytes = sizeof(header) + numbers.size() * sizeof(double);
  std::vector<char> mine(result.bytes);
  std::memcpy(mine.data(), &header, sizeof(header));
  std::memcpy(mine.data() + sizeof(header), numbers.data(), numbers.size() * sizeof(double));
  result.all.resize(result.bytes * static_cast<size_t>(collective.size()));
  const Waiting waiting(wait);
  SS_RETURN_IF_ERROR(
      collective.all_gather_bytes(mine.data(), result.all.data(), result.bytes)->wait());
  return result;
}

/// A ballot of all voters. failed: the voter whose failure it has; -1: none failed by itself.
struct Combined {
  Ballot ballot;
  int32_t failed = -1;
};

/// Combines the headers of all voters. Numbers of targets are whole, so their sum is exact. The
/// failure is the first in rank order, where a voter that disagrees with voter 0 on step, signature,
/// layout or learning rate counts as failed.
Combined combined(const Exchange& votes, size_t ranks, const std::string& voter_kind) {
  Combined found;
  Ballot& result = found.ballot;
  for (size_t rank = 0; rank < ranks; ++rank) {
    const BallotHeader header = votes.header(rank);
    const std::string voter = voter_kind + " " + std::to_string(rank);
    if (rank == 0) {
      result.step = header.step;
      result.signature = header.signature;
      result.layout = header.layout;
      result.learning_rate = header.learning_rate;
    }
    result.trained += header.trained;
    result.control.stop |= header.stop != 0;
    result.control.save |= header.save != 0;
    result.control.pause |= header.pause != 0;
    Status failure = failure_of(header);
    if (result.failure.ok() && !failure.ok()) found.failed = static_cast<int32_t>(rank);
    auto differ = [&](const std::string& what, const std::string& first, const std::string& here) {
      if (failure.ok())
        failure = {Code::internal,
                   what + first + " on " + voter_kind + " 0, " + here + " on " + voter};
    };
    if (header.step != result.step)
      differ("step ", std::to_string(result.step), std::to_string(header.step));
    if (header.signature != result.signature)  // SIGNATURE-1
      differ("numerics signature ", result.signature.hex(), header.signature.hex());
    if (header.layout != result.layout)
      differ("layout hash ", result.layout.hex(), header.layout.hex());
    if (header.learning_rate != result.learning_rate)
      differ("learning rate ", text(result.learning_rate), text(header.learning_rate));
    if (result.failure.ok()) result.failure = failure;
  }
  return found;
}

double tree_mean(std::span<const double> leaves) {
  std::vector<TreeNode> nodes;
  for (uint64_t i = 0; i < leaves.size(); ++i) nodes.push_back({0, i});
  return tree_total(nodes, leaves) / static_cast<double>(leaves.size());
}

}  // namespace

Vote::Vote(const std::vector<Unit>& units, const ShardLayout& layout, const Shares& shares,
           Collective& shard, Collective& replicate)
    : units_(&units), layout_(&layout), shares_(&shares), shard_(&shard), replicate_(&replicate) {
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
    if (rank == static_cast<size_t>(shard.rank())) trees_ = std::move(trees);
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

Result<Verdict> Vote::hold(const Ballot& ballot, WaitClock& wait) {
  const size_t shards = static_cast<size_t>(shard_->size()),
               groups = static_cast<size_t>(replicate_->size());
  const uint64_t places = shares_->most_leaves();  // every record has room for that many losses
  const size_t most = (places + shards - 1) / shards;
  std::vector<double> record = ballot.losses;
  record.resize(most);
  SS_ASSERT(ballot.squares.size() == trees_.size());
  record.insert(record.end(), ballot.squares.begin(), ballot.squares.end());
  record.resize(most + squares_);
  SS_ASSIGN(const Exchange group, exchange(*shard_, header_of(ballot), record, wait));
  const Combined of_group = combined(group, shards, "trainer");
  BallotHeader header = header_of(of_group.ballot);
  header.failed = of_group.failed;

  // The group's state hashes and norm, then its losses in leaf order.
  std::vector<const double*> squares;
  for (size_t rank = 0; rank < shards; ++rank) squares.push_back(group.numbers(rank) + most);
  record.assign(2 * shards + 1, grad_norm(squares));
  std::memcpy(record.data(), group.state_hashes(shards).data(), shards * sizeof(Hash128));
  record.resize(record.size() + places);
  const auto own = static_cast<uint64_t>(replicate_->rank());
  for (size_t rank = 0; rank < shards; ++rank)
    for (uint64_t k = 0; k < shares_->count(own, rank); ++k)
      record[2 * shards + 1 + shares_->place(own, rank, k)] = group.numbers(rank)[k];
  SS_ASSIGN(const Exchange world, exchange(*replicate_, header, record, wait));
  const Combined of_world = combined(world, groups, "group");

  Verdict verdict;
  verdict.trained = of_world.ballot.trained;
  verdict.agreed = of_world.ballot.control;
  verdict.status = of_world.ballot.failure;
  if (of_world.failed >= 0) {
    const auto failed = static_cast<size_t>(of_world.failed);
    const int32_t shard = world.header(failed).failed;
    std::string where = "group " + std::to_string(failed);
    if (shard >= 0) {
      where += ": trainer " + std::to_string(shard);
      verdict.suspect = static_cast<int>(failed * shards) + shard;
      verdict.cause = verdict.status.message();
    }
    verdict.status = verdict.status.in(where);
  }
  verdict.grad_norm = world.numbers(0)[2 * shards];
  std::vector<Hash128> hashes(groups * shards);
  std::vector<double> losses(shares_->leaves());
  Status norms;
  for (size_t rank = 0; rank < groups; ++rank) {
    std::memcpy(static_cast<void*>(&hashes[rank * shards]), world.numbers(rank),
                shards * sizeof(Hash128));
    const double norm = world.numbers(rank)[2 * shards];
    for (uint64_t i = 0; i < shares_->count(rank); ++i)
      losses[shares_->leaf(rank, i)] = world.numbers(rank)[2 * shards + 1 + i];
    if (norms.ok() && norm != verdict.grad_norm &&
        (std::isfinite(norm) || std::isfinite(verdict.grad_norm)))
      norms = {Code::mismatch,
               "the replicas computed different gradient norms: " + text(verdict.grad_norm) +
                   " in group 0, " + text(norm) + " in group " + std::to_string(rank)};
  }
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

/// The records of all ranks, group by group.
template <class Record>
Result<std::vector<Record>> Vote::of_world(const Record& mine, WaitClock& wait) {
  const size_t shards = static_cast<size_t>(shard_->size()),
               groups = static_cast<size_t>(replicate_->size());
  std::vector<Record> group(shards), world(groups * shards);
  const Waiting waiting(wait);
  SS_RETURN_IF_ERROR(shard_->all_gather_bytes(&mine, group.data(), sizeof(Record))->wait());
  SS_RETURN_IF_ERROR(
      replicate_->all_gather_bytes(group.data(), world.data(), shards * sizeof(Record))->wait());
  return world;
}

Result<Verdict> Vote::compare_layouts(const Hash128& layout, WaitClock& wait) {
  SS_ASSIGN(const std::vector<Hash128> world, of_world(layout, wait));
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
  const auto shards = static_cast<size_t>(shard_->size());
  SS_ASSIGN(const std::vector<Record> world, of_world(Record{state_hash, step}, wait));
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
