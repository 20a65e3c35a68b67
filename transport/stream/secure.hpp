// An encrypted connection, as bytes: takes what has arrived, gives what to send. No sockets. One
// thread.
//
//   client -> server  magic, X25519 key, MAC under the run's key: for this server only
//   server -> client  X25519 key, MAC under the run's key over it and the client's message
//   client -> server  an empty record
//
// After that both send records: length (4 bytes), ciphertext (record_cipher.hpp). The keys, one for
// each direction, are those of crypto_kx, hashed with the run's key and all of the handshake.
//
//   STREAM-1  A process without the run's key can make this process keep a hundred bytes and
//             compute one hash; nothing that it sends is parsed. Without the key nobody reads,
//             inserts, changes, reorders or repeats records: the connection ends instead.
#pragma once

#include <sodium.h>

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "transport/stream/address.hpp"
#include "transport/stream/buffer.hpp"
#include "transport/stream/record_cipher.hpp"

namespace simplescale::stream {

class Secure {
 public:
  static constexpr size_t kRecordMax = 64 << 10;  // of plaintext
  enum class Side : uint8_t { client, server };

  /// key: the run's, 32 bytes, or empty for no protection (in tests). server: the id in the
  /// address of the server, also if this is the server. Call sodium_init() before.
  Secure(Side side, std::string key, const Id& server);
  ~Secure();
  Secure(const Secure&) = delete;
  Secure& operator=(const Secure&) = delete;

  /// Takes bytes that have arrived; appends what is decrypted to `plain`, and what must be sent to
  /// `out`. False: the other side does not have the key, or the bytes were changed on the way.
  [[nodiscard]] bool receive(std::span<const uint8_t> in, Buffer& plain, Buffer& out);
  /// Appends the client's first message, once, at the beginning.
  void begin(Buffer& out);
  /// True once a hello has arrived that was made with the key, by the other side or by the process
  /// from which it was recorded.
  bool greeted() const { return stage_ != Stage::hello; }
  /// True once the other side has proven that it has the key; seal() may be called from then on.
  bool proven() const { return stage_ == Stage::proven; }
  /// Appends one record. plain: at most kRecordMax bytes.
  void seal(std::span<const uint8_t> plain, Buffer& out);
  /// Bytes reserved for a message that has not arrived in whole.
  size_t memory() const { return in_.capacity(); }

 private:
  using Mac = std::array<uint8_t, 32>;
  enum class Stage : uint8_t { hello, welcome, first_record, proven };
  size_t needed(std::span<const uint8_t> in) const;
  bool take(std::span<const uint8_t> message, Buffer& plain, Buffer& out);
  bool take_hello(std::span<const uint8_t> message, Buffer& out);
  bool take_welcome(std::span<const uint8_t> message, Buffer& out);
  Mac mac(const char* label, std::span<const uint8_t> message) const;
  bool derive(std::span<const uint8_t> their_key);

  const Side side_;
  std::string key_;
  const Id server_;
  Stage stage_;
  std::array<uint8_t, crypto_kx_PUBLICKEYBYTES> public_{};
  std::array<uint8_t, crypto_kx_SECRETKEYBYTES> secret_{};
  Buffer transcript_;                           // hello, welcome
  std::optional<RecordCipher> send_, receive_;  // once the keys are known
  Buffer in_;                                   // the beginning of the next message
};

}  // namespace simplescale::stream
