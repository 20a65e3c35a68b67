#include "actors/node/check.hpp"

#include <caf/all.hpp>

#include "runtime/base/diagnose.hpp"
#include "transport/protocol/messages.hpp"

namespace simplescale {

void spawn_check(caf::actor_system& system, const caf::actor& node, const std::string& name,
                 const std::string& folder) {
  system.spawn<caf::detached>([node, name, folder](caf::event_based_actor* self) {
    const std::vector<CheckResult> results = check_machine(folder);
    self->send(node,
               NodeChecked{name, all_ok(results), complaints(results), to_json(results).dump()});
  });
}

}  // namespace simplescale
