#include "actors/supervisor/run_signature.hpp"

#include "runtime/config/run_instructions.hpp"
#include "runtime/run/chosen_products.hpp"

namespace simplescale {

Signature signature_of_run(const RunFolder& run, const Config& config, const Plan& plan) {
  Arithmetic arithmetic = arithmetic_of_host(config);
  if (arithmetic.cuda) {
    arithmetic.products = chosen_products(run);
  } else {
    const auto set = required_instructions(run, config);
    if (set.ok() && *set != InstructionSet::automatic) arithmetic.instructions = to_string(*set);
  }
  return signature_of(config, plan, arithmetic);
}

}  // namespace simplescale
