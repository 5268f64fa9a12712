#include "known_frames.hpp"

#include <algorithm>

namespace dledger {
namespace {

// The number of known entries that begin at or before pos.
int64_t count_up_to(const KnownEntries& known, int64_t pos) {
  return std::upper_bound(known.pos, known.pos + known.count, pos) - known.pos;
}

// A known entry. None if it should be whole and is not, so that its end is doubtful.
std::optional<KnownFrame> frame_of(const SegmentView& view, const KnownEntries& known, int64_t number) {
  const int64_t pos = known.pos[number], end = known.end[number];
  const bool is_whole = known.is_whole[number] != 0;
  if (is_whole && view.entry_size(pos) != end - pos) return std::nullopt;
  return KnownFrame{pos, end, is_whole};
}

}  // namespace

std::optional<KnownFrame> known_at(const SegmentView& view, int64_t pos) {
  const KnownEntries& known = view.known();
  const int64_t number = count_up_to(known, pos) - 1;
  if (number < 0 || pos >= known.end[number]) return std::nullopt;
  return frame_of(view, known, number);
}

std::optional<KnownFrame> known_after(const SegmentView& view, int64_t pos) {
  const KnownEntries& known = view.known();
  const int64_t stop = count_up_to(known, view.file_end() - 1);
  for (int64_t number = count_up_to(known, pos); number < stop; number++) {
    if (const auto found = frame_of(view, known, number)) return found;
  }
  return std::nullopt;
}

bool accepts(const SegmentView& view, int64_t last, int64_t pos, int64_t size) {
  const auto known = known_at(view, pos);
  if (!known) {
    const auto following = known_after(view, pos);
    return !following || following->pos >= pos + size;
  }
  if (known->pos != pos || known->end != pos + size) return false;
  // Only the index is damaged. A lower term is that of an entry which an earlier log left at this position.
  return known->is_whole || EntryHeader{view.at(pos)}.term() >= EntryHeader{view.at(last)}.term();
}

}  // namespace dledger
