#include "actors/supervisor/run_signature.hpp"

#include "runtime/run/chosen_products.hpp"

namespace simplescale {

Signature signature_of_run(const RunFolder& run, const Config& config, const Plan& plan) {
  Arithmetic arithmetic = arithmetic_of_host(config);
  if (arithmetic.cuda) arithmetic.products = chosen_products(run);
  return signature_of(config, plan, arithmetic);
}

}  // namespace simplescale
