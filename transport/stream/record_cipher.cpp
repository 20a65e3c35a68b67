#include "transport/stream/record_cipher.hpp"

#include <cstring>

#include "runtime/base/status.hpp"

namespace simplescale::stream {

RecordCipher::RecordCipher(Use use, std::span<const uint8_t, kKeyBytes> key)
    : context_(EVP_CIPHER_CTX_new()) {
  SS_ASSERT(context_);
  const int made = EVP_CipherInit_ex(context_.get(), EVP_chacha20_poly1305(), nullptr, key.data(),
                                     nullptr, use == Use::seal ? 1 : 0);
  SS_ASSERT(made == 1);
}

const uint8_t* RecordCipher::next_nonce() {
  std::memcpy(nonce_ + 4, &records_, sizeof records_);  // all machines of a run have one byte order
  ++records_;
  return nonce_;
}

void RecordCipher::seal(std::span<const uint8_t> plain, uint8_t* sealed) {
  EVP_CIPHER_CTX* context = context_.get();
  int bytes = 0;
  bool good = EVP_EncryptInit_ex(context, nullptr, nullptr, nullptr, next_nonce()) == 1;
  if (!plain.empty())
    good = good && EVP_EncryptUpdate(context, sealed, &bytes, plain.data(),
                                     static_cast<int>(plain.size())) == 1;
  uint8_t* tag = sealed + plain.size();
  good = good && EVP_EncryptFinal_ex(context, tag, &bytes) == 1 &&
         EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_AEAD_GET_TAG, kTagBytes, tag) == 1;
  SS_ASSERT(good);
}

bool RecordCipher::open(std::span<const uint8_t> sealed, uint8_t* plain) {
  SS_ASSERT(sealed.size() >= kTagBytes);
  EVP_CIPHER_CTX* context = context_.get();
  const auto body = sealed.first(sealed.size() - kTagBytes);
  auto* tag = const_cast<uint8_t*>(sealed.data() + body.size());  // only read
  int bytes = 0;
  bool good = EVP_DecryptInit_ex(context, nullptr, nullptr, nullptr, next_nonce()) == 1 &&
              EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_AEAD_SET_TAG, kTagBytes, tag) == 1;
  if (!body.empty())
    good = good && EVP_DecryptUpdate(context, plain, &bytes, body.data(),
                                     static_cast<int>(body.size())) == 1;
  uint8_t unused[kTagBytes];
  return good && EVP_DecryptFinal_ex(context, unused, &bytes) == 1;
}

}  // namespace simplescale::stream
