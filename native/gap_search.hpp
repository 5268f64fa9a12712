// The search for the entry at which a log continues after a gap, see pyspark_dledger/format/scan/resync.py.
#pragma once

#include <cstdint>
#include <vector>

#include "chains.hpp"
#include "lookahead.hpp"

namespace dledger {

constexpr size_t kMaxCandidates = 32;               // are compared
constexpr int64_t kEnoughEntries = kRecentEntries;  // that continue a chain confirm it

// Whether an entry's term can rise from `term` to `raised` by elections.
bool is_likely_rise(int64_t term, int64_t raised);

// Searches the bytes before the known entry that follows. Bytes from `limit` on are read only if they decide about
// entries before it.
class GapSearch {
 public:
  GapSearch(const SegmentView& view, Expectation expected, const KnownFrame* following, int64_t limit,
            Lookahead& lookahead);

  // Where the log continues at or after `at`, else -1. The bytes from gap to `at` are lost.
  int64_t find(int64_t gap, int64_t at);

 private:
  // A chain, and the best way through the chains from it on: how it ends, its entries, its first entry and its end.
  struct Candidate {
    Chain chain;
    bool allowed;
    int64_t reach = 0, length = 0, begin = -1, end = 0;
  };

  // An expected chain, and the chains that continue it, until one is found that does not.
  struct Way {
    int64_t first = -1, entries = 0;
    Chain last;
    bool is_alone = true;

    // Whether the next chain that was found, and those before it, are enough.
    bool is_confirmed_by(const SegmentView& view, const Chain& chain);
  };

  // The latest consecutive entries of a search that cannot follow the gap, because another log has them. Eight of them
  // prove it, or one whose index is too high for the room since the gap.
  struct OtherRun {
    const Expectation& expected;
    int64_t last = -1, end = 0, length = 0;

    // Whether the entry at pos can follow the gap: it is expected, and continues no such run.
    bool allows(const SegmentView& view, int64_t pos, int64_t size, int64_t pos_end);
  };

  void use_damaged_header(int64_t gap);
  bool is_before_following(int64_t pos, int64_t size) const;
  int64_t follow_sizes(int64_t gap) const;
  bool may_have_shift(int64_t pos, bool is_same_shift) const;
  int64_t choose(int64_t start, int64_t min_pos, bool is_same_shift);
  int64_t collect(int64_t start, int64_t min_pos, bool is_same_shift);
  Header next_header(int64_t from, int64_t to, bool is_kept);
  Chain chain_of(Chains& chains, const Header& header, bool is_kept);
  void add(const Chain& chain, bool allowed);
  void find_ways();
  bool is_next(const Chain& chain) const;
  bool is_better(const Candidate& one, const Candidate& best) const;

  const SegmentView& view_;
  Expectation expected_;
  const KnownFrame* following_;
  int64_t limit_, most_;  // no candidate ends after `most`
  WalkedChains& walked_;
  Lookahead* lookahead_;  // not with a known entry that follows
  std::vector<Candidate> candidates_;
};

}  // namespace dledger
