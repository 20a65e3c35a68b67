// The implementation of UcxWorker. Only its three source files include this header:
//   ucx_worker.cpp    the thread and its connections
//   ucx_messages.cpp  sending and receiving
//   ucx_link.cpp      the Link that callers use
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "transport/collective/ucx_worker.hpp"
#include "transport/ucx/ucx.hpp"

namespace simplescale::collective {

inline constexpr unsigned kUcxMessageId = 1;
inline constexpr uint32_t kUcxMagic = 0x31637353;
inline constexpr size_t kUcxFragment = size_t{1} << 20;  // largest part of a piece in one message
inline constexpr size_t kUcxEarly = size_t{64} << 20;    // small pieces that wait for the caller
inline constexpr size_t kUcxWindow = 8;                  // fragments of one queue in flight
inline constexpr size_t kUcxHeld = 16;                   // pieces of a stream, fetched ahead
inline constexpr size_t kUcxStreamsMax = 512;            // of a member

enum class UcxKind : uint32_t { hello, acknowledge, bye, data };

/// The header of every message, in native byte order.
struct UcxHeader {
  uint32_t magic;
  UcxKind kind;
  uint64_t generation;
  uint64_t name_hash;
  uint32_t from, to;
  uint64_t key;
  uint64_t offset;
  Secret secret;

  static UcxHeader of(const UcxChannel& channel, UcxKind kind, uint32_t to, uint64_t key = 0,
                      uint64_t offset = 0) {
    return {kUcxMagic,
            kind,
            channel.generation,
            channel.name_hash,
            static_cast<uint32_t>(channel.rank),
            to,
            key,
            offset,
            channel.secret};
  }
};

/// Why a member is broken, after a failed UCX call.
inline std::string lost(ucs_status_t status) {
  return std::string("is lost (") + ucs_status_string(status) + ")";
}

/// `lock` guards the channels' contents, `channels`, `commands` and `pool`. Only the worker's
/// thread uses the rest.
struct UcxWorker::Impl {
  struct Connection {
    std::unique_ptr<ucx::Endpoint> endpoint;
    ucs_status_t failed = UCS_OK;
  };
  /// A send that UCX has not completed.
  struct Sending {
    Impl* impl;
    UcxHeader header;
    std::unique_ptr<std::byte[]> data;
    size_t bytes = 0;
    bool large = false;  // `data` is a buffer of the pool
    int queue = 0;       // if large: index in UcxMember::queues
    UcxChannelPtr channel;
  };
  struct Receiving {
    Impl* impl;
    UcxChannelPtr channel;
    uint32_t from;
    std::shared_ptr<UcxPiece> piece;
  };

  std::function<void()> ring;
  std::unique_ptr<ucx::Context> context;
  std::unique_ptr<ucx::Worker> worker;
  std::map<WorkerAddress, Connection> connections;
  std::chrono::steady_clock::time_point next_hello;
  std::atomic<int> spin_us{0};
  std::atomic<bool> stop{false};
  std::thread thread;

  std::mutex lock;
  std::map<std::pair<uint64_t, uint64_t>, UcxChannelPtr> channels;
  std::vector<std::function<void()>> commands;
  std::vector<std::unique_ptr<std::byte[]>> pool;  // idle buffers of kUcxFragment bytes each

  // --- Any thread ---

  void post(std::function<void()> command) {
    {
      std::lock_guard guard(lock);
      commands.push_back(std::move(command));
    }
    worker->signal();
  }

  // --- The worker's thread ---

  Status start(const ucx::Devices& devices);
  void run();
  bool run_commands();
  void send_hellos();
  bool close_failed();
  void fail_members(const WorkerAddress& address, const std::string& why);
  ucp_ep_h connect(const WorkerAddress& address);
  void send_control(UcxKind kind, const UcxChannelPtr& channel, uint32_t to);
  void send(std::unique_ptr<Sending> sending);
  void send_waiting(const UcxChannelPtr& channel, uint32_t to);
  void on_sent(std::unique_ptr<Sending> sending, ucs_status_t status);
  void fetch(const UcxChannelPtr& channel, uint32_t from, uint64_t key);
  bool fetch_next(const UcxChannelPtr& channel, uint32_t from, uint64_t key);
  void on_received(std::unique_ptr<Receiving> receiving, ucs_status_t status);
  ucs_status_t on_message(const UcxHeader& header, void* data, size_t bytes, bool announced);
  void end_channel(const UcxChannelPtr& channel, bool graceful);
  void close_all();

  // --- Under the lock ---

  std::unique_ptr<std::byte[]> take_buffer();
  void give_buffer(std::unique_ptr<std::byte[]> buffer);
};

}  // namespace simplescale::collective
