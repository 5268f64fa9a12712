#include "survey.hpp"

#include <algorithm>

#include "check.hpp"
#include "text.hpp"

namespace dledger {

const char* const kExtentNames[kExtentKinds] = {"entry", "message", "blank", "unwritten", "stale", "corrupt"};
const char* const kCodeNames[kCodes] = {"corruptBytes",  "shortFile",   "indexGap",     "termOrder",
                                        "posDiffers",    "headerField", "bodyCrc",      "messageStructure",
                                        "messageOffset", "messageCrc",  "propertyCrc",  "messageTimestamp",
                                        "blankSize",     "staleBytes",  "trailingBytes"};

namespace {

Code code_of(MessageCheck check) {
  static constexpr Code kCodeOf[] = {Code::MessageOffset, Code::MessageCrc, Code::PropertyCrc, Code::MessageTimestamp};
  return kCodeOf[static_cast<int>(check)];
}

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
    if (!is_healthy) report(Code::BlankSize, blank.pos, size, {}, [&] { return blank.reason(view_); });
    add(ExtentKind::Blank, blank.pos, size);
  }

  void corrupt(const Damage& damage) {
    const int64_t size = damage.end - damage.pos;
    gap_ += size;
    add(ExtentKind::Corrupt, damage.pos, size);
    const Code code = damage.is_short ? Code::ShortFile : Code::CorruptBytes;
    report(code, damage.pos, size, {}, [&] { return damage.reason(view_); });
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

  // Only problems that are listed need a text.
  template <typename Text>
  void report(Code code, int64_t pos, int64_t size, std::optional<int64_t> index, Text make_text) {
    const int64_t count = found_.counts[static_cast<int>(code)]++;
    // With a wrong position in one entry, those of all entries are usually wrong: one example is enough.
    if (count < request_.max_problems && (code != Code::PosDiffers || count == 0)) {
      found_.problems.push_back({code, pos, size, index, make_text()});
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
        report(Code::TermOrder, pos, size, index,
               [&] { return "expected term >= " + text(found_.last_term) + ", found " + text(term); });
      }
    }
    found_.last_index = index;
    found_.last_term = term;
    if (header.pos() != pos) {
      report(Code::PosDiffers, pos, size, index, [&] { return expected_found("pos", pos, header.pos()); });
    }
    if ((header.channel() != 0 || header.chain_crc() != 0) && header.control_kind() == 0) {
      report(Code::HeaderField, pos, size, index, [&] {
        return "expected channel 0 and chainCrc 0, found channel " + text(header.channel()) + " and chainCrc " +
               text(header.chain_crc());
      });
    }
  }

  void index_gap(int64_t index, uint64_t max_step, int64_t pos, int64_t size) {
    const auto last = static_cast<uint64_t>(found_.last_index);
    report(Code::IndexGap, pos, size, index, [&] {
      std::string expected = std::to_string(last + 1);
      if (max_step > 1) expected += " to " + std::to_string(last + max_step);
      return expected_found("index", expected, index);
    });
  }

  // Reports problems of an entry's body. Returns whether it is a message.
  bool check_message_at(int64_t pos, int64_t size, std::optional<int64_t> index) {
    const uint8_t* bytes = view_.bytes(pos, size);
    int64_t at = pos, length = size;
    if (index) {
      const EntryHeader header{bytes};
      if (request_.verify_crc) {
        std::string problem = stored_crc_problem(bytes, size);
        if (!problem.empty()) report(Code::BodyCrc, pos, size, index, [&] { return problem; });
      }
      at += kEntryHeaderSize;
      bytes += kEntryHeaderSize;
      length -= kEntryHeaderSize;
      if (header.magic() != kMagicNormal || length < 8 || !is_message_magic(load_be32(bytes + 4))) return false;
    }
    Message message;
    MessageFault fault;
    if (!parse_message(bytes, length, message, fault)) {
      report(Code::MessageStructure, pos, size, index, [&] { return fault.text(length, at); });
      return false;
    }
    check_message(message, at, index.has_value(), request_.verify_crc,
                  [&](MessageCheck check, const std::string& problem) {
                    report(code_of(check), pos, size, index, [&] { return problem; });
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
        report(Code::TrailingBytes, at, written - at, {}, [&] {
          return "expected zeros after the log's end at " + text(at) + ", found " + text(written - at) + " bytes";
        });
      }
      add(ExtentKind::Corrupt, at, written - at);
      add(ExtentKind::Unwritten, written, file_end - written);
    }
    at = std::max(end, file_end);
    const int64_t rest = view_.base() + view_.id().size - at;
    if (rest > 0) {
      add(ExtentKind::Corrupt, at, rest);
      report(Code::ShortFile, at, rest, {}, [&] { return view_.shortage(); });
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
    report(Code::StaleBytes, start, at - start, index, [&] {
      const std::string one = view_.is_dledger() ? "entry" : "message",
                        many = view_.is_dledger() ? "entries" : "messages";
      return "expected zeros after the log's end at " + text(start) + ", found " + text(count) + " whole " +
             (count == 1 ? one : many) + " up to " + text(at);
    });
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
  for (int64_t readable = file.readable();;) {
    const SegmentView view(request.segment, readable, file);
    Survey found = Surveyor(request, file, view).take();
    const int64_t now = file.readable();
    if (now >= readable) return found;
    readable = now;  // the file shrank or failed: the survey may contain bytes that were never in it
  }
}

}  // namespace dledger
