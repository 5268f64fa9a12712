// Behind damage: which entry continues the log. Continuity decides, so that entries inside bodies do not come out. The
// same rules as pyspark_dledger/format/scan/resync.py, which explains them.
#pragma once

#include <cstdint>
#include <optional>
#include <unordered_map>

#include "walk.hpp"

namespace dledger {

constexpr int kVoters = 8;
constexpr int kRivals = 32;

// Where a log may have ended: index of the last entry, the least term of what follows, and where damage begins.
struct Place {
  int64_t index, term, gap;

  // Whether an entry at pos can be the next one behind the damage, which cost at least one entry.
  bool allows(const EntryHeader& header, int64_t pos) const {
    // No overflow: indexes are at least 0, that of a place at least -1, and no entry stands before the damage.
    const int64_t lost = header.index() - 1 - index;
    return lost >= 1 && lost <= (pos - gap) / kEntryHeaderSize && header.term() >= term;
  }
};

// Where the log ended before the segment, if that is known.
std::optional<Place> place_before(const SegmentId& id);

// What is known at damage: the places from which the log may go on (none: anything may follow).
struct Expectation {
  Place places[2 * kVoters];
  int count = 0;
  int64_t run = 0;                              // how many entries agree on them
  bool strict = false;                          // nothing may follow that no place allows
  std::optional<int64_t> store_timestamp = {};  // the least of a message that may follow

  void add(const Place& place) { places[count++] = place; }
  bool allows(const SegmentView& view, int64_t pos, int64_t size) const;
};

// What a walk has passed since the last gap: the last positions, of which the indexes and terms are read at the next.
class Course {
 public:
  void step(int64_t pos) { recent_[steps_++ % kRing] = pos; }
  void undo() { steps_--; }  // the last step; of several in a row only the first
  bool has_all_voters() const { return steps_ >= kVoters; }
  void begin_behind(const std::optional<Place>& before);

  // Takes over what a walk passed that ended where this one began.
  void precede(const Course& earlier);

  // What may follow the damage at pos; from there on the next entries count.
  Expectation at_gap(const SegmentView& view, int64_t pos);

 private:
  static constexpr uint64_t kRing = 16;

  uint64_t steps_ = 0;
  int64_t recent_[kRing];
  Place known_[kVoters];
  int known_count_ = 0;
  int64_t known_run_ = 0;
};

// Entries in order that stand one behind the other.
struct Chain {
  int64_t first = 0, first_size = 0;
  int64_t last = 0, end = 0;
  int64_t length = 0;
  bool strong = false;  // longer than any body
  bool closed = false;  // ends where a log does

  // Whether not both the chain and the entry at pos, behind it, can be of one log.
  bool contradicts(const SegmentView& view, int64_t pos) const;
  bool outranks(const Chain& other) const;  // more speaks for this chain
  bool continues_at(const SegmentView& view, int64_t pos) const;
};

// Finds where a walk that began at `start` goes on behind damage. The walk tells of every entry with `step`.
class Resync {
 public:
  Resync(const SegmentId& id, int64_t start);

  Course course;

  // Where the log goes on behind damage at `gap`, or -1 up to `limit`. Of what lies at or behind `limit`, only what
  // decides about entries before it is looked at.
  int64_t next(const SegmentView& view, int64_t gap, int64_t limit);

  // Tells of a blank at pos that the walk passes over: nothing says how many entries it stands for.
  void pass_blank(const SegmentView& view, int64_t pos) { expected_at(view, pos); }

  // The same where `expected` is known.
  int64_t next(const SegmentView& view, int64_t gap, int64_t limit, const Expectation& expected);

 private:
  Expectation expected_at(const SegmentView& view, int64_t gap);
  int64_t hinted(const SegmentView& view, int64_t gap, const Expectation& expected) const;
  Chain chain_at(const SegmentView& view, int64_t pos, int64_t size);
  Chain walk_chain(const SegmentView& view, int64_t pos, int64_t size) const;

  int64_t start_;
  bool knows_course_;
  // What is left of chains that were walked, by where it begins: the latest, and others.
  Chain rest_;
  std::unordered_map<int64_t, Chain> rests_;
  std::pair<Chain, bool> weighed_[kRivals];  // the last chains that were looked at, and whether they were expected
};

}  // namespace dledger
