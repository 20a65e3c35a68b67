// The invariants of layouts: which nodes a generation has, and in which shape.
#include <algorithm>

#include "actors/supervisor/decision/placement.hpp"
#include "tests/simulation/invariants.hpp"

namespace simplescale::simulation {

void Invariants::check_layout(const Supervisor& supervisor) {
  const job::State& s = supervisor.job;
  std::set<std::string> seen;
  const int least = s.giving_up ? 1 : s.rules.min_domains;
  const Shape shape = shape_of(s.layout);
  const auto size = static_cast<size_t>(shape.size);
  require(s.layout.domains.size() >= static_cast<size_t>(least) &&
              s.layout.domains.size() * size <= s.nodes.size(),
          "layout", number(s.layout.domains.size()) + " domains");
  require(shape.size == cluster_.options.domain_nodes ||
              std::ranges::find(cluster_.options.sizes, shape.size) != cluster_.options.sizes.end(),
          "layout", "domains of " + number(size) + " nodes");
  if (cluster_.options.sizes.empty())
    require(s.layout.domains.size() <= static_cast<size_t>(s.rules.most_domains()), "layout",
            number(s.layout.domains.size()) + " domains");
  check_shape(s);
  for (const auto& domain : s.layout.domains) {
    require(domain.size() == size, "layout",
            "a domain of " + number(domain.size()) + " nodes, and one of " + number(size));
    for (const std::string& name : domain) {
      require(seen.insert(name).second, "layout", name + " has two places");
      const job::NodeState state = s.nodes.at(name).state;
      const bool saves = s.giving_up && state == job::NodeState::drained;
      require(state == job::NodeState::up || saves, "layout",
              name + " is " + job::to_string(s.nodes.at(name).state) + " and in the layout");
      const Node& node = cluster_.nodes[static_cast<size_t>(cluster_.node_index.at(name))];
      require(s.giving_up || !removed_.contains(s.nodes.at(name).pid), "GEN-1",
              name + " is in the layout, but its agent was removed from the run");
      // The supervisor has not heard yet that another host has taken the name.
      const bool known = node.up && node.pid == s.nodes.at(name).pid;
      require(!known || node.instructions >= s.instructions, "BACKEND-3",
              name + " lacks the instructions with which the run computes");
      require(!lost_.contains({supervisor.term, name}), "layout",
              name + " is in the layout although it was lost");
    }
  }
}

Invariants::Shape Invariants::shape_of(const job::Layout& layout) const {
  if (layout.domains.empty()) return {cluster_.options.domain_nodes, 0};
  return {static_cast<int>(layout.domains.front().size()), layout.domains.size()};
}

/// A size that failed twice waits until another one has made a step; after two failures in a row
/// only sizes that have worked count.
bool Invariants::tries(const job::State& s, const job::Layout& current, int size) const {
  if (size == cluster_.options.domain_nodes) return true;
  if (s.giving_up) return size == shape_of(current).size;
  if (s.cycles >= 2) return size == s.proven_size;
  const auto failed = s.failed_sizes.find(size);
  return failed == s.failed_sizes.end() || failed->second < 2;
}

std::optional<Invariants::Shape> Invariants::best_shape(const job::State& s,
                                                        const job::Layout& current,
                                                        size_t nodes) const {
  const Options& o = cluster_.options;
  const Shape now = shape_of(current);
  const auto configured =
      static_cast<size_t>((o.first() - o.spares) / o.domain_nodes * o.domain_nodes);
  const auto wanted = std::max(configured, nodes - std::min(nodes, static_cast<size_t>(o.spares)));
  std::vector<Shape> shapes;
  for (int size = 1; size <= o.nodes; ++size) {
    if (size != o.domain_nodes && std::ranges::find(o.sizes, size) == o.sizes.end()) continue;
    if (!tries(s, current, size)) continue;
    const auto each = static_cast<size_t>(size);
    // Domains that train stay, also those of more nodes than are wanted by now.
    const size_t most = std::max(wanted / each, now.size == size ? now.domains : 0);
    const Shape shape{size, std::min(nodes / each, most)};
    const auto least = static_cast<size_t>(s.giving_up ? 1 : s.rules.min_domains);
    if (shape.domains > 0 && shape.domains >= least) shapes.push_back(shape);
  }
  std::optional<Shape> best;
  for (const Shape& shape : shapes)
    if (shape.size == o.domain_nodes) best = shape;
  const Shape plain = best.value_or(Shape{});
  const auto is_safe = [&](const Shape& shape) { return o.rate_first || shape.domains > 1; };
  // The others must be worth the moves, and keep replicas if the configured size has them.
  std::vector<Shape> others;
  for (const Shape& shape : shapes)
    if (shape.size != o.domain_nodes && 10 * shape.nodes() >= 11 * (best ? plain.nodes() : 0) &&
        (is_safe(shape) || !best || !is_safe(plain)))
      others.push_back(shape);
  const bool any_safe = std::ranges::any_of(others, is_safe);
  std::optional<Shape> stays, most;
  for (const Shape& shape : others) {
    if (any_safe && !is_safe(shape)) continue;
    if (now.domains > 0 && shape.size == now.size) stays = shape;
    if (!most || shape.nodes() > most->nodes()) most = shape;  // of equal ones, the smallest size
  }
  if (stays && 10 * most->nodes() < 11 * stays->nodes()) most = stays;
  return most ? most : best;
}

bool Invariants::grows(const job::State& s) const {
  const Shape now = shape_of(s.layout);
  const auto best = best_shape(s, s.layout, job::usable_nodes(s, true).size());
  if (!best) return false;
  return best->size == now.size ? best->domains > now.domains : best->nodes() >= now.nodes();
}

void Invariants::check_shape(const job::State& s) {
  const size_t nodes = job::usable_nodes(s, true).size();
  const Shape shape = shape_of(s.layout);
  const auto text = [](const std::optional<Shape>& of) {
    return of ? number(of->domains) + " of " + number(static_cast<uint64_t>(of->size)) : "none";
  };
  const auto best = best_shape(s, s.previous_layout, nodes);
  // Where steps would be lost with it, another size waits for the nodes that are missing.
  if (undoes_ && shape.size == cluster_.options.domain_nodes) return;
  require(best == shape, "RESHAPE-1",
          "failure domains: " + text(shape) + " nodes, but " + text(best) + " are better with " +
              number(nodes) + " nodes, after " + text(shape_of(s.previous_layout)));
  require(s.giving_up || !grows(s), "RESHAPE-1",
          "failure domains: " + text(shape) + " nodes, which would be left at once");
}

/// A generation that ends for another shape is followed by one of another shape.
void Invariants::check_left(const Supervisor& supervisor, const job::Action& action) {
  if (supervisor.term != cluster_.disk.newest_term) return;
  const job::State& s = supervisor.job;
  const auto now = [&] { return std::pair(shape_of(s.layout), job::usable_nodes(s, true).size()); };
  const auto* leave = std::get_if<job::Leave>(&action);
  const auto* join = std::get_if<job::Join>(&action);
  if (leave && leave->reason.starts_with("enough nodes are up"))
    left_ = now();
  else if (join && left_)
    require(join->by_agents || std::exchange(left_, std::nullopt) != now() || undoes_, "RESHAPE-1",
            "a generation was left for another shape, and the next one has the same");
  else if (std::holds_alternative<job::Fence>(action))
    left_.reset();
}

}  // namespace simplescale::simulation
