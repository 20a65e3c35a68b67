#include "actors/trainer/batch_reader.hpp"

namespace simplescale {

Result<BatchReader> BatchReader::open(const std::string& segment, uint64_t ring,
                                      uint64_t generation, std::chrono::milliseconds timeout,
                                      std::function<bool()> fenced) {
  SS_ASSIGN(TokenRings rings, TokenRings::open(segment));
  return BatchReader(std::move(rings), ring, generation, timeout, std::move(fenced));
}

Result<const int32_t*> BatchReader::read(uint64_t step, int k) {
  SS_RETURN_IF_ERROR(release());
  SS_ASSIGN(const MicroBatch batch, acquire({generation_, step - 1, static_cast<uint64_t>(k)}));
  holds_slot_ = true;
  return batch.tokens;
}

Status BatchReader::release() {
  if (!holds_slot_) return {};
  holds_slot_ = false;
  return rings_.release(ring_);
}

/// A bad token is reported as io: from the engine, bad_data means a loss that is not finite.
Result<MicroBatch> BatchReader::acquire(const BatchKey& key) {
  constexpr int interval_ms = 50;
  const auto deadline = std::chrono::steady_clock::now() + timeout_;
  while (true) {
    auto batch = rings_.acquire(ring_, key, interval_ms);
    if (batch.status().code() == Code::bad_data) {
      bad_tokens_ = true;
      return Status(Code::io, batch.status().message());
    }
    if (batch.status().code() != Code::deadline) return batch;
    if (fenced_()) return Status(Code::aborted, "fenced while waiting for tokens");
    if (std::chrono::steady_clock::now() > deadline)
      return Status(Code::deadline, "no tokens within " + std::to_string(timeout_.count()) + " ms");
  }
}

}  // namespace simplescale
