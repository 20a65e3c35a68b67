// Which nodes a generation may have. Pure functions of the state, any thread.
#pragma once

#include <string>
#include <vector>

#include "actors/supervisor/decision/decide.hpp"

namespace simplescale::job {

/// Nodes that a new layout may use, those with the fewest failures first: nodes that are up and
/// idle. A run that gives up also uses drained nodes that have its instructions. with_training: also
/// the nodes of the current layout.
std::vector<std::string> usable_nodes(const State& s, bool with_training);
/// BACKEND-3: true if the node's host lacks the instructions with which the run computes.
bool lacks_instructions(const State& s, const Node& node);
/// Why such a node does not train, and what to do, as text for users.
std::string why_unfit(const State& s, const Node& node);
/// With which code a run ends that has too few nodes.
Code too_few_nodes(const State& s);
/// The layout that these nodes are to form (choose_layout()). Failure domains have a size that has
/// not failed: after two generations in a row without a committed step the configured size, or that
/// of the last layout that has committed one; at other times any but one with two such generations.
/// A run that gives up takes the configured or the current size. usable: as of usable_nodes().
Layout next_layout(const State& s, const std::vector<std::string>& usable);
/// True if enough failure domains remain without this node.
bool can_spare(const State& s, const std::string& name);
/// True if groups of another size than the configured one must wait for missing nodes: a committed step
/// would be undone, and a lost node may come back with a newer state: its agent may live, and it was
/// lost at the step with which they would begin, or later, or no step was committed since its loss.
/// From initial values no such groups begin at all.
bool size_waits(const State& s, const Layout& next, bool waited);
/// The nodes that cannot train now, with the reason for each, as text for users.
std::string missing_nodes(const State& s);
/// The difference between the layouts, as text for users.
std::string describe_change(const State& s, const Layout& before, const Layout& next);
/// "1 group instead of 2"; if their sizes differ, "3 groups of 1 node instead of 2 of 2".
std::string groups_instead(int64_t groups, int nodes, int64_t were, int had);
/// "3 groups of 1 node (configured: 2 of 2)"; "" while the configured groups train, or none do.
std::string other_shape(const State& s);
/// Nodes of the layout with a trainer that could not read the generation's checkpoint.
std::vector<std::string> nodes_without_checkpoint(const State& s);
/// True if most nodes of the layout were lost less than vote_ms ago. A network partition may
/// separate them from this supervisor; then they may vote against it, and the next generation waits
/// for that vote.
bool may_be_cut_off(const State& s, int64_t now_ms);
/// "2 groups": training waits while fewer groups are possible.
std::string groups_needed(const State& s);
/// The fewest failure domains of a generation. A generation that only saves needs one. With fewer
/// nodes than that, agents save (decide_end.cpp).
size_t domains_needed(const State& s);

}  // namespace simplescale::job
