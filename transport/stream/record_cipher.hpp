// Encrypts or decrypts the records of one direction of a connection, in their order. One thread.
//
// ChaCha20-Poly1305 (RFC 8439) by OpenSSL: the nonce is the number of the record, from 0 on. So a
// key must be of one direction of one connection only. A record that is changed, repeated, missing
// or out of order does not open. There is no limit of records or bytes to reckon with (RFC 9001,
// 6.6): the number has 64 bits, and the first record that does not open ends the connection.
#pragma once

#include <openssl/evp.h>

#include <cstdint>
#include <memory>
#include <span>

namespace simplescale::stream {

class RecordCipher {
 public:
  static constexpr size_t kKeyBytes = 32, kTagBytes = 16;
  enum class Use : uint8_t { seal, open };

  RecordCipher(Use use, std::span<const uint8_t, kKeyBytes> key);

  /// Writes plain.size() + kTagBytes to `sealed`, which must not overlap `plain`.
  void seal(std::span<const uint8_t> plain, uint8_t* sealed);
  /// sealed: at least kTagBytes. Writes sealed.size() - kTagBytes to `plain`. False: it is not the
  /// next record; then what was written must not be used, and no other record may follow.
  [[nodiscard]] bool open(std::span<const uint8_t> sealed, uint8_t* plain);

 private:
  const uint8_t* next_nonce();
  struct Free {
    void operator()(EVP_CIPHER_CTX* context) const { EVP_CIPHER_CTX_free(context); }  // erases it
  };
  std::unique_ptr<EVP_CIPHER_CTX, Free> context_;
  uint64_t records_ = 0;
  uint8_t nonce_[12] = {};
};

}  // namespace simplescale::stream
