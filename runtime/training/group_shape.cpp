#include "runtime/training/group_shape.hpp"

#include <algorithm>
#include <functional>
#include <utility>

namespace simplescale {

namespace {

std::vector<GroupShape> shapes_of(const ShapeRules& rules, size_t nodes,
                                  const CurrentGroups& current) {
  std::vector<GroupShape> shapes;
  for (const int size : rules.sizes) {
    const bool is_current = size == current.size;
    const size_t groups = is_current ? current.groups : nodes / static_cast<size_t>(size);
    if (groups > 0 && groups >= rules.least_groups)
      shapes.push_back({size, groups, size == rules.configured, is_current});
  }
  return shapes;
}

}  // namespace

std::optional<GroupShape> choose_shape(const ShapeRules& rules, size_t nodes,
                                       const CurrentGroups& current) {
  std::vector<GroupShape> shapes = shapes_of(rules, nodes, current);
  const bool rate_first = rules.rate_first;
  GroupShape configured, now;  // without groups: not among the shapes
  for (const GroupShape& shape : shapes) {
    if (shape.configured) configured = shape;
    if (shape.current) now = shape;
  }
  const auto trains_more = [](const GroupShape& than) {
    return [=](const GroupShape& shape) { return 10 * shape.nodes() >= 11 * than.nodes(); };
  };
  const auto keep = [&](auto&& is_good) {
    if (std::ranges::any_of(shapes, is_good)) std::erase_if(shapes, std::not_fn(is_good));
  };
  const bool replicas = configured.groups > 1 && !rate_first;
  std::erase_if(shapes, [&](const GroupShape& shape) {
    return !trains_more(configured)(shape) || (replicas && shape.groups == 1);
  });
  if (shapes.empty()) return std::nullopt;
  if (!rate_first) keep([](const GroupShape& shape) { return shape.groups > 1; });
  if (now.groups > 0 && std::ranges::none_of(shapes, trains_more(now)))
    keep([](const GroupShape& shape) { return shape.current; });
  return *std::ranges::max_element(
      shapes, {}, [](const GroupShape& shape) { return std::pair(shape.nodes(), -shape.size); });
}

}  // namespace simplescale
