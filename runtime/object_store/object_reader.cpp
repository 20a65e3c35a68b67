#include "runtime/object_store/object_reader.hpp"

#include <pthread.h>

#include <algorithm>

#include "runtime/base/hash.hpp"
#include "runtime/base/log.hpp"

namespace simplescale {

std::string ChunkedObject::cache_name() const {
  const std::string text =
      url.text() + "\n" + etag + "\n" + std::to_string(bytes) + "\n" + std::to_string(chunk_bytes);
  return hash128(text.data(), text.size()).hex();
}

ObjectReader::ObjectReader(std::shared_ptr<ChunkFiles> cache, StoreLimits limits,
                           Environment environment)
    : cache_(std::move(cache)),
      limits_(std::move(limits)),
      environment_(std::move(environment)),
      stopped_(std::make_shared<std::atomic<bool>>(false)) {}

ObjectReader::~ObjectReader() {
  stop();
  for (std::thread& thread : threads_) thread.join();
}

void ObjectReader::stop() {
  *stopped_ = true;
  const std::lock_guard lock(mutex_);
  work_.notify_all();
}

Result<ObjectReader::Stores> ObjectReader::stores(const std::string& bucket) {
  const std::lock_guard lock(mutex_);
  Stores& found = stores_[bucket];
  if (found.reading) return found;
  StoreLimits limits = limits_;
  limits.http.stopped = [stopped = stopped_] { return stopped->load(); };
  SS_ASSIGN(found.reading, open_object_store({bucket, ""}, limits, environment_));
  limits.tries = std::min(limits.tries, 3);
  found.ahead = found.reading->with_limits(limits);
  return found;
}

Result<std::shared_ptr<ObjectStore>> ObjectReader::store(const std::string& bucket) {
  SS_ASSIGN(const Stores both, stores(bucket));
  return both.reading;
}

Status ObjectReader::read(const ChunkedObject& object, uint64_t offset, std::span<char> out) {
  if (offset > object.bytes || out.size() > object.bytes - offset)
    return {Code::bad_data, object.url.text() + ": ends at byte " + std::to_string(object.bytes) +
                                ", before byte " + std::to_string(offset + out.size())};
  while (!out.empty()) {
    const uint64_t index = offset / object.chunk_bytes, inside = offset % object.chunk_bytes;
    const auto bytes =
        static_cast<size_t>(std::min<uint64_t>(out.size(), object.chunk_bytes - inside));
    SS_RETURN_IF_ERROR(read_chunk(object, index, inside, out.first(bytes)));
    out = out.subspan(bytes);
    offset += bytes;
  }
  return {};
}

namespace {
size_t bytes_of(const ChunkedObject& object, uint64_t index) {
  return static_cast<size_t>(
      std::min<uint64_t>(object.chunk_bytes, object.bytes - index * object.chunk_bytes));
}
}  // namespace

Status ObjectReader::read_chunk(const ChunkedObject& object, uint64_t index, uint64_t offset,
                                std::span<char> out) {
  const ChunkId id{object.cache_name(), index};
  const auto cached = [&] {
    return cache_ && cache_->read(id.first, index, bytes_of(object, index), offset, out);
  };
  {
    const std::lock_guard lock(mutex_);
    ahead_.erase(id);
  }
  if (cached()) return {};
  {
    std::unique_lock lock(mutex_);
    // A fetch has a deadline, so this wait has one.
    landed_.wait(lock, [&] { return !in_flight_.contains(id); });
    in_flight_.insert(id);
  }
  if (cached()) {  // another thread has fetched it meanwhile
    end_flight(id);
    return {};
  }
  {
    const std::lock_guard lock(mutex_);
    ahead_.clear();  // what was announced is not what is read
  }
  std::vector<char> chunk;
  Status status;
  if (auto both = stores(object.url.bucket); both.ok())
    status = fetch(*both->reading, object, index, chunk);
  else
    status = both.status();
  end_flight(id);
  if (!status.ok()) return status;
  std::copy_n(chunk.begin() + static_cast<std::ptrdiff_t>(offset), out.size(), out.begin());
  return {};
}

void ObjectReader::end_flight(const ChunkId& id) {
  const std::lock_guard lock(mutex_);
  in_flight_.erase(id);
  landed_.notify_all();
}

/// Gets a chunk from its server and keeps it.
Status ObjectReader::fetch(ObjectStore& store, const ChunkedObject& object, uint64_t index,
                           std::vector<char>& chunk) {
  chunk.resize(bytes_of(object, index));
  const Status status =
      store.get_range(object.url.key, index * object.chunk_bytes, chunk, object.etag);
  if (status.code() == Code::mismatch)
    return {Code::bad_data, object.url.text() +
                                ": was replaced after this run began to read it (its etag is no "
                                "longer " +
                                object.etag + "); restore it, or start a new run"};
  if (status.ok() && cache_) cache_->write(object.cache_name(), index, chunk);
  return status;
}

bool ObjectReader::read_ahead(const ChunkedObject& object, uint64_t offset, uint64_t bytes) {
  if (!cache_ || bytes == 0 || offset >= object.bytes) return true;
  const std::string name = object.cache_name();
  const uint64_t end = std::min(object.bytes, offset + bytes);
  for (uint64_t i = offset / object.chunk_bytes; i * object.chunk_bytes < end; ++i) {
    if (cache_->has(name, i)) continue;
    const std::lock_guard lock(mutex_);
    if (queued_.contains({name, i}) || in_flight_.contains({name, i})) continue;
    if (*stopped_ || queue_.size() >= kQueueMax) return false;
    // More would remove from the cache what was read ahead and is not read yet.
    if (ahead_.size() > 0 && ahead_.size() >= cache_->bytes_max() / 2 / object.chunk_bytes)
      return false;
    ahead_.insert({name, i});
    queue_.push_back({object, i});
    queued_.insert({name, i});
    if (threads_.size() < kThreads) {
      threads_.emplace_back([this] { run(); });
      pthread_setname_np(threads_.back().native_handle(), "read-ahead");
    }
    work_.notify_one();
  }
  return true;
}

void ObjectReader::run() {
  std::vector<char> chunk;
  while (true) {
    Order order;
    ChunkId id;
    {
      std::unique_lock lock(mutex_);
      work_.wait(lock, [&] { return *stopped_ || !queue_.empty(); });
      if (*stopped_) return;
      order = std::move(queue_.front());
      queue_.pop_front();
      id = {order.object.cache_name(), order.index};
      queued_.erase(id);
      if (!in_flight_.insert(id).second) continue;  // a reader is faster
    }
    auto both = stores(order.object.url.bucket);
    const Status status = both.ok() && !cache_->has(id.first, id.second)
                              ? fetch(*both->ahead, order.object, order.index, chunk)
                              : both.status();
    end_flight(id);
    if (!status.ok()) log::debug("read-ahead: {}", status.message());
  }
}

}  // namespace simplescale
