#include "gap_search.hpp"

#include <algorithm>
#include <tuple>
#include <utility>

namespace dledger {
namespace {

constexpr int64_t kCandidateWindow = kMaxEntrySize;
constexpr uint64_t kMinWrongRise = 1 << 16;

// Whether the entry at pos has the index after the damaged entry's, by that entry's header or by the entries before.
bool is_only_one_lost(const SegmentView& view, int64_t gap, int64_t pos, const Expectation& expected) {
  const int64_t index = EntryHeader{view.at(pos)}.index();
  if (EntryHeader{view.at(gap)}.index() == index - 1) return true;
  return std::any_of(expected.positions, expected.positions + expected.count,
                     [&](const LogPosition& position) { return position.index == index - 2; });
}

// Whether the size that leads to pos, where the log is closed, is the right one. If the other one is possible too, or
// there is none, a size that leads past the written bytes is wrong.
bool ends_at(const SegmentView& view, int64_t pos, const int64_t sizes[2], int count) {
  int64_t size = 0;
  const bool is_sure =
      count == 2 && (std::min(sizes[0], sizes[1]) < kEntryHeaderSize || std::max(sizes[0], sizes[1]) > kMaxEntrySize);
  const bool is_written = *view.at(pos - 1) != 0 || view.blank_at(pos, size) != Blank::None;
  return is_sure || is_written;
}

// Whether the header at pos has a valid magic and the position pos + shift, even if the rest is damaged.
bool has_own_pos(const SegmentView& view, int64_t pos, uint64_t shift) {
  if (!view.is_dledger() || view.file_end() - pos < kEntryHeaderSize) return false;
  const EntryHeader header{view.at(pos)};
  return header.is_magic() && shift_of(view, pos) == shift;
}

Chain damaged_chain(int64_t pos, int64_t end) {
  Chain chain{pos, end - pos, pos, end, 1};
  chain.damaged = true;
  return chain;
}

}  // namespace

bool is_likely_rise(int64_t term, int64_t raised) {
  // Unsigned, because a term can be INT64_MAX.
  return raised >= term && static_cast<uint64_t>(raised) - static_cast<uint64_t>(term) < kMinWrongRise;
}

GapSearch::GapSearch(const SegmentView& view, Expectation expected, const KnownFrame* following, int64_t limit,
                     Lookahead& lookahead)
    : view_(view),
      expected_(std::move(expected)),
      following_(following),
      limit_(limit),
      most_(following != nullptr ? std::min(following->pos, view.file_end()) : view.file_end()),
      walked_(lookahead.walked),
      lookahead_(following == nullptr ? &lookahead : nullptr) {
  lookahead.set_file_end(view.file_end());
}

bool GapSearch::Way::is_confirmed_by(const SegmentView& view, const Chain& chain) {
  is_alone = is_alone && last.leads_to(view, chain.first);
  if (!chain.damaged) {
    last = chain;
    entries += chain.length;
  }
  return is_alone && entries >= kEnoughEntries;
}

bool GapSearch::OtherRun::allows(const SegmentView& view, int64_t pos, int64_t size, int64_t pos_end) {
  bool allowed = expected.allows(view, pos, size);
  if (!view.is_dledger() || (last >= 0 && pos < end)) return allowed;
  if (last >= 0 && pos == end && follows(view, last, pos)) {
    allowed = allowed && length < kRecentEntries;
  } else {
    length = 0;
  }
  last = allowed ? -1 : pos;
  end = pos_end;
  const bool is_too_high = !allowed && !expected.has_room_before(view, pos);
  length += is_too_high ? kRecentEntries : 1;
  return allowed;
}

int64_t GapSearch::find(int64_t gap, int64_t at) {
  if (at == gap) use_damaged_header(gap);
  const int64_t size = at > gap ? view_.entry_size(at) : 0;
  if (size > 0 && expected_.allows(view_, at, size) && is_before_following(at, size)) return at;
  if (size == 0) {
    if (at > gap && following_ == nullptr && view_.is_closed_at(at)) return at;
    const int64_t found = follow_sizes(at);
    if (found >= 0) return found;
  }
  // At least one entry is lost; only a blank of 0.4.0 at the begin of a file can be smaller.
  const bool can_be_blank = at == view_.base() && !view_.id().check_pos;
  const int64_t start = size > 0 ? at : at + 1, min_pos = size > 0 || can_be_blank ? start : at + view_.min_size();
  // Where an entry may have any position, one with an unexpected position counts only if nothing else is there.
  if (!view_.id().check_pos) {
    const int64_t found = choose(start, min_pos, true);
    if (found >= 0) return found;
  }
  return choose(start, min_pos, false);
}

// The next entry has at least the term of the damaged header at the gap, if the rest of that header is the expected
// one.
void GapSearch::use_damaged_header(int64_t gap) {
  if (!view_.is_dledger() || end_of_damaged(view_, gap) == 0) return;
  const EntryHeader header{view_.at(gap)};
  for (LogPosition* position = expected_.positions; position < expected_.positions + expected_.count; position++) {
    const bool is_next = header.index() - 1 == position->index;
    if (is_next && is_likely_rise(position->min_term, header.term())) position->min_term = header.term();
  }
}

// Whether the entry at pos can be of the log before the known entry.
bool GapSearch::is_before_following(int64_t pos, int64_t size) const {
  if (following_ == nullptr) return true;
  if (pos + size > following_->pos) return false;
  return !following_->is_whole ||
         Chains(view_, expected_, following_, walked_).walk(pos, size).leads_to(view_, following_->pos);
}

// Where the sizes in the damaged header lead, if an entry or the closing blank confirms it; else -1.
int64_t GapSearch::follow_sizes(int64_t gap) const {
  int64_t sizes[2];
  const int count = view_.sizes_at(gap, sizes);
  const int64_t end = following_ != nullptr ? following_->pos : view_.file_end(), left = end - gap;
  if (following_ != nullptr && left >= view_.min_size() && std::find(sizes, sizes + count, left) != sizes + count) {
    return end;
  }
  const bool agree = count == 1 || (count == 2 && sizes[0] == sizes[1]);
  // If the two sizes differ, one is wrong. The rest of the header must then confirm the other.
  if (!agree && !has_own_pos(view_, gap, expected_.shift.value_or(0))) return -1;
  for (int i = 0; i < (agree ? 1 : count); i++) {
    if (sizes[i] < view_.min_size() || sizes[i] > kMaxEntrySize || sizes[i] > left) continue;
    const int64_t pos = gap + sizes[i], size = view_.entry_size(pos);
    if (size == 0) {
      const bool is_confirmed = agree && count > 1;
      const bool is_end = following_ == nullptr && (is_confirmed || ends_at(view_, pos, sizes, count));
      if (is_end && view_.is_closed_at(pos)) return pos;
    } else if (expected_.allows(view_, pos, size) && (agree || is_only_one_lost(view_, gap, pos, expected_)) &&
               is_before_following(pos, size)) {
      return pos;
    }
  }
  return -1;
}

// Whether an entry of 0.4.0 can have its position. Sectors that were moved have entries with another shift.
bool GapSearch::may_have_shift(int64_t pos, bool is_same_shift) const {
  if (view_.id().check_pos) return true;
  const uint64_t shift = shift_of(view_, pos);
  if (!is_same_shift) {
    // An entry of another log that is in a body has any position, and so has the next one there.
    const int64_t next = pos + view_.entry_size(pos);
    const bool is_lone = next == pos || view_.entry_size(next) == 0 || shift_of(view_, next) != shift;
    return !is_lone && !view_.is_moved(shift, expected_.shift);
  }
  return shift == (expected_.shift ? *expected_.shift : static_cast<uint64_t>(view_.usual_shift()));
}

// Where the best way that begins at `start` or later begins, else -1.
int64_t GapSearch::choose(int64_t start, int64_t min_pos, bool is_same_shift) {
  const int64_t confirmed = collect(start, min_pos, is_same_shift);
  if (confirmed >= 0) return confirmed;
  if (candidates_.size() > kMaxCandidates) {
    candidates_.erase(candidates_.begin(), candidates_.end() - static_cast<std::ptrdiff_t>(kMaxCandidates));
  }
  find_ways();
  const auto is_expected = [](const Candidate& one) { return one.allowed && one.begin >= 0; };
  const bool any_expected = std::any_of(candidates_.begin(), candidates_.end(), is_expected);
  const Candidate* best = nullptr;
  for (const Candidate& one : candidates_) {
    if (one.begin < 0 || (any_expected && !one.allowed)) continue;
    if (!one.allowed && one.reach < 2 && (one.length == 1 || expected_.agreement > 1)) continue;
    if (best == nullptr || is_better(one, *best)) best = &one;
  }
  return best != nullptr ? best->begin : -1;
}

// Collects the candidates. Returns the position of an expected chain that those after it confirm, else -1.
int64_t GapSearch::collect(int64_t start, int64_t min_pos, bool is_same_shift) {
  candidates_.clear();
  candidates_.reserve(kMaxCandidates);
  if (lookahead_ != nullptr) lookahead_->begin(start);
  Chains chains(view_, expected_, following_, walked_);
  bool has_best = false;
  Way way;
  OtherRun run{expected_};
  size_t seen = 0;
  int64_t to = std::min(limit_, most_);
  for (int64_t from = start; from < to;) {
    const Header header = next_header(from, to, has_best);
    const auto [pos, size, end] = header;
    if (pos >= to) break;
    from = pos + 1;
    if (size == 0 && !view_.is_dledger()) {
      from = end;  // what is in its body is not of the log
      continue;
    }
    if (has_best && ++seen >= kMaxCandidates) break;
    if (end > most_ || !may_have_shift(pos, is_same_shift)) continue;
    if (pos < min_pos && view_.is_dledger()) continue;
    const bool allowed = run.allows(view_, pos, size, end);
    if (!allowed && (size == 0 || way.first >= 0 || expected_.strict)) continue;
    const Chain chain = size > 0 ? chain_of(chains, header, has_best) : damaged_chain(pos, end);
    if (pos < min_pos) {
      from = chain.last + 1;  // in the body of a lost message, with all messages that follow it
      continue;
    }
    if (chain.cut) continue;
    if (following_ != nullptr && following_->is_whole && !chain.leads_to(view_, following_->pos)) continue;
    add(chain, allowed);
    if (chain.strong) break;
    const bool is_first = way.first < 0 && allowed && size > 0;
    if (is_first) {
      const auto leads = [&](const Candidate& one) { return !one.chain.damaged || one.chain.leads_to(view_, pos); };
      way = {pos, 0, chain, std::all_of(candidates_.begin(), candidates_.end(), leads)};
    } else if (way.first >= 0 && way.is_confirmed_by(view_, chain)) {
      return way.first;
    }
    // What decides can be after the limit: every split must see the same.
    if (is_first || (!has_best && chain.length > 1 && expected_.agreement <= 1)) {
      has_best = true;
      seen = 0;
      to = std::min(pos + kCandidateWindow, most_);
    } else if (!has_best) {
      to = std::max(to, std::min(chain.end + kCandidateWindow, most_));
    }
    if (!allowed || chain.damaged) continue;
    // An entry can contain others, which are compared with it: the search continues inside the last one.
    from = chain.last + 1;
    chains.skip_rest();
  }
  return -1;
}

// The next entry or damaged header with its own position at or after `from`. With is_kept, later searches can need it.
Header GapSearch::next_header(int64_t from, int64_t to, bool is_kept) {
  const Header* const known = lookahead_ != nullptr ? lookahead_->find(from) : nullptr;
  if (known != nullptr) return *known;
  for (int64_t pos = from; (pos = view_.next_candidate(pos, to, false)) < to; pos++) {
    const int64_t size = view_.entry_size(pos), end = size > 0 ? pos + size : end_of_damaged(view_, pos);
    if (end == 0) continue;
    const Header header{pos, size, end};
    if (is_kept && lookahead_ != nullptr) lookahead_->add(from, header);
    return header;
  }
  return {to, 0, 0};
}

Chain GapSearch::chain_of(Chains& chains, const Header& header, bool is_kept) {
  const Chain* const known = lookahead_ != nullptr ? lookahead_->chain(header.pos) : nullptr;
  if (known != nullptr) return *known;
  const Chain chain = chains.at(header.pos, header.size);
  if (is_kept && lookahead_ != nullptr && chains.is_reusable()) lookahead_->set_chain(chain);
  return chain;
}

// The nearest candidates are compared.
void GapSearch::add(const Chain& chain, bool allowed) {
  if (candidates_.size() == 2 * kMaxCandidates) {
    candidates_.erase(candidates_.begin(), candidates_.begin() + static_cast<std::ptrdiff_t>(kMaxCandidates));
  }
  candidates_.push_back({chain, allowed});
}

// Finds the best way through the chains from each one on.
void GapSearch::find_ways() {
  for (auto one = candidates_.rbegin(); one != candidates_.rend(); ++one) {
    one->reach = one->chain.strong ? 2 : one->chain.closed ? 1 : 0;
    if (!one->chain.damaged) one->begin = one->chain.first;
    one->end = one->chain.end;
    for (auto next = candidates_.rbegin(); next != one; ++next) {
      if (std::pair(next->reach, next->length) <= std::pair(one->reach, one->length)) continue;
      if (next->chain.first >= one->chain.end + kCandidateWindow || !one->chain.leads_to(view_, next->chain.first)) {
        continue;
      }
      std::tie(one->reach, one->length, one->end) = std::tuple(next->reach, next->length, next->end);
      if (one->chain.damaged) one->begin = next->begin;
    }
    one->length += one->chain.length;
  }
}

// Whether a way is more likely to be the log than the best one before it.
bool GapSearch::is_better(const Candidate& one, const Candidate& best) const {
  if (one.chain.end <= best.chain.end || one.chain.is_stale_after(view_, best.chain)) return false;
  // Without positions, a single entry at the end may have a wrong index.
  if (expected_.count == 0 && one.length == 1 && best.length > 1) return false;
  // A leader that was alone can have left later terms after the log's end.
  const bool is_long = best.length >= kRecentEntries && best.end <= one.chain.first;
  const bool is_likely = is_long || (is_next(best.chain) && !is_next(one.chain));
  if (one.reach < 2 && is_likely && one.chain.has_later_term(view_, best.chain)) return false;
  // Entries in the last body can end where the log ends.
  if (one.reach < 2 && one.length < best.length && best.length >= kRecentEntries) return false;
  return std::pair(one.reach, one.length) > std::pair(best.reach, best.length);
}

// Whether only one entry is lost before the chain.
bool GapSearch::is_next(const Chain& chain) const {
  return std::any_of(expected_.positions, expected_.positions + expected_.count, [&](const LogPosition& position) {
    return position.index == EntryHeader{view_.at(chain.first)}.index() - 2;
  });
}

}  // namespace dledger
