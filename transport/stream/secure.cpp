#include "transport/stream/secure.hpp"

#include <algorithm>
#include <cstring>

#include "runtime/base/status.hpp"

namespace simplescale::stream {
namespace {

using Bytes = std::span<const uint8_t>;

constexpr uint8_t kMagic[8] = {'S', 's', 'S', 't', 'r', 'm', '2', '\n'};
constexpr size_t kKeyBytes = crypto_kx_PUBLICKEYBYTES, kMacBytes = 32;
constexpr size_t kExtra = RecordCipher::kTagBytes;  // of each record
constexpr size_t kHelloBytes = sizeof kMagic + kKeyBytes + kMacBytes;
constexpr size_t kWelcomeBytes = kKeyBytes + kMacBytes;
constexpr size_t kLengthBytes = 4;
static_assert(RecordCipher::kKeyBytes == kMacBytes);

}  // namespace

Secure::Secure(Side side, std::string key, const Id& server)
    : side_(side),
      key_(std::move(key)),
      server_(server),
      stage_(side == Side::client ? Stage::welcome : Stage::hello) {
  // A server makes its pair after the hello's proof: a stranger costs one hash (STREAM-1).
  if (side == Side::client) crypto_kx_keypair(public_.data(), secret_.data());
}

Secure::~Secure() {
  sodium_memzero(key_.data(), key_.size());
  sodium_memzero(secret_.data(), secret_.size());
}

/// A keyed hash of the label, the server's id, what both sides have sent so far, and the message.
Secure::Mac Secure::mac(const char* label, Bytes message) const {
  crypto_generichash_state state;
  crypto_generichash_init(&state,
                          key_.empty() ? nullptr : reinterpret_cast<const uint8_t*>(key_.data()),
                          key_.size(), kMacBytes);
  char name[16] = {};  // of a fixed length, so that no two inputs give the same bytes
  std::strncpy(name, label, sizeof name - 1);
  crypto_generichash_update(&state, reinterpret_cast<const uint8_t*>(name), sizeof name);
  crypto_generichash_update(&state, server_.data(), server_.size());
  crypto_generichash_update(&state, transcript_.data(), transcript_.size());
  crypto_generichash_update(&state, message.data(), message.size());
  Mac result;
  crypto_generichash_final(&state, result.data(), result.size());
  return result;
}

/// The keys of both directions. Call it when the transcript is complete. False: a bad public key.
bool Secure::derive(Bytes their_key) {
  uint8_t receive[crypto_kx_SESSIONKEYBYTES], send[crypto_kx_SESSIONKEYBYTES];
  const auto agree =
      side_ == Side::client ? crypto_kx_client_session_keys : crypto_kx_server_session_keys;
  const bool good = agree(receive, send, public_.data(), secret_.data(), their_key.data()) == 0;
  Mac send_key = mac("key", send), receive_key = mac("key", receive);  // of different inputs
  send_.emplace(RecordCipher::Use::seal, send_key);
  receive_.emplace(RecordCipher::Use::open, receive_key);
  for (auto* key : {send, receive}) sodium_memzero(key, crypto_kx_SESSIONKEYBYTES);
  for (Mac* key : {&send_key, &receive_key}) sodium_memzero(key->data(), key->size());
  sodium_memzero(secret_.data(), secret_.size());
  return good;
}

void Secure::begin(Buffer& out) {
  if (side_ != Side::client || !transcript_.empty()) return;
  Buffer hello(kMagic, kMagic + sizeof kMagic);
  append(hello, public_);
  append(hello, mac("hello", hello));
  transcript_ = hello;
  append(out, hello);
}

bool Secure::take_hello(Bytes message, Buffer& out) {
  const Bytes body = message.first(kHelloBytes - kMacBytes);
  const Mac wanted = mac("hello", body);
  if (std::memcmp(body.data(), kMagic, sizeof kMagic) != 0 ||
      sodium_memcmp(wanted.data(), message.data() + body.size(), kMacBytes) != 0)
    return false;
  crypto_kx_keypair(public_.data(), secret_.data());
  append(transcript_, message);
  Buffer welcome(public_.begin(), public_.end());
  append(welcome, mac("welcome", welcome));
  append(transcript_, welcome);
  if (!derive(body.subspan(sizeof kMagic))) return false;
  append(out, welcome);
  stage_ = Stage::first_record;
  return true;
}

bool Secure::take_welcome(Bytes message, Buffer& out) {
  const Bytes body = message.first(kKeyBytes);
  const Mac wanted = mac("welcome", body);
  if (sodium_memcmp(wanted.data(), message.data() + body.size(), kMacBytes) != 0) return false;
  append(transcript_, message);
  if (!derive(body)) return false;
  seal({}, out);
  stage_ = Stage::proven;
  return true;
}

/// Bytes of the next message, as far as they are known; 0: it cannot be a message.
size_t Secure::needed(Bytes in) const {
  switch (stage_) {
    case Stage::hello:
      return kHelloBytes;
    case Stage::welcome:
      return kWelcomeBytes;
    default:
      break;
  }
  if (in.size() < kLengthBytes) return kLengthBytes;
  uint32_t length;
  std::memcpy(&length, in.data(), sizeof length);
  const size_t most = stage_ == Stage::first_record ? kExtra : kRecordMax + kExtra;
  return length < kExtra || length > most ? 0 : kLengthBytes + length;
}

bool Secure::take(Bytes message, Buffer& plain, Buffer& out) {
  switch (stage_) {
    case Stage::hello:
      return take_hello(message, out);
    case Stage::welcome:
      return take_welcome(message, out);
    default:
      break;
  }
  const Bytes sealed = message.subspan(kLengthBytes);
  const size_t before = plain.size();
  plain.resize(before + sealed.size() - kExtra);
  if (!receive_->open(sealed, plain.data() + before)) {
    plain.resize(before);
    return false;
  }
  stage_ = Stage::proven;
  return true;
}

bool Secure::receive(Bytes in, Buffer& plain, Buffer& out) {
  while (!in_.empty()) {  // the message that an earlier call has begun
    const size_t wanted = needed(in_);
    if (wanted == 0) return false;
    const size_t more = std::min(wanted - in_.size(), in.size());
    append(in_, in.first(more));
    in = in.subspan(more);
    if (in_.size() < wanted) return true;
    const size_t bytes = needed(in_);  // the length may be known only now
    if (bytes == 0) return false;
    if (in_.size() < bytes) continue;
    if (!take(in_, plain, out)) return false;
    Buffer().swap(in_);  // an idle connection keeps no memory
  }
  for (;;) {
    const size_t bytes = needed(in);
    if (bytes == 0) return false;
    if (in.size() < bytes) break;
    if (!take(in.first(bytes), plain, out)) return false;
    in = in.subspan(bytes);
  }
  append(in_, in);
  return true;
}

void Secure::seal(Bytes plain, Buffer& out) {
  SS_ASSERT(plain.size() <= kRecordMax);
  const auto length = static_cast<uint32_t>(plain.size() + kExtra);
  const size_t at = out.size();
  out.resize(at + kLengthBytes + length);
  std::memcpy(out.data() + at, &length, kLengthBytes);
  send_->seal(plain, out.data() + at + kLengthBytes);
}

}  // namespace simplescale::stream
