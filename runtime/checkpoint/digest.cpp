#include "runtime/checkpoint/digest.hpp"

#include <optional>

namespace simplescale {
namespace {

std::string line(const Parameter& parameter, StateKind kind, const Hash128& hash) {
  std::string text = parameter.name;
  if (kind != StateKind::params) text += std::string(".") + to_string(kind);
  text += " [";
  for (size_t i = 0; i < parameter.shape.size(); ++i)
    text += (i ? ", " : "") + std::to_string(parameter.shape[i]);
  return text + "] float32 " + hash.hex() + "\n";
}

}  // namespace

Result<std::string> digest(Checkpoint& checkpoint) {
  std::string text;
  std::optional<Hasher> hasher;
  for (const StateKind kind : checkpoint.kinds())
    for (size_t unit = 0; unit < checkpoint.units().size(); ++unit) {
      auto sink = [&](const Parameter& parameter, size_t offset, std::span<const float> values) {
        if (offset == 0) hasher.emplace();
        hasher->update(values.data(), values.size_bytes());
        if (offset + values.size() == parameter.count)
          text += line(parameter, kind, hasher->digest());
        return Status();
      };
      SS_RETURN_IF_ERROR(stream_parameters(checkpoint, kind, unit, sink));
    }
  const std::string all = text + "step " + std::to_string(checkpoint.info().step) + "\n";
  return text + "total " + hash128(all.data(), all.size()).hex() + "\n";
}

}  // namespace simplescale
