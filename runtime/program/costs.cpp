#include "runtime/program/costs.hpp"

#include <algorithm>

namespace simplescale {

ForwardFlops forward_flops(const ModelShape& s) {
  const auto dim = static_cast<double>(s.dim), q_dim = static_cast<double>(s.q_dim()),
             kv_dim = static_cast<double>(s.kv_dim()), hidden = static_cast<double>(s.hidden);
  const Experts& e = s.experts;
  const auto expert_hidden = static_cast<double>(e.hidden);
  // Tokens that a token attends to on the average: the causal mask hides half of a square.
  const auto tokens = static_cast<double>(s.block_size);
  const double seen = s.window() > 0 ? static_cast<double>(s.window()) : tokens;
  const double seen_causal = seen - seen * seen / (2 * tokens);
  const double attention = 2 * dim * (2 * q_dim + 2 * kv_dim) + 4 * q_dim * seen_causal;
  const double shared = 3 * static_cast<double>(e.shared) * expert_hidden;
  return {.block = attention + 2 * dim * 3 * hidden,
          .routed = attention + 2 * dim * (static_cast<double>(e.count) + shared),
          .experts = 2 * dim * 3 * expert_hidden * static_cast<double>(e.per_token),
          .head = 2 * static_cast<double>(s.vocab) * dim};
}

double ForwardFlops::of_layers(const ModelShape& s) const {
  const int64_t dense = s.experts.count > 0 ? s.experts.dense_layers : s.layers;
  return static_cast<double>(dense) * block +
         static_cast<double>(s.layers - dense) * (routed + experts);
}

Cost task_costs(const EngineOptions& options, size_t groups, size_t shards, bool recomputes,
                const Speeds& speeds) {
  const double tokens = static_cast<double>(options.micro_batch_size) *
                        static_cast<double>(options.shape.block_size),
               size = static_cast<double>(bytes_of(options.precision));
  const ForwardFlops flops = forward_flops(options.shape);
  const std::vector<Unit> units = units_of(options.shape);
  const ShardLayout layout = shard_layout(units, shards);
  const bool resident = has_resident_experts(options, shards);
  const double rows = tokens * static_cast<double>(options.shape.experts.per_token) *
                      static_cast<double>(options.shape.dim) * size;  // bytes
  std::vector<double> of_unit;
  std::vector<bool> is_experts;
  for (const Unit& unit : units) is_experts.push_back(unit.kind == Unit::Kind::experts);
  for (const Unit& unit : units)
    of_unit.push_back(unit.kind == Unit::Kind::experts        ? flops.experts
                      : options.shape.has_experts(unit.layer) ? flops.routed
                                                              : flops.block);
  const double state =
      static_cast<double>(layout.total) * static_cast<double>(state_format(options).bytes());
  const auto received = [](size_t ranks) {  // of all that the ranks of an axis have
    return static_cast<double>(ranks - 1) / static_cast<double>(ranks);
  };
  return [=](const Task& task) {
    const size_t unit = task.unit < layout.count.size() ? task.unit : 0;
    const double part = static_cast<double>(layout.count[unit]),
                 whole = part * static_cast<double>(shards);
    const auto compute = [&](double of_token) { return of_token * tokens / speeds.flops; };
    const auto memory = [&](double bytes) { return bytes / speeds.memory_bytes; };
    const auto network = [&](double bytes) { return bytes / speeds.network_bytes; };
    const auto host = [&](double bytes) { return bytes / speeds.host_bytes; };
    const auto copy = [&](double bytes) { return bytes / speeds.copy_bytes; };
    // A block's input is copied beside another block's pass.
    const auto block = [&](double of_token) {
      const double input = tokens * static_cast<double>(options.shape.dim) * size;
      return options.inputs_in_host ? std::max(compute(of_token), copy(input)) : compute(of_token);
    };
    switch (task.op) {
      case Op::route:
      case Op::combine:
      case Op::combine_backward:
        return network(received(shards) * rows);
      case Op::route_backward:
        return network(received(shards) * 2 * rows);
      case Op::gather: {
        const double own = options.state_in_host ? copy(part * size)  // from host memory
                                                 : memory(part * (sizeof(float) + size));
        return own + (resident && is_experts[unit] ? 0 : network(received(shards) * whole * size));
      }
      case Op::embed:
      case Op::backward_embed:
        return memory(2 * tokens * static_cast<double>(options.shape.dim) * size);
      case Op::forward:
        return block(of_unit[unit]);
      case Op::head:
        return compute(3 * flops.head);
      case Op::evaluate:
        return compute(flops.head);
      case Op::backward:
        // Resident experts compute gate and up, two thirds of the forward pass, again.
        if (resident && is_experts[unit]) return compute(8.0 / 3 * of_unit[unit]);
        return block((recomputes ? 3 : 2) * of_unit[unit]);
      case Op::add:
        return memory(whole * (size + sizeof(float)));
      case Op::reduce: {
        const double element = task.sum == Task::kNone ? size : sizeof(float);
        return memory(part * (element + 2 * sizeof(float))) +
               (resident && is_experts[unit] ? 0 : network(received(shards) * whole * element));
      }
      case Op::exchange:  // to the ranks that add, and back
        return network(2 * received(groups) * part * sizeof(float));
      case Op::download:
        return copy(part * sizeof(float));
      case Op::hash:
        return options.state_in_host ? host(state) : 0.0;
      case Op::check:
        return options.state_in_host ? 0.0 : memory(state);
      case Op::update:
        // The host hashes what it reads and writes while it has it.
        if (options.state_in_host)
          return host(2 * state + static_cast<double>(layout.total) * (sizeof(float) + size));
        return memory(2 * state + static_cast<double>(layout.total) * sizeof(float));
      default:
        return 0.0;
    }
  };
}

}  // namespace simplescale
