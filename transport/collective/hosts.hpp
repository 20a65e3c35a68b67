// Which ranks of a communicator share a host, and so memory. Between hosts the network carries one
// copy of what several ranks of a host need, and one sum of what they add; for each other host a
// rank has one partner there, with which it exchanges. A value; all ranks have the same.
#pragma once

#include <algorithm>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace simplescale::collective {

class Hosts {
 public:
  /// `size` ranks on one host.
  Hosts(int size) : ranks_(1) {
    for (int rank = 0; rank < size; ++rank) places_.push_back({0, rank}), ranks_[0].push_back(rank);
  }
  /// names: of the host of each rank; at least one.
  explicit Hosts(std::span<const std::string> names) {
    std::map<std::string, int> numbers;
    for (size_t rank = 0; rank < names.size(); ++rank) {
      const auto next = static_cast<int>(numbers.size());
      const int host = numbers.emplace(names[rank], next).first->second;
      if (host == next) ranks_.emplace_back();
      auto& ranks = ranks_[static_cast<size_t>(host)];
      places_.push_back({host, static_cast<int>(ranks.size())});
      ranks.push_back(static_cast<int>(rank));
    }
  }

  int size() const { return static_cast<int>(places_.size()); }
  int count() const { return static_cast<int>(ranks_.size()); }
  /// A number from 0 to count() - 1.
  int host_of(int rank) const { return places_[static_cast<size_t>(rank)].host; }
  bool together(int a, int b) const { return host_of(a) == host_of(b); }
  /// In rising order.
  std::span<const int> ranks_of(int host) const { return ranks_[static_cast<size_t>(host)]; }
  /// The rank of `host` with which `rank` of another host exchanges.
  int partner(int rank, int host) const {
    const auto ranks = ranks_of(host);
    return ranks[static_cast<size_t>(places_[static_cast<size_t>(rank)].local) % ranks.size()];
  }

 private:
  struct Place {
    int host;
    int local;  // how many ranks of the host are before it
  };
  std::vector<Place> places_;            // by rank
  std::vector<std::vector<int>> ranks_;  // by host
};

}  // namespace simplescale::collective
