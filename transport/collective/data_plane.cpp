#include "transport/collective/data_plane.hpp"

#include <sched.h>
#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <mutex>
#include <set>
#include <utility>

#include "runtime/base/log.hpp"
#include "runtime/base/network.hpp"
#include "transport/collective/communicator.hpp"
#include "transport/collective/plane_address.hpp"
#include "transport/collective/stream_worker.hpp"
#include "transport/collective/ucx_worker.hpp"

namespace simplescale {

namespace {

using namespace collective;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// Which workers a data plane has: what carries its collectives to other hosts.

struct Workers {
  std::unique_ptr<RemoteWorker> stream;  // null: without network
  std::unique_ptr<RemoteWorker> ucx;     // null: no interface of this host is trusted
  std::set<std::string> trusted;         // networks on which this host lies
};

/// ring: see StreamWorker. Other arguments: see DataPlaneOptions.
Result<Workers> make_workers(const std::string& key, bool network,
                             const std::string& trusted_networks,
                             const std::function<void()>& ring) {
  Workers workers;
  SS_ASSIGN(const auto networks, parse_trusted_networks(trusted_networks));
  if (!network) return workers;
  SS_ASSIGN(workers.stream, StreamWorker::create(key, ring));
  std::vector<std::string> interfaces;
  for (const auto& [name, interface] : trusted_interfaces(networks, local_addresses())) {
    workers.trusted.insert(name);
    interfaces.push_back(interface);
  }
  for (const TrustedNetwork& network : networks)
    if (!workers.trusted.contains(network.name))
      log::warn(
          "no interface of this host lies on {} of transport.trusted_networks: its collectives "
          "with hosts that lie there go over encrypted TCP",
          network.name);
  if (interfaces.empty()) return workers;
  SS_ASSIGN(workers.ucx, UcxWorker::create(ring, interfaces));
  return workers;
}

constexpr size_t kBytesPerRank = sizeof(Lane);
constexpr int kSpinUs = 100;

/// FNV-1a. Names are short, and both ends of a link run this code.
uint64_t hash_of(const std::string& name) {
  uint64_t hash = 14695981039346656037u;
  for (const char c : name) hash = (hash ^ static_cast<uint8_t>(c)) * 1099511628211u;
  return hash;
}

int cores() {
  cpu_set_t set;
  return sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
}

/// One member during join(): what is known of it so far.
struct PlaneMember {
  PlaneAddress address;
  bool shared = false;  // on this host
  std::shared_ptr<PeerSegment> segment;
  std::optional<PeerBoard> board;
};

class DataPlaneImpl final : public DataPlane {
 public:
  DataPlaneImpl(DataPlaneOptions options, std::unique_ptr<Segment> segment, Workers workers)
      : options_(std::move(options)), stream_(workers.stream.get()), ucx_(workers.ucx.get()) {
    own_ = {options_.host_id, segment->name(), segment->header().incarnation, {}, {}, {}};
    shared_.segment = std::move(segment);
    if (stream_) own_.stream = stream_->address();
    if (ucx_) own_.ucx = ucx_->address(), own_.trusted = std::move(workers.trusted);
    if (stream_) shared_.workers.push_back(std::move(workers.stream));
    if (ucx_) shared_.workers.push_back(std::move(workers.ucx));
  }
  ~DataPlaneImpl() override {
    SS_ASSERT(shared_.communicators.empty());
    shared_.workers.clear();  // their threads ring the doorbell in the segment
  }

  std::vector<uint8_t> address() const override { return encode_plane(own_); }
  Result<std::unique_ptr<Collective>> join(const CommunicatorSpec& spec) override;
  void abort(uint64_t generation, const std::string& reason) override;
  void inject_network_fault(const NetworkFault& fault) override;

 private:
  Result<std::vector<PlaneMember>> parse_members(const CommunicatorSpec& spec) const;
  Result<Boards> allocate_boards(int size);
  Result<Boards> open_boards(const CommunicatorSpec& spec, const std::string& name,
                             uint64_t name_hash);
  void release(const Boards& boards);
  RemoteWorker* worker_of(const PlaneMember& member) const;
  std::vector<Attached> attach(const CommunicatorSpec& spec, uint64_t name_hash,
                               const std::vector<PlaneMember>& members) const;
  std::unique_ptr<Communicator> connect(const CommunicatorSpec& spec, const std::string& name,
                                        const std::vector<PlaneMember>& members,
                                        const Boards& boards, std::vector<Attached> channels);
  Status wait_for_members(const CommunicatorSpec& spec, const std::string& name, uint64_t name_hash,
                          std::vector<PlaneMember>& members, const std::vector<Attached>& channels);
  Status find_member(PlaneMember& member, uint64_t generation, uint64_t name_hash, int rank,
                     const CommunicatorSpec& spec);
  Status check_fence(uint64_t generation);

  DataPlaneOptions options_;
  RemoteWorker *const stream_, *const ucx_;  // of shared_.workers; or null
  PlaneAddress own_;
  Shared shared_;
  // By segment name; guarded by shared_.lock. Peers stay mapped from one generation to the next:
  // mapping costs milliseconds per peer.
  std::map<std::string, std::shared_ptr<PeerSegment>> mapped_;
  std::set<std::pair<uint64_t, uint64_t>> joined_;  // (generation, name hash); shared_.lock

  std::mutex fence_lock_;  // guards the rest; never held together with shared_.lock
  uint64_t newest_ = 0;    // generation
  std::optional<uint64_t> fence_;
  std::string fence_reason_;
  std::vector<Communicator*> communicators_;
};

Status DataPlaneImpl::check_fence(uint64_t generation) {
  std::lock_guard guard(fence_lock_);
  if (!fence_ || generation > *fence_) return {};
  return Status(Code::aborted,
                "generation " + std::to_string(generation) + " is over: " + fence_reason_);
}

void DataPlaneImpl::abort(uint64_t generation, const std::string& reason) {
  {
    std::lock_guard guard(fence_lock_);
    if (!fence_ || generation > *fence_) fence_ = generation, fence_reason_ = reason;
    for (Communicator* communicator : communicators_)
      if (communicator->generation() <= generation) communicator->abort(reason);
  }
  ring(shared_.segment->header());
}

void DataPlaneImpl::inject_network_fault(const NetworkFault& fault) {
  const auto until = Clock::now() + fault.for_time;
  shared_.network_fault_delay_ns = std::chrono::nanoseconds(fault.delay).count();
  shared_.network_fault_until_ns = std::chrono::nanoseconds(until.time_since_epoch()).count();
}

Result<std::vector<PlaneMember>> DataPlaneImpl::parse_members(const CommunicatorSpec& spec) const {
  const size_t size = spec.members.size();
  if (size < 1 || size > static_cast<size_t>(options_.ranks_max) || spec.rank < 0 ||
      static_cast<size_t>(spec.rank) >= size)
    return Status(Code::bad_data, "rank " + std::to_string(spec.rank) + " of " +
                                      std::to_string(size) + " ranks is out of range");
  std::vector<PlaneMember> members(size);
  for (size_t i = 0; i < size; ++i) {
    const auto address = decode_plane(spec.members[i]);
    if (!address)
      return Status(Code::bad_data, "the address of rank " + std::to_string(i) + " is malformed");
    members[i].address = *address;
    members[i].shared = address->host_id == own_.host_id;
    if (!members[i].shared && (!stream_ || address->stream.empty()))
      return Status(Code::unavailable, "rank " + std::to_string(i) +
                                           " is on another host, but this run is on one host");
  }
  if (spec.members[static_cast<size_t>(spec.rank)] != address())
    return Status(Code::bad_data,
                  "members[" + std::to_string(spec.rank) + "] is not this process's address");
  return members;
}

Result<Boards> DataPlaneImpl::allocate_boards(int size) {
  Segment& segment = *shared_.segment;
  auto allocate = [&](size_t bytes) {
    auto data = segment.allocate(bytes);
    while (!data.ok() && !shared_.old_boards.empty()) {
      segment.release(shared_.old_boards.front());
      shared_.old_boards.pop_front();
      data = segment.allocate(bytes);
    }
    return data;
  };
  Boards boards;
  SS_ASSIGN(boards.board, allocate(static_cast<size_t>(size) * kBytesPerRank));
  auto blocks = allocate(kBlocks * kBlockBytes);
  auto staging = blocks.ok() ? allocate(options_.staging_bytes) : blocks;
  if (!staging.ok()) {
    segment.release(boards.board);
    if (blocks.ok()) segment.release(*blocks);
    return staging.status();
  }
  boards.blocks = *blocks;
  boards.staging = {*staging, options_.staging_bytes};
  return boards;
}

/// Allocates this rank's boards and makes them visible to peers on this host.
Result<Boards> DataPlaneImpl::open_boards(const CommunicatorSpec& spec, const std::string& name,
                                          uint64_t name_hash) {
  const auto size = static_cast<int>(spec.members.size());
  std::lock_guard turn(shared_.lock);
  if (std::erase_if(joined_, [&](const auto& id) { return id.first < spec.generation; }) > 0)
    std::erase_if(mapped_, [](const auto& peer) { return !peer.second || !peer.second->alive(); });
  if (!joined_.emplace(spec.generation, name_hash).second)
    return Status(Code::aborted, name + " has been joined before");
  SS_ASSIGN(Boards boards, allocate_boards(size));
  auto slot =
      shared_.segment->open_slot(spec.generation, name_hash, static_cast<uint32_t>(spec.rank),
                                 static_cast<uint32_t>(size), boards.board);
  if (!slot.ok()) {
    release(boards);
    return slot.status();
  }
  boards.slot = *slot;
  return boards;
}

void DataPlaneImpl::release(const Boards& boards) {
  for (const void* data : {boards.board, boards.blocks, boards.staging.data()})
    shared_.segment->release(data);
  shared_.segment->free_slot(boards.slot);
}

// Maps a member's segment and finds its board. Code::not_found: it has not joined yet.
Status DataPlaneImpl::find_member(PlaneMember& member, uint64_t generation, uint64_t name_hash,
                                  int rank, const CommunicatorSpec& spec) {
  if (!member.segment) {
    auto& known = mapped_[member.address.segment];
    if (!known || known->header().incarnation != member.address.incarnation) {
      SS_ASSIGN(known, PeerSegment::open(member.address.segment, member.address.incarnation));
    }
    member.segment = known;
    ring(member.segment->header());  // the member may be waiting for this rank
  }
  SS_ASSIGN(member.board, find_board(member.segment, generation, name_hash, rank,
                                     static_cast<int>(spec.members.size()), spec.rank));
  return {};
}

Status DataPlaneImpl::wait_for_members(const CommunicatorSpec& spec, const std::string& name,
                                       uint64_t name_hash, std::vector<PlaneMember>& members,
                                       const std::vector<Attached>& channels) {
  const auto deadline = Clock::now() + milliseconds(spec.timeout_ms);
  for (;;) {
    const uint32_t seen = shared_.segment->header().doorbell.load();
    SS_RETURN_IF_ERROR(check_fence(spec.generation).in(name));
    std::vector<Unjoined> missing;
    for (const auto& [worker, channel] : channels)
      std::ranges::move(worker->unjoined(channel), std::back_inserter(missing));
    {
      std::lock_guard turn(shared_.lock);
      for (int i = 0; i < static_cast<int>(members.size()); ++i) {
        PlaneMember& member = members[static_cast<size_t>(i)];
        if (!member.shared || i == spec.rank || member.board) continue;
        const Status status = find_member(member, spec.generation, name_hash, i, spec);
        if (status.ok()) continue;
        if (status.code() != Code::not_found) return status.in(name);
        if (member.segment && !member.segment->alive())
          return Status(Code::unavailable, name + ": rank " + std::to_string(i) + " has died");
        missing.push_back({i, ""});
      }
      // Operations of other communicators must go on even if no thread waits for them.
      shared_.advance();
    }
    if (missing.empty()) return {};
    const auto left = std::chrono::ceil<milliseconds>(deadline - Clock::now()).count();
    if (left <= 0) {
      std::ranges::sort(missing, {}, &Unjoined::rank);
      std::string ranks, why;
      for (const Unjoined& member : missing) {
        const std::string rank = std::to_string(member.rank);
        ranks += (ranks.empty() ? "" : ", ") + rank;
        if (why.empty() && !member.why.empty()) why = "; rank " + rank + " " + member.why;
      }
      return Status(Code::deadline, name + ": ranks " + ranks + " did not join within " +
                                        std::to_string(spec.timeout_ms) + " ms" + why);
    }
    sleep_on(shared_.segment->header(), seen, static_cast<int>(std::min<int64_t>(left, 20)));
  }
}

/// Null: the member is on this host.
RemoteWorker* DataPlaneImpl::worker_of(const PlaneMember& member) const {
  if (member.shared) return nullptr;
  return use_ucx(own_, member.address) ? ucx_ : stream_;
}

/// A channel in each worker that reaches a member.
std::vector<Attached> DataPlaneImpl::attach(const CommunicatorSpec& spec, uint64_t name_hash,
                                            const std::vector<PlaneMember>& members) const {
  std::vector<Attached> channels;
  std::vector<uint64_t> incarnations;
  for (const PlaneMember& member : members) incarnations.push_back(member.address.incarnation);
  const Secret secret = make_secret(options_.key, spec.generation, name_hash, incarnations);
  for (const auto& worker : shared_.workers) {
    ChannelSpec channel{spec.generation, name_hash, secret, spec.rank, {}};
    bool any = false;
    for (const PlaneMember& member : members) {
      const bool reached = worker_of(member) == worker.get();
      const auto& at = worker.get() == ucx_ ? member.address.ucx : member.address.stream;
      channel.addresses.push_back(reached ? at : WorkerAddress{});
      any |= reached;
    }
    if (any) channels.push_back({worker.get(), worker->attach(channel)});
  }
  return channels;
}

/// Makes the communicator, with a link to every other member.
std::unique_ptr<Communicator> DataPlaneImpl::connect(const CommunicatorSpec& spec,
                                                     const std::string& name,
                                                     const std::vector<PlaneMember>& members,
                                                     const Boards& boards,
                                                     std::vector<Attached> channels) {
  const auto size = static_cast<int>(members.size());
  std::vector<std::unique_ptr<Link>> links(members.size());
  std::vector<std::shared_ptr<PeerSegment>> peers;
  auto* lanes = reinterpret_cast<Lane*>(boards.board);
  for (int i = 0; i < size; ++i) {
    const PlaneMember& member = members[static_cast<size_t>(i)];
    if (i == spec.rank) continue;
    const std::string peer_name = "rank " + std::to_string(i);
    auto& link = links[static_cast<size_t>(i)];
    if (member.shared) {
      peers.push_back(member.segment);
      link = std::make_unique<ShmLink>(*shared_.segment, lanes + i, *member.board, peer_name);
    } else {
      const auto of = std::ranges::find(channels, worker_of(member), &Attached::worker);
      link = of->worker->link(of->channel, i, peer_name);
    }
  }
  const int here = static_cast<int>(peers.size()) + 1;
  const int spin_us = options_.spin_us >= 0 ? options_.spin_us : here <= cores() ? kSpinUs : 0;
  for (const auto& worker : shared_.workers) worker->set_spin_us(spin_us);
  const bool between_nodes = std::ranges::any_of(members, [this](const PlaneMember& member) {
    return !member.address.segment.starts_with(options_.node_prefix);
  });
  std::vector<std::string> hosts;
  for (size_t i = 0; i < members.size(); ++i)
    hosts.push_back(std::getenv(kOneLevel) ? std::to_string(i) : members[i].address.host_id);
  Communicator::Spec communicator_spec{
      name, spec.generation, spec.rank, Hosts(hosts), spec.timeout_ms, spin_us, between_nodes};
  auto forget = [this](Communicator* communicator) {
    std::lock_guard guard(fence_lock_);
    std::erase(communicators_, communicator);
  };
  auto communicator = std::make_unique<Communicator>(shared_, std::move(communicator_spec), boards,
                                                     std::move(links), std::move(peers),
                                                     std::move(channels), forget);
  std::lock_guard guard(fence_lock_);
  communicators_.push_back(communicator.get());
  return communicator;
}

Result<std::unique_ptr<Collective>> DataPlaneImpl::join(const CommunicatorSpec& spec) {
  const std::string name = spec.name + "@" + std::to_string(spec.generation);
  const uint64_t name_hash = hash_of(spec.name);
  auto found = parse_members(spec);
  if (!found.ok()) return found.status().in(name);
  std::vector<PlaneMember> members = found.take();
  {
    std::lock_guard guard(fence_lock_);
    if (spec.generation < newest_)
      return Status(Code::aborted, name + ": generation " + std::to_string(newest_) + " has begun");
    newest_ = spec.generation;
  }
  SS_RETURN_IF_ERROR(check_fence(spec.generation).in(name));

  // The open slot and the attached channel announce this rank; from then on peers may write to it
  // and read from it.
  SS_ASSIGN(const Boards boards, open_boards(spec, name, name_hash));
  std::vector<Attached> channels = attach(spec, name_hash, members);
  const Status status = wait_for_members(spec, name, name_hash, members, channels);
  if (!status.ok()) {
    shared_.segment->close_slot(boards.slot);
    for (const auto& [worker, channel] : channels) worker->detach(channel, false);
    std::lock_guard turn(shared_.lock);
    release(boards);
    return status;
  }
  auto communicator = connect(spec, name, members, boards, std::move(channels));
  // abort() does not reach a communicator that was not yet registered when the fence was set.
  if (const Status over = check_fence(spec.generation); !over.ok())
    communicator->abort(over.message());
  // No rank may leave before all have joined.
  SS_RETURN_IF_ERROR(communicator->barrier()->wait());
  return std::unique_ptr<Collective>(std::move(communicator));
}

}  // namespace

std::string this_host_id() {
  std::string id;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> id;
  struct stat info {};
  for (const char* space : {"/proc/self/ns/pid", "/proc/self/ns/net"})
    if (stat(space, &info) == 0) id += "/" + std::to_string(info.st_ino);
  return id;
}

Result<std::unique_ptr<DataPlane>> DataPlane::create(const DataPlaneOptions& options) {
  DataPlaneOptions complete = options;
  if (complete.host_id.empty()) complete.host_id = this_host_id();
  // Every stream of the largest operation needs two halves of at least a cache line.
  complete.staging_bytes = std::max(complete.staging_bytes, size_t{1} << 20);
  const size_t per_communicator = kBlocks * kBlockBytes + complete.staging_bytes +
                                  static_cast<size_t>(complete.ranks_max) * kBytesPerRank;
  const size_t communicators = static_cast<size_t>(complete.communicators) * per_communicator;
  const size_t pages = complete.arena_pages_bytes;
  SS_ASSIGN(auto segment, Segment::create(complete.shm_prefix, complete.arena_bytes + communicators,
                                          pages == 0 ? 0 : pages + communicators));
  auto* header = &segment->header();
  SS_ASSIGN(Workers workers, make_workers(complete.key, complete.network, complete.trusted_networks,
                                          [header] { ring(*header); }));
  return std::unique_ptr<DataPlane>(
      std::make_unique<DataPlaneImpl>(std::move(complete), std::move(segment), std::move(workers)));
}

}  // namespace simplescale
