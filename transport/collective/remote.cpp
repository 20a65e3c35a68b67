#include "transport/collective/remote.hpp"

#include <sodium.h>

namespace simplescale::collective {

Secret make_secret(const std::string& key, uint64_t generation, uint64_t name_hash,
                   std::span<const uint64_t> members) {
  std::vector<uint64_t> what{generation, name_hash};
  what.insert(what.end(), members.begin(), members.end());
  Secret secret;
  static_assert(sizeof secret >= crypto_generichash_BYTES_MIN);
  crypto_generichash(
      reinterpret_cast<unsigned char*>(secret.data()), sizeof secret,
      reinterpret_cast<const unsigned char*>(what.data()), what.size() * sizeof what[0],
      key.empty() ? nullptr : reinterpret_cast<const unsigned char*>(key.data()), key.size());
  return secret;
}

}  // namespace simplescale::collective
