// The entries of chains that were walked, for the next walks of the same file.
#pragma once

#include <algorithm>
#include <cstdint>
#include <unordered_map>

namespace dledger {

// Walked chains, so that a walk that comes to one of their entries need not walk the rest again. They change no result.
class WalkedChains {
 public:
  static constexpr int64_t kInterval = 64;  // of the entries that are remembered

  // The number of entries that the walks of this thread have visited; for tests.
  static uint64_t& visits() {
    thread_local uint64_t count = 0;
    return count;
  }

  struct Rest {
    int64_t last, end, length;  // the last entry, its end, and the entries from the remembered one on
  };

  const Rest* find(int64_t pos) const {
    if (rests_.empty()) return nullptr;
    const auto found = rests_.find(pos);
    return found != rests_.end() ? &found->second : nullptr;
  }
  void add(int64_t pos, const Rest& rest) {
    rests_[pos] = rest;
    end_ = std::max(end_, rest.end);
  }
  void clear() {
    rests_.clear();
    end_ = 0;
  }
  void forget_before(int64_t start) {
    if (end_ <= start) clear();
  }

 private:
  std::unordered_map<int64_t, Rest> rests_;
  int64_t end_ = 0;  // of all of them
};

}  // namespace dledger
