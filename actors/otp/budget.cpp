#include "actors/otp/budget.hpp"

#include <algorithm>
#include <cmath>

#include "runtime/base/splitmix64.hpp"

namespace simplescale::supervision {

Spent spend(Budgets& budgets, const Intensity& intensity, const std::string& id, int64_t now_ms) {
  Budget& own = budgets[id];
  own.restarts_ms.push_back(now_ms);
  if (own.attempts < std::numeric_limits<uint32_t>::max()) ++own.attempts;
  uint64_t all = 0;
  for (auto& [_, budget] : budgets) {
    auto& restarts = budget.restarts_ms;
    while (!restarts.empty() && now_ms - restarts.front() > intensity.within_ms)
      restarts.pop_front();
    while (restarts.size() > uint64_t{intensity.max_restarts} + 1) restarts.pop_front();
    all += restarts.size();
  }
  const uint64_t count = intensity.scope == Intensity::Scope::child ? own.restarts_ms.size() : all;
  return {count > intensity.max_restarts, count, own.attempts};
}

/// In [0, 1), with 53 random bits.
static double uniform(uint64_t seed, uint64_t draw) {
  return static_cast<double>(splitmix64_at(seed, draw) >> 11) * 0x1.0p-53;
}

int64_t back_off_ms(const BackOff& back_off, uint32_t attempts, uint64_t draw) {
  if (back_off.first_ms <= 0 || attempts == 0) return 0;
  const double full = std::min(static_cast<double>(back_off.max_ms),
                               static_cast<double>(back_off.first_ms) *
                                   std::pow(back_off.factor, static_cast<double>(attempts - 1)));
  return static_cast<int64_t>(full * (1.0 - back_off.jitter * uniform(back_off.seed, draw)));
}

}  // namespace simplescale::supervision
