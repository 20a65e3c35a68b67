// Reads pieces of objects through a bounded local cache (chunk_files.hpp). Objects are fetched in
// chunks, each by one ranged request with If-Match, so that all pieces are of the same object. Holds
// one chunk in memory for each thread that fetches. Any thread may read; reads block on the network.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/object_store/chunk_files.hpp"
#include "runtime/object_store/object_store.hpp"

namespace simplescale {

/// An object that is read in chunks.
struct ChunkedObject {
  S3Url url;
  uint64_t bytes = 0;
  std::string etag;
  size_t chunk_bytes = 4 << 20;  // of every chunk but the last
  /// The name of its chunks in the cache: changes with the contents.
  std::string cache_name() const;
};

class ObjectReader {
 public:
  static constexpr size_t kThreads = 8;     // that read ahead
  static constexpr size_t kQueueMax = 256;  // chunks that are to be read ahead

  /// cache: null: nothing is kept. limits: of one request of read(), with its tries.
  ObjectReader(std::shared_ptr<ChunkFiles> cache, StoreLimits limits,
               Environment environment = process_environment());
  ~ObjectReader();  // stop()
  ObjectReader(const ObjectReader&) = delete;
  ObjectReader& operator=(const ObjectReader&) = delete;

  /// Fills `out` with the bytes from `offset` on. bad_data: the object was replaced, or ends before;
  /// aborted: after stop(); otherwise errors as ObjectStore.
  Status read(const ChunkedObject& object, uint64_t offset, std::span<char> out);
  /// Fetches what read() will ask for, in the background. An error is left to read(). False: ask
  /// again later, since the queue is full, or half of the cache waits to be read.
  bool read_ahead(const ChunkedObject& object, uint64_t offset, uint64_t bytes);
  /// Ends all reads with aborted. May be called again.
  void stop();

  /// The store of a bucket, with the limits of read().
  Result<std::shared_ptr<ObjectStore>> store(const std::string& bucket);

 private:
  using ChunkId = std::pair<std::string, uint64_t>;  // cache_name() and index
  struct Order {
    ChunkedObject object;
    uint64_t index = 0;
  };
  struct Stores {
    std::shared_ptr<ObjectStore> reading, ahead;
  };
  Result<Stores> stores(const std::string& bucket);
  Status read_chunk(const ChunkedObject& object, uint64_t index, uint64_t offset,
                    std::span<char> out);
  Status fetch(ObjectStore& store, const ChunkedObject& object, uint64_t index,
               std::vector<char>& chunk);
  void run();
  void end_flight(const ChunkId& id);

  const std::shared_ptr<ChunkFiles> cache_;
  const StoreLimits limits_;
  const Environment environment_;
  const std::shared_ptr<std::atomic<bool>> stopped_;

  std::mutex mutex_;                // guards all below
  std::condition_variable landed_;  // a chunk is no longer in flight
  std::condition_variable work_;    // the queue has a chunk, or stop() was called
  std::map<std::string, Stores> stores_;
  std::deque<Order> queue_;
  std::set<ChunkId> queued_, in_flight_;
  std::set<ChunkId> ahead_;  // are or were in the queue, and are not read yet
  std::vector<std::thread> threads_;
};

}  // namespace simplescale
