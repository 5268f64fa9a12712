// The calls without rows (end of the log, seek, runs of terms, survey) agree with a scan, and copied messages are
// valid.
#include <algorithm>

#include "input.hpp"
#include "memory_file.hpp"
#include "message.hpp"
#include "message_copies.hpp"
#include "rows.hpp"
#include "survey.hpp"

namespace dledger::fuzz {
namespace {

constexpr double kSeconds = 20;

struct Entry {
  int64_t pos, size, index, term;
  std::string kind, problem;
};

// The rows of a scan over [start, end).
std::vector<Entry> rows_of_scan(const SegmentId& id, int64_t start, int64_t end) {
  Request request;
  request.segment = id;
  request.start = start;
  request.end = end;
  request.columns = {"pos", "size", "index", "term", "kind", "problem"};
  request.max_rows = 10000;
  request.max_bytes = 10 * 1024 * 1024;
  std::vector<Entry> rows;
  Scan scan(request);
  while (std::unique_ptr<Batch> batch = scan.next()) {
    for (const Row& row : rows_of(*batch)) {
      rows.push_back({row[0].number, row[1].number, row[2].number, row[3].number, row[4].text, row[5].text});
    }
  }
  return rows;
}

std::vector<Entry> entries_of(const std::vector<Entry>& rows) {
  std::vector<Entry> entries;
  std::copy_if(rows.begin(), rows.end(), std::back_inserter(entries),
               [](const Entry& row) { return row.kind != "corrupt"; });
  return entries;
}

void check_log_end(const SegmentView& view, const SegmentId& id, int64_t start, bool search_all) {
  const LogEnd end = log_end(view, start, search_all);
  if (end.entries == 0) {
    check(end.pos >= start && end.first_index == -1 && end.last_index == -1, "a log without entries ends at its start");
    check(end.last_pos == -1, "a log without entries has no last one");
    return;
  }
  const int64_t size = view.entry_size(end.last_pos);
  check(end.last_pos >= start && size > 0, "the last entry is after the start");
  check(end.pos == end.last_pos + size && end.pos <= view.file_end(), "the log ends after its last entry");
  if (id.is_dledger) {
    check(end.last_index == load_be64(view.at(end.last_pos) + 8), "the last index is the last entry's");
    check(end.last_index - end.first_index >= end.entries - 1, "indices ascend");
    // A first entry with a damaged term is passed over if that is far too high.
    check(end.last_term >= end.first_term || end.last_term + 1 < end.first_term, "terms never decrease");
  } else {
    check(end.first_index == -1 && end.last_index == -1 && end.last_term == -1, "messages have no index");
  }
}

void check_seek(const SegmentView& view, const SegmentId& id, const std::vector<Entry>& entries, int64_t start,
                int64_t end, int64_t index) {
  int64_t expected = end;
  for (const Entry& entry : entries) {
    if (!id.is_dledger || entry.index < index) continue;
    expected = entry.pos;
    break;
  }
  check(seek(view, start, end, index) == expected, "seek finds the first row of at least that index");
}

void check_term_runs(const SegmentView& view, const SegmentId& id, const std::vector<Entry>& entries, int64_t start,
                     int64_t end) {
  std::vector<TermRun> expected;
  for (const Entry& entry : entries) {
    if (!id.is_dledger) break;
    if (expected.empty() || expected.back().term != entry.term) {
      expected.push_back({entry.term, entry.index, entry.pos, 0});
    }
    expected.back().entries++;
  }
  const std::vector<TermRun> runs = term_runs(view, start, end);
  check(runs.size() == expected.size(), "there are as many runs of terms as the rows have");
  for (size_t i = 0; i < runs.size(); i++) {
    const TermRun &run = runs[i], &want = expected[i];
    check(run.term == want.term && run.index == want.index && run.pos == want.pos && run.entries == want.entries,
          "a run of a term is the rows'");
  }
}

// Every byte has one kind, and problems are those of the rows.
void check_survey(const SegmentView& view, const std::vector<Entry>& rows, int64_t start, int64_t end) {
  SurveyRequest request;
  request.segment = view.id();
  request.start = start;
  request.end = end;
  request.max_problems = int64_t{1} << 40;
  const Survey found = survey(request);
  const int64_t segment_end = view.base() + view.id().size;

  int64_t at = start, sizes[kExtentKinds] = {};
  const SurveyExtent* last = nullptr;
  for (const SurveyExtent& extent : found.extents) {
    check(extent.pos == at && extent.size > 0, "extents follow each other without a gap");
    check(last == nullptr || last->kind != extent.kind, "adjacent extents have different kinds");
    at += extent.size;
    sizes[static_cast<int>(extent.kind)] += extent.size;
    last = &extent;
  }
  check(at == segment_end, "extents are all of the segment");
  for (int kind = 0; kind < kExtentKinds; kind++) check(sizes[kind] == found.sizes[kind], "sizes are the extents'");

  const std::vector<Entry> entries = entries_of(rows);
  const auto count = [&](const char* kind) {
    return std::count_if(rows.begin(), rows.end(), [=](const Entry& row) { return row.kind == kind; });
  };
  check(found.entries == static_cast<int64_t>(entries.size()), "a survey counts the rows");
  check(found.messages == count("message"), "a survey counts the messages");
  if (!entries.empty()) {
    check(found.first_pos == entries.front().pos && found.last_pos == entries.back().pos,
          "first and last are the rows'");
    if (view.is_dledger()) {
      check(found.first_index == entries.front().index && found.last_index == entries.back().index,
            "and their indexes");
    }
  }

  int64_t counts[kProblemCodes] = {};
  for (const Problem& problem : found.problems) {
    counts[static_cast<int>(problem.finding)]++;
    check(problem.pos >= start && problem.size > 0 && problem.pos + problem.size <= segment_end, "a problem is inside");
    check(sentence(problem.fact, view.id().name).rfind("expected ", 0) == 0, "a problem says what was expected");
  }
  for (int code = 0; code < kProblemCodes; code++) {
    const int64_t times = found.counts[code], most = code == static_cast<int>(ProblemCode::PosDiffers) ? 1 : times;
    check(counts[code] == std::min(times, most), "problems are counted by code");
  }
  for (const Entry& row : rows) {
    if (row.problem.empty()) continue;
    // A row of a corrupt extent may be a part of it.
    check(std::any_of(found.problems.begin(), found.problems.end(),
                      [&](const Problem& problem) {
                        return problem.pos <= row.pos && row.pos < problem.pos + problem.size &&
                               sentence(problem.fact, view.id().name) == row.problem;
                      }),
          "what is wrong with a row is in the survey");
  }
  request.max_problems = 2;
  const Survey few = survey(request);
  check(std::equal(few.counts, few.counts + kProblemCodes, found.counts), "a limit changes no count");
  check(few.extents.size() <= 2, "the number of extents is limited");
}

// Copied bytes are messages with the offsets of their new positions.
void check_copies(const SegmentView& view, const std::vector<Entry>& entries, int64_t shift) {
  constexpr int64_t kPosition = int64_t{7} << 40;
  const int64_t header = view.is_dledger() ? kEntryHeaderSize : 0;
  std::vector<int64_t> starts, sizes;
  int64_t room = 0;
  for (const Entry& row : entries) {
    for (const int64_t by : {int64_t{0}, shift % 4096}) {
      starts.push_back(row.pos + header + by);
      sizes.push_back(std::max<int64_t>(row.size - header, 0));
      room += sizes.back();
    }
  }
  std::vector<uint8_t> into(static_cast<size_t>(room));
  const auto count = static_cast<int64_t>(starts.size());
  const CopiedMessages copied = copy_messages(view, starts.data(), sizes.data(), count, kPosition, into.data());
  check(copied.size <= room && copied.outcomes.size() == starts.size(), "copied messages fit the buffer");
  int64_t at = 0;
  for (size_t i = 0; i < starts.size(); i++) {
    if (copied.outcomes[i] > static_cast<uint8_t>(CopyOutcome::V2)) continue;
    Message message;
    check(parse_message(into.data() + at, sizes[i], message), "a copy is a message");
    check(message.physical_offset() == kPosition + at, "a copy has the offset of its position");
    at += sizes[i];
  }
  check(at == copied.size, "copied messages follow each other");
}

void run(const Options& options, const std::vector<uint8_t>& bytes) {
  const SegmentId id = options.segment(bytes.size());
  const SegmentView view(id, bytes.data(), static_cast<int64_t>(bytes.size()));
  int64_t start = id.base;
  const int64_t end = id.base + id.size;
  for (int round = 0; round < 2; round++) {
    const std::vector<Entry> rows = rows_of_scan(id, start, end), entries = entries_of(rows);
    for (const bool search_all : {false, true}) check_log_end(view, id, start, search_all);
    const int64_t near = entries.empty() ? 0 : entries[options.filter_row % entries.size()].index;
    for (const int64_t index : {options.number, near, near > INT64_MIN ? near - 1 : near}) {
      check_seek(view, id, entries, start, end, index);
    }
    check_term_runs(view, id, entries, start, end);
    check_survey(view, rows, start, end);
    check_copies(view, entries, options.number);
    const int64_t log = log_end(view, start, true).pos;
    check_survey(view, rows_of_scan(id, start, log), start, log);
    if (entries.empty()) break;
    start = entries[options.range % entries.size()].pos;
  }
}

}  // namespace
}  // namespace dledger::fuzz

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned int seed) {
  return dledger::fuzz::mutate_segment(data, size, max_size, seed);
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace dledger::fuzz;
  if (size < kOptionBytes || size > kMaxInputSize) return -1;
  const TimeLimit limit(kSeconds);
  const Options options = read_options(data);
  memory_file.bytes = segment_bytes(options, data + kOptionBytes, size - kOptionBytes);
  memory_file.bytes.shrink_to_fit();
  run(options, memory_file.bytes);
  return 0;
}
