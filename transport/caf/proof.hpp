// Proves that a process has the run's key, without sending the key. A proof is a keyed BLAKE2b hash
// of what both sides of a connection have sent in their hellos, including fresh nonces (libsodium's
// crypto_generichash). Any thread.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/status.hpp"

namespace simplescale::remote {

constexpr size_t kNonceBytes = 32;
constexpr size_t kProofBytes = 32;
using Nonce = std::array<uint8_t, kNonceBytes>;
using Proof = std::array<uint8_t, kProofBytes>;

/// One side of a handshake, as in its hello or welcome.
struct Side {
  std::vector<uint8_t> node;  // node_to_bytes()
  uint64_t token = 0;
  Nonce nonce{};
  std::vector<uint8_t> address;  // of its messenger
};

/// Call it once, before the other functions. internal: libsodium does not work here.
Status init_crypto();
Nonce random_nonce();
uint64_t random_token();  // never 0
/// A name of the token for traces: the same on both sides, and useless without the key. 0: no
/// token.
uint32_t name_of_token(const std::string& key, uint64_t token);

/// The message that carries the proof; a proof is valid for one role only. The proof of a hello can
/// be replayed: it only shows that a process with the key has sent this address.
enum class Role : uint8_t { welcome = 1, proof = 2, hello = 3 };

/// The proof that `from` sends to `to`. key: 32 bytes. An empty key (in tests) gives no protection:
/// the proof then only shows that both sides belong to the same run.
Proof prove(const std::string& key, const std::string& run_id, Role role, const Side& from,
            const Side& to);
/// Compares in constant time. False if the length differs.
bool equal(const Proof& proof, std::span<const uint8_t> claimed);

}  // namespace simplescale::remote
