#include "transport/caf/proof.hpp"

#include <sodium.h>

#include <array>
#include <cstring>

namespace simplescale::remote {

namespace {

static_assert(kProofBytes == crypto_generichash_BYTES);
constexpr char kDomain[] = "simplescale handshake";

class Hash {
 public:
  explicit Hash(const std::string& key) {
    const bool none = key.empty();
    crypto_generichash_init(&state_,
                            none ? nullptr : reinterpret_cast<const unsigned char*>(key.data()),
                            key.size(), kProofBytes);
  }
  void add(const void* data, size_t bytes) {
    crypto_generichash_update(&state_, static_cast<const unsigned char*>(data), bytes);
  }
  void add(uint64_t number) {
    uint8_t bytes[8];
    for (int i = 0; i < 8; ++i) bytes[i] = static_cast<uint8_t>(number >> (8 * i));
    add(bytes, sizeof bytes);
  }
  /// Adds a text with its length before it, so that different lists of texts never give the same
  /// bytes.
  void add_text(const void* data, size_t bytes) {
    add(bytes);
    add(data, bytes);
  }
  void add(const Side& side) {
    add_text(side.node.data(), side.node.size());
    add(side.token);
    add(side.nonce.data(), side.nonce.size());
    add_text(side.address.data(), side.address.size());
  }
  Proof finish() {
    Proof proof;
    crypto_generichash_final(&state_, proof.data(), proof.size());
    return proof;
  }

 private:
  crypto_generichash_state state_;
};

}  // namespace

Status init_crypto() {
  if (sodium_init() >= 0) return {};
  return {Code::internal, "libsodium cannot be initialised"};
}

Nonce random_nonce() {
  Nonce nonce;
  randombytes_buf(nonce.data(), nonce.size());
  return nonce;
}

uint32_t name_of_token(const std::string& key, uint64_t token) {
  if (token == 0) return 0;
  std::array<uint8_t, crypto_generichash_BYTES_MIN> hash;
  crypto_generichash(
      hash.data(), hash.size(), reinterpret_cast<const uint8_t*>(&token), sizeof token,
      key.empty() ? nullptr : reinterpret_cast<const uint8_t*>(key.data()), key.size());
  uint32_t name;
  std::memcpy(&name, hash.data(), sizeof name);
  return name;
}

uint64_t random_token() {
  uint64_t token = 0;
  while (token == 0) randombytes_buf(&token, sizeof token);
  return token;
}

Proof prove(const std::string& key, const std::string& run_id, Role role, const Side& from,
            const Side& to) {
  Hash hash(key);
  hash.add(kDomain, sizeof kDomain);
  hash.add(static_cast<uint64_t>(role));
  hash.add_text(run_id.data(), run_id.size());
  hash.add(from);
  hash.add(to);
  return hash.finish();
}

bool equal(const Proof& proof, std::span<const uint8_t> claimed) {
  return claimed.size() == proof.size() &&
         sodium_memcmp(proof.data(), claimed.data(), proof.size()) == 0;
}

}  // namespace simplescale::remote
