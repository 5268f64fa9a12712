// Chains of consecutive entries, see pyspark_dledger/format/scan/chains.py.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <utility>
#include <vector>

#include "expectation.hpp"
#include "known_frames.hpp"
#include "walked_chains.hpp"

namespace dledger {

// Consecutive entries in order; single damaged ones between them do not count. A `damaged` chain is a single header
// that has its own position, but is no entry.
struct Chain {
  int64_t first = 0, first_size = 0;
  int64_t last = 0, end = 0;
  int64_t length = 0;
  bool strong = false;  // longer than any body
  bool closed = false;  // ends where a log can end
  bool cut = false;     // ends where no entry can follow
  bool damaged = false;

  // Whether the entry at pos can be the next one of the log, directly after the chain or after damage at its end.
  bool leads_to(const SegmentView& view, int64_t pos) const;
  // Whether an earlier log left the chain after the end of `other`, whose last terms are later.
  bool is_stale_after(const SegmentView& view, const Chain& other) const;
  bool has_later_term(const SegmentView& view, const Chain& other) const;
};

// The first position after the damaged header at pos at which another one can begin; 0 without a header there that has
// its own position. The body of a message is in the message.
int64_t end_of_damaged(const SegmentView& view, int64_t pos);

// The chains of one search, before the known entry that follows. Each entry is walked once.
class Chains {
 public:
  Chains(const SegmentView& view, const Expectation& expected, const KnownFrame* following, WalkedChains& walked)
      : view_(view), expected_(expected), following_(following), walked_(walked) {}

  Chain at(int64_t pos, int64_t size);
  Chain walk(int64_t pos, int64_t size) const;
  // Whether the latest chain was walked, and does not depend on what this search expects.
  bool is_reusable() const { return is_reusable_; }
  // The search continues inside the last entry of the latest chain.
  void skip_rest() { rest_.length = 0; }

 private:
  // The position of the entry after the one at `last`, which ends at `end`: the next one, or the one after a damaged
  // one if both sizes in its header lead there; -1 without one.
  int64_t next_of(int64_t last, int64_t end) const;
  int64_t beyond_damaged(int64_t last, int64_t end) const;
  void extend(Chain& chain) const;
  bool join_walked(Chain& chain) const;
  bool is_cut(const Chain& chain) const;
  bool is_cut_by(const Chain& chain, int64_t pos) const;
  bool is_cut_by_segment(const Chain& chain) const;

  const SegmentView& view_;
  const Expectation& expected_;
  const KnownFrame* following_;
  WalkedChains& walked_;
  mutable bool is_reusable_ = false;
  mutable uint64_t visits_ = 0;                              // of the latest walk
  mutable std::vector<std::pair<int64_t, int64_t>> passed_;  // some entries of the latest walk, and their numbers
  // The rest of each walked chain after its first entry: the latest one, and others by the position where they begin.
  Chain rest_;
  std::unordered_map<int64_t, Chain> rests_;
};

}  // namespace dledger
