#include "transport/nccl/communicator.hpp"

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <optional>
#include <thread>
#include <utility>

#include "runtime/base/device_memory_retry.hpp"
#include "transport/nccl/greeting.hpp"
#include "transport/nccl/status.hpp"
#include "transport/nccl/tree_build.hpp"

namespace simplescale::nccl {
namespace {

using std::chrono::milliseconds;
constexpr milliseconds kErrorCheckInterval{1};    // between checks for NCCL's errors while waiting
constexpr milliseconds kCloseTimeout{5000};       // for close() and the destructor
constexpr size_t kNcclBytes = size_t{512} << 20;  // that NCCL needs at least
constexpr int kNcclHangs = 75;                    // EX_TEMPFAIL: the process's exit code

ncclDataType_t type_of(DType dtype) {
  return dtype == DType::f32 ? ncclFloat32 : ncclBfloat16;
}

/// In native byte order: all ranks run the same build.
struct Identifier {
  ncclUniqueId id;  // only rank 0's is used
  int32_t result;
};

/// Runs `body` in an NCCL group and always ends the group. Returns the first error.
template <class Body>
ncclResult_t in_group(Body body) {
  if (const ncclResult_t begun = ncclGroupStart(); begun != ncclSuccess) return begun;
  const ncclResult_t inside = body();
  const ncclResult_t ended = ncclGroupEnd();
  return inside == ncclSuccess || inside == ncclInProgress ? ended : inside;
}

/// Functions that the loaded NCCL may lack if it is older than the one of the build; then null. Not
/// weak references, which mold makes strong.
struct UserBuffers {
  decltype(ncclMemAlloc)* allocate = find<decltype(ncclMemAlloc)>("ncclMemAlloc");
  decltype(ncclMemFree)* free = find<decltype(ncclMemFree)>("ncclMemFree");
  decltype(ncclCommRegister)* add = find<decltype(ncclCommRegister)>("ncclCommRegister");
  decltype(ncclCommDeregister)* remove = find<decltype(ncclCommDeregister)>("ncclCommDeregister");
  template <class F>
  static F* find(const char* name) {
    return reinterpret_cast<F*>(dlsym(RTLD_DEFAULT, name));
  }
};
const UserBuffers& user_buffers() {
  static const UserBuffers found;
  return found;
}

}  // namespace

class NcclCommunicator::Handle final : public Work {
 public:
  Handle(NcclCommunicator* communicator, const char* name, uint64_t number, Result<Event> event)
      : communicator_(communicator), name_(name), number_(number) {
    if (event.ok())
      event_.emplace(event.take());
    else
      status_ = event.status();
  }
  ~Handle() override { (void)wait(); }
  Status wait() override {
    if (event_) status_ = communicator_->wait(name_, number_, *event_);
    event_.reset();
    return status_;
  }

 private:
  NcclCommunicator* communicator_;
  const char* name_;
  uint64_t number_;
  std::optional<Event> event_;  // none: status_ is final
  Status status_;
};

NcclCommunicator::NcclCommunicator(Spec spec, std::shared_ptr<Collective> host,
                                   std::unique_ptr<Stream> stream,
                                   std::function<void(NcclCommunicator*)> forget)
    : DeviceCollective(std::move(host), std::move(stream)),
      spec_(std::move(spec)),
      forget_(std::move(forget)) {}

NcclCommunicator::~NcclCommunicator() {
  forget_(this);
  close();
  if (aborted_.valid() &&
      aborted_.wait_for(milliseconds(spec_.abort_timeout_ms)) != std::future_status::ready)
    end_process("ncclCommAbort");
  if (!stream_->finish(Clock::now() + kCloseTimeout).ok()) return;  // leaks the device memory
  // After an abort the backend's last kernels may still read the buffers of allocate(). Wait for
  // them.
  (void)cudaDeviceSynchronize();
  for (void* block : blocks_) (void)cudaFree(block);
  for (void* block : shared_blocks_) (void)user_buffers().free(block);
}

/// Ends the communicator; ncclCommFinalize waits until peers have received what this rank sent.
void NcclCommunicator::close() {
  if (is_dead_) return;
  const auto limit = Clock::now() + kCloseTimeout;
  Status closed = stream_->finish(limit);
  for (void* registration : std::exchange(registrations_, {}))
    if (closed.ok())
      closed = call("deregister", limit,
                    [&](ncclComm_t comm) { return user_buffers().remove(comm, registration); });
  if (closed.ok()) closed = call("finalize", limit, ncclCommFinalize);
  if (!closed.ok()) {
    (void)fail(Status(Code::aborted, spec_.name + " has been destroyed"));
    return;
  }
  std::lock_guard guard(comm_lock_);
  if (comm_) (void)ncclCommDestroy(comm_);
  comm_ = nullptr;
}

// --- Connecting ---

Status NcclCommunicator::connect() {
  const auto limit = this->limit();
  SS_ASSIGN(const Greeting mine, own_greeting(stream_->device_index(), spec_.host));
  std::vector<Greeting> all(static_cast<size_t>(size()));
  SS_RETURN_IF_ERROR(host_->all_gather_bytes(&mine, all.data(), sizeof(mine))->wait());
  SS_RETURN_IF_ERROR(check_greetings(spec_.name, all));

  std::vector<uint64_t> hosts;
  for (const Greeting& each : all) hosts.push_back(each.host);
  per_host_ = ranks_per_host(hosts);

  // Once all ranks are here: an identifier that is not used keeps a thread and a port for ever.
  Identifier own{};
  own.result = rank() == 0 ? ncclGetUniqueId(&own.id) : ncclSuccess;
  std::vector<Identifier> identifiers(all.size());
  SS_RETURN_IF_ERROR(host_->all_gather_bytes(&own, identifiers.data(), sizeof(own))->wait());
  const Identifier& first = identifiers[0];
  if (first.result != ncclSuccess)
    return Status(Code::unavailable,
                  spec_.name + ": NCCL cannot make an identifier on rank 0: " +
                      ncclGetErrorString(static_cast<ncclResult_t>(first.result)));

  wait_for_memory(limit);
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  {
    std::lock_guard guard(comm_lock_);
    if (is_dead_) return dead();
    const ncclResult_t begun = ncclCommInitRankConfig(&comm_, size(), first.id, rank(), &config);
    if (is_error(begun)) return nccl_status(begun, "init", nullptr).in(spec_.name);
  }
  SS_RETURN_IF_ERROR(wait_until_ready("init", limit));
  return use_first(limit);
}

/// NCCL fails at once without memory, but the driver takes a second or two to free that of a killed
/// process. If there is too little in the end, NCCL says so.
void NcclCommunicator::wait_for_memory(Clock::time_point limit) const {
  if (size() == 1) return;
  DeviceMemoryRetry patience;
  size_t free = 0, total = 0;
  do
    if (cudaMemGetInfo(&free, &total) != cudaSuccess) return;
  while (free < kNcclBytes && patience.again(limit));
}

/// data: 2 * size() * bytes.
Status NcclCommunicator::connect_pairs(std::byte* data, size_t bytes) {
  return call("first use", [&](ncclComm_t comm) {
    return in_group([&] {
      ncclResult_t result = ncclSuccess;
      for (int r = 0; r < size() && !is_error(result); ++r) {
        if (r == rank()) continue;
        std::byte *from = data + static_cast<size_t>(r) * bytes,
                  *to = from + static_cast<size_t>(size()) * bytes;
        result = ncclSend(from, bytes, ncclInt8, r, comm, stream_->handle());
        if (!is_error(result)) result = ncclRecv(to, bytes, ncclInt8, r, comm, stream_->handle());
      }
      return result;
    });
  });
}

Status NcclCommunicator::use_first(Clock::time_point limit) {
  constexpr size_t kBytes = 256;
  SS_ASSIGN(std::byte * data, scratch(2 * static_cast<size_t>(size()) * kBytes));
  // Each pair takes device memory (runtime/config/memory.cpp); NCCL's own sums need no pairs.
  if (!spec_.native_sums) SS_RETURN_IF_ERROR(connect_pairs(data, kBytes));
  SS_RETURN_IF_ERROR(call("first use", [&](ncclComm_t comm) {
    return ncclAllGather(data + static_cast<size_t>(rank()) * kBytes, data, kBytes, ncclInt8, comm,
                         stream_->handle());
  }));
  SS_ASSIGN(const Event event, Event::record(stream_->handle()));
  const Status used = poll(limit, [&]() -> Result<bool> {
    SS_ASSIGN(const bool ready, check_ready("first use"));
    SS_ASSIGN(const bool done, event.done());
    return ready && done;
  });
  if (used.code() == Code::deadline)
    return fail(Status(Code::deadline, spec_.name + ": NCCL did not connect within " +
                                           std::to_string(spec_.timeout_ms) + " ms"));
  return used.ok() ? used : fail(used);
}

/// NCCL's own sums read and write memory of ncclMemAlloc in place inside a host, too. There is none
/// with an older NCCL or without room; then other memory does.
Result<void*> NcclCommunicator::allocate(size_t bytes) {
  void* data = nullptr;
  const bool shared = registers_buffers() && user_buffers().allocate && bytes > 0 &&
                      user_buffers().allocate(&data, bytes) == ncclSuccess;
  if (shared) {
    shared_blocks_.push_back(data);
    Status zeroed = SS_CUDA_STATUS(cudaMemsetAsync(data, 0, bytes, stream_->handle()));
    if (zeroed.ok()) zeroed = stream_->finish(limit());
    SS_RETURN_IF_ERROR(zeroed.in(spec_.name));
  } else {
    (void)cudaGetLastError();  // of an ncclMemAlloc that found no room
    Result<void*> made = stream_->allocate(bytes, limit());
    if (!made.ok()) return made.status().in(spec_.name);
    blocks_.push_back(data = *made);
  }
  register_buffer(data, bytes);
  return data;
}

bool NcclCommunicator::registers_buffers() const {
  return spec_.native_sums && size() > 1 && user_buffers().add && user_buffers().remove;
}

void NcclCommunicator::register_buffer(void* data, size_t bytes) {
  if (!registers_buffers() || bytes == 0) return;
  void* registration = nullptr;
  const Status registered = call("register", [&](ncclComm_t comm) {
    return user_buffers().add(comm, data, bytes, &registration);
  });
  // Operations work without it. Null: NCCL_LOCAL_REGISTER = 0.
  if (registered.ok() && registration) registrations_.push_back(registration);
}

/// Device memory for one operation. If it has to grow, the old block stays allocated: operations on
/// the stream may still use it.
Result<std::byte*> NcclCommunicator::scratch(size_t bytes) {
  if (bytes > scratch_bytes_) {
    SS_ASSIGN(void* data, allocate(bytes));
    scratch_ = static_cast<std::byte*>(data);
    scratch_bytes_ = bytes;
  }
  return scratch_;
}

// --- Operations ---

WorkPtr NcclCommunicator::start(const char* name, const std::function<Status()>& enqueue) {
  const uint64_t number = ++operations_;
  Status status = dead();
  if (status.ok()) status = stream_->after(followed_);
  if (status.ok()) status = enqueue();
  if (!status.ok()) return std::make_unique<Handle>(this, name, number, fail(status));
  return std::make_unique<Handle>(this, name, number, Event::record(stream_->handle()));
}

WorkPtr NcclCommunicator::all_gather(const void* shard, void* full, size_t count, DType dtype) {
  return start("all_gather", [&] {
    return call("all_gather", [&](ncclComm_t comm) {
      return ncclAllGather(shard, full, count, type_of(dtype), comm, stream_->handle());
    });
  });
}

WorkPtr NcclCommunicator::broadcast(void* data, size_t count, DType dtype, int root) {
  return start("broadcast", [&] {
    return call("broadcast", [&](ncclComm_t comm) {
      return ncclBroadcast(data, data, count, type_of(dtype), root, comm, stream_->handle());
    });
  });
}

WorkPtr NcclCommunicator::reduce_scatter(const void* full, void* shard, size_t count, DType dtype) {
  if (spec_.native_sums)
    return start("reduce_scatter", [&] {
      return call("reduce_scatter", [&](ncclComm_t comm) {
        return ncclReduceScatter(full, shard, count, type_of(dtype), ncclSum, comm,
                                 stream_->handle());
      });
    });
  return start(collective::plan_reduce_scatter(rank(), size(), full, shard, count, dtype));
}

WorkPtr NcclCommunicator::all_reduce(void* data, size_t count, DType dtype) {
  if (spec_.native_sums)
    return start("all_reduce", [&] {
      return call("all_reduce", [&](ncclComm_t comm) {
        return ncclAllReduce(data, data, count, type_of(dtype), ncclSum, comm, stream_->handle());
      });
    });
  return start(collective::plan_all_reduce(rank(), size(), data, count, dtype));
}

WorkPtr NcclCommunicator::reduce_scatter_leaves(const void* full, size_t count, DType dtype,
                                                std::span<const TreeNode> leaf_of_rank,
                                                PartialSum& slice) {
  if (spec_.native_sums)
    return start("reduce_scatter_leaves",
                 [&] { return native_leaves(full, count, dtype, leaf_of_rank.front(), slice); });
  if (per_host_ > 1 && leaves_fit(leaf_of_rank, size(), per_host_))
    return start("reduce_scatter_leaves",
                 [&] { return leaves_by_host(full, count, dtype, leaf_of_rank, slice); });
  return start(collective::plan_reduce_scatter_leaves(rank(), size(), full, count, dtype,
                                                      leaf_of_rank, slice));
}

WorkPtr NcclCommunicator::all_reduce_partials(const PartialSum& mine,
                                              std::span<const std::vector<TreeNode>> nodes_of_rank,
                                              float* total) {
  const bool none = std::ranges::all_of(nodes_of_rank, [](const auto& n) { return n.empty(); });
  if (none)
    return start("all_reduce_partials", [&] {
      return SS_CUDA_STATUS(
          cudaMemsetAsync(total, 0, mine.count() * sizeof(float), stream_->handle()));
    });
  if (spec_.native_sums)
    return start("all_reduce_partials", [&] { return native_total(mine, total); });
  return start(collective::plan_all_reduce_partials(rank(), size(), mine, nodes_of_rank, total));
}

WorkPtr NcclCommunicator::start(const collective::Plan& plan) {
  return start(plan.name, [&] { return run(plan); });
}

/// Queues three steps on the stream: send the summands to the rank that adds them, add, send the
/// result to all ranks.
Status NcclCommunicator::run(const collective::Plan& plan) {
  const size_t bytes = padded(plan.sum.count * bytes_of(plan.sum.dtype));
  const auto others = static_cast<size_t>(
      std::ranges::count_if(plan.sum.summands, [](const auto& s) { return !s.data; }));
  SS_ASSIGN(std::byte * received, scratch(others * bytes));
  SS_RETURN_IF_ERROR(exchange(plan, false, received));
  SS_RETURN_IF_ERROR(sum(plan, received));
  return exchange(plan, true, nullptr);
}

/// Queues the sends and receives before the sum, or those of its result. Both are in the order of
/// phases, because a rank's summands and its nodes are in leaf order.
Status NcclCommunicator::exchange(const collective::Plan& plan, bool after_sum,
                                  std::byte* received) {
  std::vector<Message> messages;
  for (const collective::Outgoing& o : plan.sends)
    if ((o.after == collective::After::sum) == after_sum)
      for (int peer = 0; peer < size(); ++peer)
        if (o.to == collective::kOthers ? peer != rank() : peer == o.to)
          messages.push_back({peer, o.data, nullptr, o.bytes});
  if (after_sum) {
    for (const collective::Incoming& c : plan.copies)
      messages.push_back({c.from, nullptr, c.to, c.bytes});
  } else {
    const size_t bytes = plan.sum.count * bytes_of(plan.sum.dtype);
    for (const collective::Summand& s : plan.sum.summands) {
      if (s.data) continue;
      messages.push_back({s.from, nullptr, received, bytes});
      received += padded(bytes);
    }
  }
  return transfer(plan.name, messages);
}

Status NcclCommunicator::transfer(const char* what, std::span<const Message> messages) {
  if (std::ranges::all_of(messages, [](const Message& m) { return m.bytes == 0; })) return {};
  return call(what, [&](ncclComm_t comm) {
    return in_group([&] {
      ncclResult_t result = ncclSuccess;
      for (const Message& m : messages) {
        if (m.bytes == 0) continue;
        result = m.from ? ncclSend(m.from, m.bytes, ncclInt8, m.peer, comm, stream_->handle())
                        : ncclRecv(m.to, m.bytes, ncclInt8, m.peer, comm, stream_->handle());
        if (is_error(result)) break;
      }
      return result;
    });
  });
}

Status NcclCommunicator::sum(const collective::Plan& plan, std::byte* received) {
  const collective::Sum& s = plan.sum;
  std::vector<TreeSource> sources;
  for (const collective::Summand& summand : s.summands) {
    const void* data = summand.data;
    if (!data) {
      data = received;
      received += padded(s.count * bytes_of(s.dtype));
    }
    sources.push_back({summand.node, data, s.dtype});
  }
  if (s.partial) return add(sources, *s.partial);
  SS_ASSIGN(const TreeProgram program, tree_total_program(sources, s.total, s.dtype));
  return SS_CUDA_STATUS(
      run_tree_program(stream_->handle(), program, static_cast<int64_t>(s.count)));
}

/// Queues the sum of `to` and the summands, which follow it.
Status NcclCommunicator::add(std::span<const TreeSource> summands, PartialSum& to) {
  std::vector<TreeSource> sources;
  for (size_t i = 0; i < to.nodes().size(); ++i)
    sources.push_back({to.nodes()[i], to.data(i), DType::f32});
  sources.insert(sources.end(), summands.begin(), summands.end());
  std::vector<TreeNode> nodes, added;
  for (const TreeSource& source : sources) nodes.push_back(source.node);
  for (const TreeSource& summand : summands) added.push_back(summand.node);
  std::vector<float*> sinks(merged(nodes).size());
  SS_ASSERT(sinks.size() <= to.buffers());
  for (size_t i = 0; i < sinks.size(); ++i) sinks[i] = to.buffer(i);
  SS_ASSIGN(const TreeProgram program, tree_program(sources, sinks));
  to.added(added);
  return SS_CUDA_STATUS(
      run_tree_program(stream_->handle(), program, static_cast<int64_t>(to.count())));
}

Status NcclCommunicator::leaves_by_host(const void* full, size_t count, DType dtype,
                                        std::span<const TreeNode> leaf_of_rank, PartialSum& slice) {
  SS_ASSIGN(std::byte * memory, scratch(host_sums_bytes(size(), per_host_, count, dtype)));
  const HostSums plan =
      plan_host_sums(rank(), size(), per_host_, full, count, dtype, leaf_of_rank, memory);
  SS_RETURN_IF_ERROR(transfer("reduce_scatter_leaves", plan.near));
  for (size_t host = 0; host < plan.sums.size(); ++host)
    SS_RETURN_IF_ERROR(total_of(plan.sums[host], plan.results[host], count));
  SS_RETURN_IF_ERROR(transfer("reduce_scatter_leaves", plan.far));
  return add(plan.summands, slice);
}

/// The slice becomes, or remains, one node: the sum of all leaves so far. `first` stands for it.
Status NcclCommunicator::native_leaves(const void* full, size_t count, DType dtype, TreeNode first,
                                       PartialSum& slice) {
  const void* leaves = full;
  if (size() > 1) {
    SS_ASSIGN(std::byte * received, scratch(count * bytes_of(dtype)));
    SS_RETURN_IF_ERROR(call("reduce_scatter_leaves", [&](ncclComm_t comm) {
      return ncclReduceScatter(full, received, count, type_of(dtype), ncclSum, comm,
                               stream_->handle());
    }));
    leaves = received;
  }
  std::vector<TreeSource> sources;
  if (!slice.nodes().empty()) sources.push_back({{0, 0}, slice.data(0), DType::f32});
  sources.push_back({{0, 1}, leaves, dtype});
  if (slice.nodes().empty()) slice.added({&first, 1});
  return total_of(sources, slice.buffer(0), count);
}

/// A rank without leaves adds zeros.
Status NcclCommunicator::native_total(const PartialSum& mine, float* total) {
  const bool one_node =
      mine.nodes().size() == 1 && (size() > 1 || mine.data(0) == total);  // nothing to add here
  const float* from = one_node ? mine.data(0) : total;
  if (mine.nodes().empty()) {
    SS_RETURN_IF_ERROR(
        SS_CUDA_STATUS(cudaMemsetAsync(total, 0, mine.count() * sizeof(float), stream_->handle())));
  } else if (!one_node) {
    std::vector<TreeSource> sources;
    for (size_t i = 0; i < mine.nodes().size(); ++i)
      sources.push_back({mine.nodes()[i], mine.data(i), DType::f32});
    SS_RETURN_IF_ERROR(total_of(sources, total, mine.count()));
  }
  if (size() == 1) return {};
  return call("all_reduce_partials", [&](ncclComm_t comm) {
    return ncclAllReduce(from, total, mine.count(), ncclFloat32, ncclSum, comm, stream_->handle());
  });
}

Status NcclCommunicator::total_of(std::span<const TreeSource> sources, float* total, size_t count) {
  SS_ASSIGN(const TreeProgram program, tree_total_program(sources, total, DType::f32));
  return SS_CUDA_STATUS(run_tree_program(stream_->handle(), program, static_cast<int64_t>(count)));
}

Status NcclCommunicator::wait(const char* name, uint64_t number, const Event& event) {
  auto next_check = Clock::now() + kErrorCheckInterval;
  const Status status = poll(limit(), [&]() -> Result<bool> {
    SS_ASSIGN(const bool done, event.done());
    if (is_dead_) return dead();  // asked last: an abort also ends the kernels
    if (done || Clock::now() < next_check) return done;
    next_check = Clock::now() + kErrorCheckInterval;
    SS_ASSIGN(const bool ready, check_ready(name));
    (void)ready;
    return false;
  });
  if (status.ok()) return status;
  if (status.code() != Code::deadline) return fail(status);
  return fail(Status(Code::deadline, spec_.name + ": " + name + " (operation " +
                                         std::to_string(number) + ") did not end within " +
                                         std::to_string(spec_.timeout_ms) +
                                         " ms; NCCL does not report which rank is missing"));
}

// --- Calls to NCCL ---

Status NcclCommunicator::call(const char* what, Clock::time_point limit,
                              const std::function<ncclResult_t(ncclComm_t)>& function) {
  {
    std::lock_guard guard(comm_lock_);
    if (!comm_) return dead();
    if (const ncclResult_t result = function(comm_); is_error(result))
      return nccl_status(result, what, comm_).in(spec_.name);
  }
  return wait_until_ready(what, limit);
}

/// Waits until the last call to the non-blocking communicator has taken effect.
Status NcclCommunicator::wait_until_ready(const char* what, Clock::time_point limit) {
  const Status status = poll(limit, [&] { return check_ready(what); });
  if (status.code() != Code::deadline) return status;
  return Status(Code::deadline, spec_.name + ": " + what + " did not begin within " +
                                    std::to_string(spec_.timeout_ms) +
                                    " ms; NCCL does not report which rank is missing");
}

/// True once the last call to the communicator has taken effect; an error if NCCL has failed.
Result<bool> NcclCommunicator::check_ready(const char* what) {
  std::lock_guard guard(comm_lock_);
  if (!comm_) return dead();
  ncclResult_t state = ncclSuccess;
  if (const ncclResult_t asked = ncclCommGetAsyncError(comm_, &state); is_error(asked))
    return nccl_status(asked, what, comm_).in(spec_.name);
  if (is_error(state)) return nccl_status(state, what, comm_).in(spec_.name);
  return state == ncclSuccess;
}

// --- Ending ---

Status NcclCommunicator::dead() const {
  if (!is_dead_) return {};
  std::lock_guard guard(lock_);
  return dead_;
}

/// Kills the communicator. Only the first call sets the status; every call returns that status.
Status NcclCommunicator::fail(Status status) {
  {
    std::lock_guard guard(lock_);
    if (!dead_.ok()) return dead_;
    dead_ = status;
    is_dead_ = true;
  }
  host_->abort(status.message());
  abort_nccl();
  return status;
}

/// Starts ncclCommAbort on its own thread. The communicator's kernels end soon after; this does not
/// wait for them.
void NcclCommunicator::abort_nccl() {
  const std::unique_lock comm_guard(comm_lock_, milliseconds(spec_.abort_timeout_ms));
  if (!comm_guard) end_process("a call to NCCL");
  if (!comm_) return;
  std::lock_guard guard(lock_);
  std::promise<void> returned;
  aborted_ = returned.get_future();
  std::thread([comm = std::exchange(comm_, nullptr), done = std::move(returned)]() mutable {
    (void)ncclCommAbort(comm);
    done.set_value();
  }).detach();
}

/// Nothing else frees what NCCL holds, and the node replaces a trainer that ends.
void NcclCommunicator::end_process(const char* hangs) const {
  // Not by runtime/base/log.hpp, as in model/cuda.
  std::fprintf(stderr,
               "%s: %s has not returned for %d ms. The process ends, so that the node replaces "
               "it.\n",
               spec_.name.c_str(), hangs, spec_.abort_timeout_ms);
  _exit(kNcclHangs);
}

void NcclCommunicator::abort(const std::string& reason) {
  (void)fail(Status(Code::aborted, spec_.name + ": " + reason));
}

}  // namespace simplescale::nccl
