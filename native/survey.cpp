#include "survey.hpp"

#include <algorithm>

#include "check.hpp"

namespace dledger {

const char* const kExtentNames[kExtentKinds] = {"entry", "message", "blank", "unwritten", "stale", "corrupt"};
namespace {

class Surveyor : public Visitor {
 public:
  Surveyor(const SurveyRequest& request, MappedFile& file, const SegmentView& view)
      : request_(request), file_(file), view_(view), populated_(request.start) {}

  Survey take() {
    Resync resync(request_.segment, request_.start);
    const int64_t end = std::min(request_.end, request_.segment.base + request_.segment.size);
    after_end(walk(view_, resync, request_.start, end, *this));
    close_extent();
    return std::move(found_);
  }

  // What `walk` calls.
  bool entry(int64_t pos, int64_t size) {
    populate(pos + size);
    if (request_.verify_crc) view_.stream(pos, size, streamed_);
    const auto index = view_.is_dledger() ? std::optional(EntryHeader{view_.at(pos)}.index()) : std::nullopt;
    if (index) check_header(EntryHeader{view_.at(pos)}, pos, size);
    const bool is_message = check_message_at(pos, size, index);
    add(is_message ? ExtentKind::Message : ExtentKind::Entry, pos, size);
    if (found_.entries++ == 0) {
      found_.first_pos = pos;
      if (index) {
        found_.first_index = *index;
        found_.first_term = EntryHeader{view_.at(pos)}.term();
      }
    }
    found_.last_pos = pos;
    gap_ = 0;
    return true;
  }

  void blank(int64_t pos, int64_t end) { add(ExtentKind::Blank, pos, end - pos); }

  void odd_blank(const Damage& blank) {
    const int64_t size = blank.end - blank.pos;
    // After a snapshot DLedger 0.4.0 begins a file with a blank, before the file has entries.
    const bool is_healthy = !view_.id().check_pos && blank.pos == view_.base();
    if (!is_healthy) report(blank.pos, size, {}, blank.reason(view_));
    add(ExtentKind::Blank, blank.pos, size);
  }

  void corrupt(const Damage& damage) {
    const int64_t size = damage.end - damage.pos;
    gap_ += size;
    add(ExtentKind::Corrupt, damage.pos, size);
    const Fact reason = damage.reason(view_);
    report(damage.pos, size, {}, reason, damage.is_short ? reason.code : ProblemCode::NoEntry);
  }

 private:
  void populate(int64_t until) {
    if (until <= populated_) return;
    populated_ = until + file_.populate(until - view_.base(), kPopulateBytes);
  }

  void add(ExtentKind kind, int64_t pos, int64_t size) {
    if (size <= 0) return;
    found_.sizes[static_cast<int>(kind)] += size;
    if (open_.size > 0 && open_.kind == kind) {
      open_.size += size;
      return;
    }
    close_extent();
    open_ = {kind, pos, size};
  }

  void close_extent() {
    if (open_.size > 0 && static_cast<int64_t>(found_.extents.size()) < request_.max_problems) {
      found_.extents.push_back(open_);
    }
  }

  // Reports a problem; `like` is a code with the same finding.
  void report(int64_t pos, int64_t size, std::optional<int64_t> index, const Fact& fact,
              ProblemCode like = ProblemCode::None) {
    const ProblemCode finding = finding_of(like == ProblemCode::None ? fact.code : like);
    const int64_t count = found_.counts[static_cast<int>(finding)]++;
    // With a wrong position in one entry, those of all entries are usually wrong: one example is enough.
    if (count < request_.max_problems && (fact.code != ProblemCode::PosDiffers || count == 0)) {
      found_.problems.push_back({finding, pos, size, index, fact});
    }
  }

  // Reports problems of a header, by itself and compared with the entry before.
  void check_header(const EntryHeader& header, int64_t pos, int64_t size) {
    const int64_t index = header.index(), term = header.term();
    if (found_.entries > 0) {
      // Unsigned, because an index can be INT64_MAX.
      const uint64_t step = static_cast<uint64_t>(index) - static_cast<uint64_t>(found_.last_index);
      const auto max_step = 1 + static_cast<uint64_t>(gap_ / kEntryHeaderSize);
      if (index <= found_.last_index || step > max_step) index_gap(index, max_step, pos, size);
      if (term < found_.last_term) {
        report(pos, size, index, {ProblemCode::TermOrder, 0, found_.last_term, term});
      }
    }
    found_.last_index = index;
    found_.last_term = term;
    if (header.pos() != pos) {
      report(pos, size, index, {ProblemCode::PosDiffers, 0, pos, header.pos()});
    }
    if ((header.channel() != 0 || header.chain_crc() != 0) && header.control_kind() == 0) {
      report(pos, size, index, {ProblemCode::HeaderField, 0, 0, header.channel(), 0, header.chain_crc()});
    }
  }

  void index_gap(int64_t index, uint64_t max_step, int64_t pos, int64_t size) {
    Fact gap{ProblemCode::IndexGap, 0, index_after(found_.last_index, 1), index};
    if (max_step > 1) {
      gap.code = ProblemCode::IndexGapAfterDamage;
      gap.also_expected = index_after(found_.last_index, static_cast<int64_t>(max_step));
    }
    report(pos, size, index, gap);
  }

  // Reports problems of an entry's body. Returns whether it is a message.
  bool check_message_at(int64_t pos, int64_t size, std::optional<int64_t> index) {
    const uint8_t* bytes = view_.bytes(pos, size);
    int64_t at = pos, length = size;
    if (index) {
      const EntryHeader header{bytes};
      if (request_.verify_crc) {
        if (const Fact problem = stored_crc_problem(bytes, size)) report(pos, size, index, problem);
      }
      at += kEntryHeaderSize;
      bytes += kEntryHeaderSize;
      length -= kEntryHeaderSize;
      if (header.magic() != kMagicNormal || length < 8 || !is_message_magic(load_be32(bytes + 4))) return false;
    }
    Message message;
    if (!parse_message(bytes, length, message)) {
      report(pos, size, index, message_problem(bytes, length, at));
      return false;
    }
    check_message(message, view_.id().offset_of(message, at), index.has_value(), request_.verify_crc,
                  [&](const Fact& problem) {
                    report(pos, size, index, problem);
                    return true;
                  });
    found_.last_store_timestamp = message.store_timestamp();
    if (found_.messages++ == 0) found_.first_store_timestamp = found_.last_store_timestamp;
    return true;
  }

  // Surveys the bytes after the log's end.
  void after_end(int64_t end) {
    const int64_t file_end = view_.file_end();
    int64_t at = end, size = 0;
    const auto is_closed = [&] { return at < file_end && view_.blank_at(at, size) == Blank::ToEnd; };
    if (!is_closed() && at < file_end) at = stale(at);
    if (is_closed()) {
      add(ExtentKind::Blank, at, file_end - at);
    } else if (at < file_end) {
      const int64_t written = end_of_written(at);
      if (written > at) {
        report(at, written - at, {}, {ProblemCode::TrailingBytes, at, 0, written - at});
      }
      add(ExtentKind::Corrupt, at, written - at);
      add(ExtentKind::Unwritten, written, file_end - written);
    }
    at = std::max(end, file_end);
    const int64_t rest = view_.base() + view_.id().size - at;
    if (rest > 0) {
      add(ExtentKind::Corrupt, at, rest);
      report(at, rest, {}, view_.shortage());
    }
  }

  // Surveys the entries that an earlier log left after this one's end. Returns their end.
  int64_t stale(int64_t start) {
    const int64_t file_end = view_.file_end();
    int64_t at = start, count = 0;
    std::optional<int64_t> index;
    for (int64_t pos = view_.find(start, file_end); pos < file_end; pos = view_.find(at, file_end)) {
      const int64_t size = view_.entry_size(pos);
      if (count++ == 0 && view_.is_dledger()) index = EntryHeader{view_.at(pos)}.index();
      at = pos + std::max<int64_t>(size, 1);
    }
    if (count == 0) return start;
    const ProblemCode of_entries = count == 1 ? ProblemCode::StaleEntry : ProblemCode::StaleEntries;
    const ProblemCode of_messages = count == 1 ? ProblemCode::StaleMessage : ProblemCode::StaleMessages;
    report(start, at - start, index, {view_.is_dledger() ? of_entries : of_messages, start, 0, count, 0, at});
    add(ExtentKind::Stale, start, at - start);
    return at;
  }

  // The end of the last byte after start that is not zero, or `start`.
  int64_t end_of_written(int64_t start) const {
    constexpr int64_t kBlock = 64 * 1024;
    for (int64_t stop = view_.file_end(); stop > start;) {
      const int64_t begin = std::max(start, stop - kBlock);
      const uint8_t *const from = view_.at(begin), *to = from + (stop - begin);
      if (skip_zeros(from, to) < to) {
        while (to[-1] == 0) to--;
        return begin + (to - from);
      }
      stop = begin;
    }
    return start;
  }

  const SurveyRequest& request_;
  MappedFile& file_;
  const SegmentView& view_;
  Survey found_;
  SurveyExtent open_{ExtentKind::Entry, 0, 0};
  int64_t gap_ = 0;  // bytes of damage since the last entry
  int64_t populated_, streamed_ = 0;
};

}  // namespace

Survey survey(const SurveyRequest& request) {
  MappedFile file(request.segment.bytes);
  const auto take = [&](int64_t readable) {
    const SegmentView view(request.segment, readable, file);
    return Surveyor(request, file, view).take();
  };
  return on_readable(file, take, [] {});
}

}  // namespace dledger
