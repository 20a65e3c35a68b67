#include "transport/caf/envelope.hpp"

#include <capnp/any.h>
#include <capnp/schema.h>

#include <algorithm>
#include <cstring>
#include <new>

namespace simplescale::remote {
namespace {

constexpr size_t kEnvelopeWords = 64;  // for the envelope and a small body

struct FreeWords : kj::ArrayDisposer {
  void disposeImpl(void* first, size_t, size_t, size_t, void (*)(void*)) const override {
    std::free(first);
  }
};
const FreeWords free_words{};

}  // namespace

EnvelopeBuilder::Memory EnvelopeBuilder::zeroed(size_t words) {
  auto* memory = static_cast<capnp::word*>(std::calloc(words, sizeof(capnp::word)));
  if (!memory) throw std::bad_alloc();
  return Memory(memory);
}

EnvelopeBuilder::EnvelopeBuilder(size_t body_bytes)
    : first_(zeroed(1 + kEnvelopeWords + body_bytes / sizeof(capnp::word))),
      first_words_(kEnvelopeWords + body_bytes / sizeof(capnp::word)) {}

kj::ArrayPtr<capnp::word> EnvelopeBuilder::allocateSegment(unsigned minimum_words) {
  if (!first_used_ && minimum_words <= first_words_) {
    first_used_ = true;
    return kj::arrayPtr(first_.get() + 1, first_words_);
  }
  first_used_ = true;
  size_t words = std::max<size_t>(minimum_words, first_words_);
  more_.push_back(zeroed(words));
  return kj::arrayPtr(more_.back().get(), words);
}

Words EnvelopeBuilder::finish() {
  auto segments = getSegmentsForOutput();
  if (segments.size() != 1 || segments[0].begin() != first_.get() + 1) {
    return capnp::messageToFlatArray(segments);
  }
  // Cap'n Proto's segment table: number of segments - 1, then the size of each in words.
  uint32_t table[2] = {0, static_cast<uint32_t>(segments[0].size())};
  std::memcpy(first_.get(), table, sizeof table);
  return Words(first_.release(), 1 + segments[0].size(), free_words);
}

Words readdressed(const Words& words, uint64_t receiver) {
  static const size_t field = capnp::Schema::from<wire::Message>()
                                  .getFieldByName("receiver")
                                  .getProto()
                                  .getSlot()
                                  .getOffset();  // in units of the field's size
  Words copy(static_cast<capnp::word*>(std::malloc(words.asBytes().size())), words.size(),
             free_words);
  if (!copy.begin()) throw std::bad_alloc();
  std::memcpy(copy.begin(), words.begin(), words.asBytes().size());
  capnp::FlatArrayMessageReader reader(copy, reader_options(copy.size()));
  const auto message = reader.getRoot<wire::Envelope>().getMessage();
  const auto data = capnp::AnyStruct::Reader(message).getDataSection();
  KJ_REQUIRE(data.size() >= (field + 1) * sizeof receiver);
  auto* at = const_cast<capnp::byte*>(data.begin()) + field * sizeof receiver;  // within `copy`
  std::memcpy(at, &receiver, sizeof receiver);
  return copy;
}

}  // namespace simplescale::remote
