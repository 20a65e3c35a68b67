#include "transport/collective/plane_address.hpp"

#include <cstring>
#include <sstream>

namespace simplescale::collective {
namespace {

// Magic, host id, segment name, incarnation, address of each worker, trusted networks (each ends
// with a newline), each preceded by its length in bytes (uint32, native byte order).
constexpr uint32_t kAddressMagic = 0x32615353;

void put(std::vector<uint8_t>& out, const void* data, size_t bytes) {
  const auto length = static_cast<uint32_t>(bytes);
  const auto* head = reinterpret_cast<const uint8_t*>(&length);
  const auto* body = static_cast<const uint8_t*>(data);
  out.insert(out.end(), head, head + sizeof(length));
  out.insert(out.end(), body, body + bytes);
}

std::optional<std::span<const uint8_t>> take(std::span<const uint8_t>& in) {
  uint32_t length;
  if (in.size() < sizeof(length)) return std::nullopt;
  std::memcpy(&length, in.data(), sizeof(length));
  in = in.subspan(sizeof(length));
  if (length > in.size()) return std::nullopt;
  const auto field = in.first(length);
  in = in.subspan(length);
  return field;
}

}  // namespace

std::vector<uint8_t> encode_plane(const PlaneAddress& address) {
  std::string trusted;
  for (const std::string& network : address.trusted) trusted += network + "\n";
  std::vector<uint8_t> out;
  put(out, &kAddressMagic, sizeof(kAddressMagic));
  put(out, address.host_id.data(), address.host_id.size());
  put(out, address.segment.data(), address.segment.size());
  put(out, &address.incarnation, sizeof(address.incarnation));
  put(out, address.stream.data(), address.stream.size());
  put(out, address.ucx.data(), address.ucx.size());
  put(out, trusted.data(), trusted.size());
  return out;
}

std::optional<PlaneAddress> decode_plane(std::span<const uint8_t> in) {
  const auto magic = take(in);
  if (!magic || magic->size() != sizeof(kAddressMagic) ||
      std::memcmp(magic->data(), &kAddressMagic, sizeof(kAddressMagic)) != 0)
    return std::nullopt;
  const auto host = take(in), segment = take(in), incarnation = take(in), stream = take(in),
             ucx = take(in), trusted = take(in);
  PlaneAddress address;
  if (!trusted || !in.empty() || incarnation->size() != sizeof(address.incarnation))
    return std::nullopt;
  address.host_id.assign(host->begin(), host->end());
  address.segment.assign(segment->begin(), segment->end());
  std::memcpy(&address.incarnation, incarnation->data(), sizeof(address.incarnation));
  address.stream.assign(stream->begin(), stream->end());
  address.ucx.assign(ucx->begin(), ucx->end());
  std::istringstream names(std::string(trusted->begin(), trusted->end()));
  for (std::string name; std::getline(names, name);) address.trusted.insert(name);
  const bool plain = !address.segment.empty() && address.segment.find('/') == std::string::npos &&
                     address.segment.find('\0') == std::string::npos;
  return plain ? std::optional(address) : std::nullopt;
}

bool use_ucx(const PlaneAddress& a, const PlaneAddress& b) {
  return !a.ucx.empty() && !b.ucx.empty() && a.trusted == b.trusted;
}

}  // namespace simplescale::collective
