// Who has the run's key, shown without sending it: BLAKE2b, keyed, over what both sides of a
// connection have said in their hellos, fresh nonces among it (libsodium's crypto_generichash).
// Pure functions, any thread.
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

/// One side of a handshake, as in its hello.
struct Side {
  std::vector<uint8_t> node;  // node_to_bytes()
  uint64_t token = 0;
  Nonce nonce{};
  std::vector<uint8_t> address;  // of its UCX worker
};

/// internal: libsodium cannot be used on this machine.
Status init_crypto();
Nonce random_nonce();
uint64_t random_token();  // never 0

/// Which of the messages with a proof it is: one cannot be sent back as another. A hello's shows
/// only that its sender's address comes from somebody with the key: it can be replayed.
enum class Role : uint8_t { welcome = 1, proof = 2, hello = 3 };

/// What `from` shows to `to`. key: 32 bytes, or empty for processes that need no protection (all of
/// a test): they still have to be of the same run.
Proof prove(const std::string& key, const std::string& run_id, Role role, const Side& from,
            const Side& to);
/// In constant time; false if it has another length.
bool equal(const Proof& proof, std::span<const uint8_t> claimed);

}  // namespace simplescale::remote
