#include "model/engine/token_exchange.hpp"

#include <algorithm>
#include <numeric>

#include "runtime/training/router_counts.hpp"

namespace simplescale {

TokenExchange::TokenExchange(const EngineOptions& options, Backend& backend, Collective& shard)
    : backend_(&backend),
      shard_(&shard),
      size_(shard.size()),
      shape_(options.shape),
      row_bytes_(static_cast<size_t>(options.shape.dim) * bytes_of(options.precision)),
      expert_elements_(static_cast<size_t>(options.shape.experts.count / shard.size() * 3 *
                                           options.shape.experts.hidden * options.shape.dim)),
      element_(bytes_of(options.precision)) {}

Result<TokenExchange> TokenExchange::create(const BufferPlan& plan, const EngineOptions& options,
                                            Backend& backend, Collective& shard) {
  TokenExchange made(options, backend, shard);
  const auto allocate = [&](size_t rows, bool d_out) -> Result<TokenRows> {
    TokenRows to;
    SS_ASSIGN(to.x, shard.allocate(rows * made.row_bytes_));
    if (d_out) {
      SS_ASSIGN(to.d_out, shard.allocate(rows * made.row_bytes_));
    }
    SS_ASSIGN(void* weight, shard.allocate(rows * sizeof(float)));
    to.weight = static_cast<float*>(weight);
    SS_ASSIGN(void* token, shard.allocate(rows * sizeof(int32_t)));
    to.token = static_cast<int32_t*>(token);
    return to;
  };
  for (size_t i = 0; i < plan.frames; ++i) {
    Frame& frame = made.frames_.emplace_back();
    SS_ASSIGN(frame.rows, allocate(plan.rows_sent, true));
    frame.counts.resize(static_cast<size_t>(options.shape.layers));
    frame.returned.resize(static_cast<size_t>(made.size_));
  }
  for (Received& received : made.received_) {
    SS_ASSIGN(received.rows, allocate(plan.rows_received, true));
    SS_ASSIGN(received.result, allocate(plan.rows_received, false));
  }
  return made;
}

std::span<const int32_t> TokenExchange::counts(const Round& round, int from) const {
  const std::vector<int32_t>& all =
      frames_[static_cast<size_t>(round.frame)].counts[static_cast<size_t>(round.layer)];
  const size_t each = all.size() / static_cast<size_t>(size_);
  return std::span(all).subspan(static_cast<size_t>(from) * each, each);
}

std::span<const int32_t> TokenExchange::tokens(const Round& round, int from, int to) const {
  const auto own = static_cast<size_t>(shape_.experts.count / size_);
  return counts(round, from).subspan(static_cast<size_t>(to) * own, own);
}

TokenExchange::Range TokenExchange::range(const Round& round, int from, int to) const {
  const auto rows = [&](int of) {
    const std::span<const int32_t> some = tokens(round, from, of);
    return static_cast<size_t>(std::accumulate(some.begin(), some.end(), int64_t{0}));
  };
  const std::span<const int32_t> sent = counts(round, from).last(static_cast<size_t>(size_));
  Range range{0, rows(to), static_cast<size_t>(sent[static_cast<size_t>(to)])};
  for (int of = 0; of < to; ++of) range.first += rows(of);
  return range;
}

TokenRows TokenExchange::at(const TokenRows& rows, size_t first) const {
  const auto row = [&](void* data) { return static_cast<char*>(data) + first * row_bytes_; };
  return {row(rows.x), rows.d_out ? row(rows.d_out) : nullptr, rows.weight + first,
          rows.token + first};
}

void TokenExchange::add(std::vector<Parcel>& parcels, int rank, const TokenRows& rows,
                        const Range& range, bool backward, bool returned) const {
  const size_t weights = range.count * sizeof(float);
  parcels.push_back({rank, rows.x, (returned ? range.count : range.tokens) * row_bytes_});
  if (!returned) parcels.push_back({rank, rows.token, range.count * sizeof(int32_t)});
  if (!returned && backward) parcels.push_back({rank, rows.d_out, range.tokens * row_bytes_});
  if (backward) parcels.push_back({rank, rows.weight, weights});
}

/// The micro-batch's rows are there; in round 0 they stay.
void TokenExchange::queue(const Task& task, int layer, bool backward) {
  for (int number = 1; number < size_; ++number)
    waiting_.push_back({task.frame, layer, number, backward});
  start_rounds();
}

/// A round receives into the buffers of the one before the last, when that is computed.
void TokenExchange::start_rounds() {
  for (; !waiting_.empty() && started_ < passed_ + received_.size(); ++started_) {
    const Round round = waiting_.front();
    waiting_.pop_front();
    const int to = after(round.number), from = before(round.number);
    Received& received = received_[started_ % received_.size()];
    const Range sent = range(round, shard_->rank(), to);
    std::vector<Parcel> sends, receives;
    add(sends, to, at(frames_[static_cast<size_t>(round.frame)].rows, sent.first), sent,
        round.backward, false);
    add(receives, from, received.rows, range(round, from, shard_->rank()), round.backward, false);
    received.arrives = shard_->exchange(sends, receives);
  }
}

Status TokenExchange::finish(WorkPtr& work, WaitClock& wait) {
  if (!work) return {};
  const Waiting waiting(wait);
  const Status status = work->wait();
  work.reset();
  return status;
}

Status TokenExchange::route(const Task& task, int layer, bool has_tokens, WaitClock& wait,
                            double& compute_ms) {
  Frame& frame = frames_[static_cast<size_t>(task.frame)];
  const auto E = static_cast<size_t>(shape_.experts.count);
  std::vector<int32_t> mine(E + static_cast<size_t>(size_));
  if (has_tokens) {
    const Stopwatch watch(compute_ms);
    backend_->send_tokens(task.frame, layer, frame.rows, std::span(mine).subspan(E));
    const auto counts = counts_of(backend_->router_counts(task.frame), shape_, layer).first(E);
    std::ranges::transform(counts, mine.begin(),
                           [](int64_t count) { return static_cast<int32_t>(count); });
  }
  std::vector<int32_t>& all = frame.counts[static_cast<size_t>(layer)];
  all.resize(mine.size() * static_cast<size_t>(size_));
  WorkPtr counts = shard_->all_gather_bytes(mine.data(), all.data(), mine.size() * sizeof(int32_t));
  SS_RETURN_IF_ERROR(finish(counts, wait));
  queue(task, layer, false);
  return {};
}

Status TokenExchange::route_backward(const Task& task, int layer, const void* block,
                                     bool has_tokens, double& compute_ms) {
  if (has_tokens) {
    const Stopwatch watch(compute_ms);
    backend_->send_gradients(task.frame, layer, block,
                             frames_[static_cast<size_t>(task.frame)].rows);
  }
  queue(task, layer, true);
  return {};
}

Status TokenExchange::pass(const Task& task, int layer, bool backward, const void* params,
                           char* grad, WaitClock& wait, double& compute_ms) {
  Frame& frame = frames_[static_cast<size_t>(task.frame)];
  const int rank = shard_->rank();
  for (Round round{task.frame, layer, 0, backward}; round.number < size_; ++round.number) {
    const int from = before(round.number), to = after(round.number);
    const Range mine = range(round, rank, to);
    TokenRows rows = at(frame.rows, mine.first), result = rows;
    Received* received = nullptr;
    if (round.number > 0) {
      received = &received_[passed_ % received_.size()];
      SS_RETURN_IF_ERROR(finish(received->arrives, wait));
      if (received->returns) SS_RETURN_IF_ERROR(finish(*received->returns, wait));
      rows = received->rows, result = received->result;
    }
    const std::span<const int32_t> of_experts = tokens(round, from, rank);
    {
      const Stopwatch watch(compute_ms);
      if (backward)
        backend_->backward_rows(of_experts, params, rows,
                                grad + static_cast<size_t>(from) * expert_elements_ * element_,
                                result);
      else
        backend_->forward_rows(of_experts, params, rows, result);
    }
    if (!received) continue;
    std::vector<Parcel> sends, receives;
    add(sends, from, result, range(round, from, rank), backward, true);
    add(receives, to, at(frame.rows, mine.first), mine, backward, true);
    // What this trainer has sent in this round has arrived, so its rows may be overwritten.
    received->returns = &frame.returned[static_cast<size_t>(round.number)];
    *received->returns = shard_->exchange(sends, receives);
    ++passed_;
    start_rounds();
  }
  return {};
}

Status TokenExchange::forward(const Task& task, int layer, const void* params, WaitClock& wait,
                              double& compute_ms) {
  return pass(task, layer, false, params, nullptr, wait, compute_ms);
}

Status TokenExchange::backward(const Task& task, int layer, const void* params, void* grad,
                               WaitClock& wait, double& compute_ms) {
  return pass(task, layer, true, params, static_cast<char*>(grad), wait, compute_ms);
}

Status TokenExchange::combine(const Task& task, int layer, bool has_tokens, WaitClock& wait,
                              double& compute_ms) {
  Frame& frame = frames_[static_cast<size_t>(task.frame)];
  for (WorkPtr& returned : frame.returned) SS_RETURN_IF_ERROR(finish(returned, wait));
  if (!has_tokens) return {};
  const Stopwatch watch(compute_ms);
  if (task.op == Op::combine)
    backend_->combine_tokens(task.frame, layer, frame.rows);
  else
    backend_->combine_gradients(task.frame, layer, frame.rows);
  return {};
}

}  // namespace simplescale
