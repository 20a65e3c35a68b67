#include "tools/convert/digest.hpp"

#include <algorithm>
#include <optional>
#include <vector>

#include "runtime/base/json_members.hpp"

namespace simplescale {
namespace {

std::string line(const Parameter& parameter, StateKind kind, DType dtype, const Hash128& hash) {
  std::string text = parameter.name;
  if (kind != StateKind::params) text += std::string(".") + to_string(kind);
  text += " [";
  for (size_t i = 0; i < parameter.shape.size(); ++i)
    text += (i ? ", " : "") + std::to_string(parameter.shape[i]);
  return text + "] " + to_string(dtype) + " " + hash.hex() + "\n";
}

}  // namespace

Result<std::string> digest(Checkpoint& checkpoint) {
  std::string text;
  std::optional<Hasher> hasher;
  std::vector<uint16_t> packed;
  for (const StateKind kind : checkpoint.kinds()) {
    const DType dtype = checkpoint.info().state.dtype(kind);
    for (size_t unit = 0; unit < checkpoint.units().size(); ++unit) {
      auto sink = [&](const Parameter& parameter, size_t offset, std::span<const float> values) {
        if (offset == 0) hasher.emplace();
        if (dtype == DType::f32) {
          hasher->update(values.data(), values.size_bytes());
        } else {
          packed.resize(values.size());
          std::ranges::transform(values, packed.begin(), f32_to_bf16);
          hasher->update(packed.data(), packed.size() * sizeof(uint16_t));
        }
        if (offset + values.size() == parameter.count)
          text += line(parameter, kind, dtype, hasher->digest());
        return Status();
      };
      SS_RETURN_IF_ERROR(stream_parameters(checkpoint, kind, unit, sink));
    }
  }
  const std::string signature =
      text_of(signature_record_in(checkpoint.info().resume), "hash", "none");
  const std::string all = text + "step " + std::to_string(checkpoint.info().step) + "\n";
  return text + "signature " + signature + "\ntotal " + hash128(all.data(), all.size()).hex() +
         "\n";
}

}  // namespace simplescale
