#include "chains.hpp"

#include <algorithm>

namespace dledger {
namespace {

constexpr int64_t kMinBodyStart = kMinMessageSize - 3;  // with IPv4 hosts

// The position of a message's body after its begin, by its hosts.
int64_t body_start(const uint8_t* message) {
  const int32_t flags = load_be32(message + kSysFlagAt);
  return kMinBodyStart + ((flags & kFlagBornHostV6) != 0 ? 12 : 0) + ((flags & kFlagStoreHostV6) != 0 ? 12 : 0);
}

// Whether the log is closed inside the fixed fields of the message after the chain, of which no size is left.
bool is_closed_in_header(const SegmentView& view, int64_t end) {
  const int64_t stop = end + view.min_size();
  if (view.is_dledger() || stop >= view.file_end()) return false;
  const uint8_t *const header = view.at(end), *const header_end = header + view.min_size();
  const int64_t size = load_be32(header);
  if (is_message_magic(load_be32(header + 4))) return false;  // the next message, with a damaged size
  if ((size >= kMinMessageSize && size <= kMaxEntrySize) || header_end[-1] != 0) return false;
  return skip_zeros(header, header_end) < header_end && view.is_closed_at(stop);
}

}  // namespace

bool Chain::leads_to(const SegmentView& view, int64_t pos) const {
  if (pos < end) return false;
  // Fewer bytes than a message has: the chain is in the body of one that ends here.
  if (!view.is_dledger()) return pos == end || pos - end >= kMinMessageSize;
  const EntryHeader header{view.at(pos)}, begin{view.at(first)};
  // The end of a damaged entry is unknown.
  if (damaged) return LogPosition{begin.index() - 1, begin.term(), first}.allows(header, pos);
  // A wrong term may have ended the chain.
  const LogPosition position{EntryHeader{view.at(last)}.index(), begin.term(), end};
  return position.allows(header, pos) || (pos == end && header.index() - 1 == position.index);
}

bool Chain::is_stale_after(const SegmentView& view, const Chain& other) const {
  if (!view.is_dledger()) return false;
  const EntryHeader here{view.at(first)};
  // A lone term can be damaged.
  const bool is_later = EntryHeader{view.at(other.first)}.index() <= here.index() || other.length > 1;
  return is_later && here.term() < EntryHeader{view.at(other.last)}.term();
}

bool Chain::has_later_term(const SegmentView& view, const Chain& other) const {
  return view.is_dledger() && EntryHeader{view.at(first)}.term() > EntryHeader{view.at(other.last)}.term();
}

int64_t end_of_damaged(const SegmentView& view, int64_t pos) {
  const int64_t left = view.file_end() - pos;
  if (left < view.min_size()) return 0;
  const uint8_t* const p = view.at(pos);
  if (view.is_dledger()) {
    const EntryHeader header{p};
    const bool is_own = view.id().check_pos && header.is_magic() && header.pos() == pos;
    return is_own && header.index() >= 0 && header.term() >= -1 ? pos + kEntryHeaderSize : 0;
  }
  if (!is_message_magic(load_be32(p + 4)) || load_be64(p + kPhysicalOffsetAt) != pos) return 0;
  const int64_t start = body_start(p), size = load_be32(p);
  const int64_t body_size = left >= start ? load_be32(p + start - 4) : -1;
  const bool is_likely = body_size >= 0 && start + body_size < size && size <= kMaxEntrySize;
  return pos + start + (is_likely ? body_size : 0);
}

Chain Chains::at(int64_t pos, int64_t size) {
  Chain chain;
  is_reusable_ = false;
  if (rest_.length > 0 && rest_.first == pos) {
    chain = rest_;
    rest_.length = 0;
  } else if (const auto rest = rests_.find(pos); rest != rests_.end()) {
    chain = rest->second;
    rests_.erase(rest);
  } else {
    chain = walk(pos, size);
  }
  if (chain.length > 1 && !chain.strong) {
    if (rest_.length > 0) rests_[rest_.first] = rest_;
    rest_ = chain;
    rest_.first = next_of(chain.first, chain.first + chain.first_size);
    rest_.first_size = view_.entry_size(rest_.first);
    rest_.length--;
  }
  return chain;
}

Chain Chains::walk(int64_t pos, int64_t size) const {
  Chain chain{pos, size, pos, pos + size, 1};
  is_reusable_ = true;
  passed_.clear();
  visits_ = 0;
  extend(chain);
  WalkedChains::visits() += visits_;
  for (const auto& [entry, number] : passed_) {
    const int64_t length = chain.length - number + 1;
    if (length >= WalkedChains::kInterval) walked_.add(entry, {chain.last, chain.end, length});
  }
  return chain;
}

// Walks to the end of a chain, which has its first entry, and finds how it ends.
void Chains::extend(Chain& chain) const {
  // The first entry of the search is not remembered, because most chains are short.
  for (int64_t steps = 1; chain.end - chain.first < kSpanWindow; steps++) {
    if (join_walked(chain)) {
      steps = -1;
      continue;
    }
    if (steps % WalkedChains::kInterval == 0) passed_.emplace_back(chain.last, chain.length);
    visits_++;
    if (following_ != nullptr && chain.end == following_->pos) {
      chain.closed = true;
      return;
    }
    const int64_t next = view_.entry_size(chain.end);
    if (next > 0 && following_ != nullptr && chain.end + next > following_->pos) return;
    if (next == 0 || !follows(view_, chain.last, chain.end)) {
      if (const int64_t beyond = beyond_damaged(chain.last, chain.end); beyond >= 0) {
        chain.last = beyond;
        chain.end = beyond + view_.entry_size(beyond);
        chain.length++;
        continue;
      }
      chain.closed = next == 0 && following_ == nullptr && view_.is_closed_at(chain.end);
      chain.cut = chain.closed ? is_cut_by_segment(chain) : is_cut(chain);
      return;
    }
    view_.prefetch(chain.end + 12 * next);
    chain.last = chain.end;
    chain.end += next;
    chain.length++;
  }
  chain.strong = true;
}

// Moves to the end of a walked chain that has the last entry of this one, unless that is too far.
bool Chains::join_walked(Chain& chain) const {
  const WalkedChains::Rest* const rest = walked_.find(chain.last);
  if (rest == nullptr || rest->end - chain.first >= kSpanWindow) return false;
  if (following_ != nullptr && rest->end > following_->pos) return false;
  chain.last = rest->last;
  chain.end = rest->end;
  chain.length += rest->length - 1;
  return true;
}

int64_t Chains::next_of(int64_t last, int64_t end) const {
  return view_.entry_size(end) > 0 && follows(view_, last, end) ? end : beyond_damaged(last, end);
}

int64_t Chains::beyond_damaged(int64_t last, int64_t end) const {
  int64_t sizes[2];
  if (!view_.is_dledger() || view_.sizes_at(end, sizes) < 2 || sizes[0] != sizes[1]) return -1;
  if (sizes[0] < kEntryHeaderSize || sizes[0] > kMaxEntrySize || sizes[0] > view_.file_end() - end) return -1;
  const int64_t pos = end + sizes[0], size = view_.entry_size(pos);
  if (size == 0 || (following_ != nullptr && pos + size > following_->pos)) return -1;
  const EntryHeader before{view_.at(last)}, header{view_.at(pos)};
  const bool is_next = header.index() - 2 == before.index() && header.term() >= before.term();
  return is_next && shift_of(view_, pos) == shift_of(view_, last) ? pos : -1;
}

// Whether an entry or the closing blank begins where the header of the chain's next entry would be.
bool Chains::is_cut(const Chain& chain) const {
  int64_t stop = chain.end + (view_.is_dledger() ? kEntryHeaderSize : kMinBodyStart);
  if (following_ != nullptr) stop = std::min(stop, following_->pos);
  for (int64_t pos = chain.end; (pos = view_.next_candidate(pos, stop, true)) < stop; pos++) {
    int64_t size = 0;
    if (pos > chain.end && view_.blank_at(pos, size) == Blank::ToEnd) return true;
    if (is_cut_by(chain, pos)) return true;
  }
  return is_closed_in_header(view_, chain.end);
}

bool Chains::is_cut_by(const Chain& chain, int64_t pos) const {
  const bool is_at_end = pos == chain.end;
  const int64_t size = view_.entry_size(pos);
  if (size == 0 && end_of_damaged(view_, pos) == 0) return false;
  if (!view_.is_dledger()) return !is_at_end;
  const EntryHeader header{view_.at(pos)}, last{view_.at(chain.last)};
  if (size == 0 && is_at_end) return header.term() == last.term() && header.index() - 1 != last.index();
  // An earlier log left it, or it was moved.
  if (header.term() < last.term() || shift_of(view_, pos) != shift_of(view_, chain.last)) return false;
  // A leader that was alone left it: its entries were overwritten by those of an earlier term.
  if (header.term() > last.term()) return false;
  if (!is_at_end) return true;
  // It does not follow: its index is damaged, unless that is the expected one, or another entry follows it.
  const int64_t next = pos + size;
  if (view_.entry_size(next) == 0) {
    is_reusable_ = false;
    return expected_.count > 0 && expected_.allows(view_, pos, size);
  }
  return EntryHeader{view_.at(next)}.index() - 2 != last.index() && follows(view_, pos, next);
}

// Whether the closing blank follows, but not the next segment's first entry. Its index can be damaged: it must be
// possible, and a long chain proves more.
bool Chains::is_cut_by_segment(const Chain& chain) const {
  int64_t size = 0;
  if (!view_.id().after || chain.length >= kRecentEntries) return false;
  if (view_.blank_at(chain.end, size) != Blank::ToEnd) return false;
  is_reusable_ = false;
  const EntryHeader last{view_.at(chain.last)};
  const auto [index, term] = *view_.id().after;
  const int64_t segment_end = view_.base() + view_.id().size;
  const auto is_possible = [&, next = index](const LogPosition& position) {
    const int64_t lost = next - 1 - position.index;
    return lost >= 1 && lost <= (segment_end - position.gap) / kEntryHeaderSize;
  };
  if (!std::any_of(expected_.positions, expected_.positions + expected_.count, is_possible)) return false;
  return last.index() != index - 1 || last.term() > term;
}

}  // namespace dledger
