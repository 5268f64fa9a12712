// Scans of any bytes: rows are in order and match the bytes. Splits, batches, filters, columns and modes do not change
// them.
#include <algorithm>
#include <string_view>

#include "input.hpp"
#include "memory_file.hpp"
#include "ranges.hpp"
#include "rows.hpp"
#include "text.hpp"

namespace dledger::fuzz {
namespace {

constexpr double kSeconds = 20;
constexpr int64_t kUsualRows = 10000, kUsualBytes = 10 * 1024 * 1024;
const char* const kKinds[] = {"message", "entry", "noop", "config", "corrupt"};

const std::vector<std::string> kAllColumns = Scan::column_names();

// The result of a scan: its rows, and whether FAILFAST ended it.
struct Outcome {
  std::vector<Row> rows;
  bool is_malformed = false;

  bool operator==(const Outcome& other) const { return rows == other.rows && is_malformed == other.is_malformed; }
};

const Value& of(const Row& row, std::string_view column) {
  const auto found = std::find(kAllColumns.begin(), kAllColumns.end(), column);
  check(found != kAllColumns.end(), "a column has this name");
  return row[static_cast<size_t>(found - kAllColumns.begin())];
}
int64_t pos_of(const Row& row) { return of(row, "pos").number; }
int64_t end_of(const Row& row) { return pos_of(row) + of(row, "size").number; }
bool is_corrupt(const Row& row) { return of(row, "kind").text == "corrupt"; }
bool has_problem(const Row& row) { return !of(row, "problem").is_null; }

class Segment {
 public:
  Segment(const Options& options, const std::vector<uint8_t>& bytes)
      : options_(options), bytes_(bytes), id_(options.segment(bytes.size())), view_(id_, bytes_.data(), readable()) {}

  void run();

 private:
  int64_t readable() const { return static_cast<int64_t>(bytes_.size()); }
  // Small batches and splits of megabytes would take seconds and show nothing more.
  bool is_large() const { return bytes_.size() > kMaxInputSize; }
  Request request() const;
  Outcome scan(Request request) const;
  void check_batch(const Request& request, Batch& batch, const std::vector<Row>& rows) const;
  void check_rows(const std::vector<Row>& rows, int64_t start, int64_t end) const;
  void check_gap(int64_t from, int64_t to) const;
  void check_row(const Row& row) const;
  void check_message(const Row& row, const uint8_t* p, int64_t size) const;
  void check_batches(const Outcome& whole) const;
  void check_splits(const Outcome& whole) const;
  void check_ranges(const Outcome& whole) const;
  void check_request(const Outcome& whole) const;
  void check_shrinking(const Outcome& whole) const;

  Options options_;
  const std::vector<uint8_t>& bytes_;
  SegmentId id_;
  SegmentView view_;
};

// All rows and columns, in PERMISSIVE.
Request Segment::request() const {
  Request all;
  all.segment = id_;
  all.start = id_.base;
  all.end = id_.base + id_.size;
  all.columns = kAllColumns;
  all.verify_crc = !options_.has(kSkipCrc);
  if (options_.has(kHasCommitted)) all.committed_index = options_.number;
  all.max_rows = kUsualRows;
  all.max_bytes = kUsualBytes;
  return all;
}

Outcome Segment::scan(Request request) const {
  Outcome outcome;
  Scan scan(request);
  try {
    while (std::unique_ptr<Batch> batch = scan.next()) {
      check(batch->rows > 0 && batch->rows <= request.max_rows, "a batch has 1 to max_rows rows");
      const std::vector<CompressedBody> compressed = batch->compressed;
      std::vector<Row> rows = rows_of(*batch);
      batch->compressed = compressed;
      if (request.columns == kAllColumns) check_batch(request, *batch, rows);
      std::move(rows.begin(), rows.end(), std::back_inserter(outcome.rows));
    }
  } catch (const MalformedFault&) {
    outcome.is_malformed = true;
  }
  return outcome;
}

// For a batch with all columns.
void Segment::check_batch(const Request& request, Batch& batch, const std::vector<Row>& rows) const {
  int64_t bytes = 0;
  size_t listed = 0;
  for (size_t r = 0; r < rows.size(); r++) {
    if (is_corrupt(rows[r])) continue;
    bytes += of(rows[r], "size").number;
    const bool is_compressed = (of(rows[r], "sysFlag").number & kFlagCompressed) != 0;
    if (!is_compressed || listed == batch.compressed.size()) continue;
    const CompressedBody& body = batch.compressed[listed];
    if (body.row != static_cast<int64_t>(r)) continue;
    listed++;
    check(body.pos == pos_of(rows[r]) && !body.stored.empty(), "a compressed body names its row");
    check(of(rows[r], "body").text.empty(), "a compressed body is left out of its column");
    check(of(rows[r], "entryBody").text.find(body.stored) != std::string::npos,
          "a compressed body is part of its row's entryBody");
  }
  check(listed == batch.compressed.size(), "each compressed body has a row");
  check(rows.size() == 1 || bytes <= request.max_bytes, "a batch has at most max_bytes, or one row");
}

void Segment::check_rows(const std::vector<Row>& rows, int64_t start, int64_t end) const {
  int64_t at = start;
  for (const Row& row : rows) {
    check(pos_of(row) >= at && pos_of(row) < end, "rows begin in the range, in order, and overlap nowhere");
    check(end_of(row) > pos_of(row), "a row has bytes");
    check(!is_corrupt(row) || end_of(row) <= end, "a corrupt row ends with the range");
    check_gap(at, pos_of(row));
    check_row(row);
    at = end_of(row);
  }
  if (at < end) check_gap(at, end);
}

// Only blanks have no row.
void Segment::check_gap(int64_t from, int64_t to) const {
  int64_t size = 0;
  check(from == to || view_.blank_at(from, size) != Blank::None, "bytes without a row begin with a blank");
}

void Segment::check_row(const Row& row) const {
  const int64_t pos = pos_of(row), size = of(row, "size").number;
  if (is_corrupt(row)) {
    check(has_problem(row), "a corrupt row says what is wrong");
    check(of(row, "index").is_null && of(row, "topic").is_null, "a corrupt row has no fields");
    check(of(row, "body").is_null && of(row, "entryBody").is_null, "a corrupt row has no body");
    return;
  }
  check(view_.entry_size(pos) == size, "a row is an entry or message at its position");
  const uint8_t* p = view_.at(pos);
  check(of(row, "index").is_null != id_.is_dledger, "DLedger's rows have an index, others none");
  int64_t length = size;
  if (id_.is_dledger) {
    check(of(row, "index").number == load_be64(p + 8), "the index is the header's");
    check(of(row, "term").number == load_be64(p + 16), "the term is the header's");
    p += kEntryHeaderSize;
    length -= kEntryHeaderSize;
  }
  const std::string& body = of(row, "entryBody").text;
  check(body == std::string(reinterpret_cast<const char*>(p), static_cast<size_t>(length)),
        "entryBody has the stored bytes");
  if (of(row, "kind").text == "message") check_message(row, p, length);
}

// The properties, by a second implementation.
Pairs properties_of(const std::string& text) {
  Pairs pairs;
  for (size_t at = 0; at <= text.size();) {
    const size_t stop = std::min(text.find('\x02', at), text.size());
    const std::string pair = text.substr(at, stop - at);
    const size_t equals = pair.find('\x01');
    at = stop + 1;
    if (equals == std::string::npos || equals == 0 || equals + 1 == pair.size()) continue;
    const std::string name = pair.substr(0, equals), value = pair.substr(equals + 1);
    const auto known = std::find_if(pairs.begin(), pairs.end(), [&](const auto& other) { return other.first == name; });
    if (known == pairs.end()) {
      pairs.emplace_back(name, value);
    } else {
      known->second = value;
    }
  }
  return pairs;
}

void Segment::check_message(const Row& row, const uint8_t* p, int64_t size) const {
  Message message;
  check(parse_message(p, size, message), "a message can be parsed");
  check(of(row, "topic").text == sanitize_utf8(message.topic, message.topic_length), "the topic is the message's");
  const Pairs expected = properties_of(sanitize_utf8(message.properties, message.properties_length));
  check(of(row, "properties").pairs == expected, "the properties agree with the second implementation");
  const std::pair<const char*, const char*> named[] = {{"TAGS", "tags"}, {"KEYS", "keys"}, {"UNIQ_KEY", "uniqKey"}};
  for (const auto& [name, column] : named) {
    const auto known =
        std::find_if(expected.begin(), expected.end(), [&, n = name](const auto& pair) { return pair.first == n; });
    check(of(row, column).is_null == (known == expected.end()), "a named property is null if it is missing");
    check(known == expected.end() || of(row, column).text == known->second, "a named property is in the map");
  }
  const size_t id_size = 2 * (static_cast<size_t>(message.store_host_length()) + 8);
  check(of(row, "offsetMsgId").text.size() == id_size, "offsetMsgId is host and offset");
}

void Segment::check_batches(const Outcome& whole) const {
  static const int64_t kRows[] = {1, 2, 7, 127, 128, 129}, kBytes[] = {1, 100, 1000, 20000, kUsualBytes};
  Request small = request();
  small.max_rows = kRows[is_large() ? 3 + options_.batch_rows % 3 : options_.batch_rows % 6];
  small.max_bytes = is_large() ? kUsualBytes : kBytes[options_.batch_bytes % 5];
  check(scan(small) == whole, "batches change nothing");
}

void Segment::check_splits(const Outcome& whole) const {
  static const int64_t kTargets[] = {1, 60, 300, 1000, 5000, 1024 * 1024};
  const int64_t start = id_.base, end = id_.base + id_.size;
  // After 8 MiB boundaries are proven without a walk over all bytes before them.
  const int64_t large = options_.target % 2 == 0 ? kTargets[5] : 2 * kSpanWindow + 1000;
  const int64_t target = is_large() ? large : std::max(kTargets[options_.target % 6], readable() / 20);
  std::vector<int64_t> ends = split(view_, start, end, target);
  int64_t last = start;
  for (const int64_t boundary : ends) {
    check(boundary > last && boundary < end, "boundaries ascend inside the range");
    last = boundary;
  }
  ends.push_back(end);
  Outcome parts;
  Request part = request();
  for (const int64_t boundary : ends) {
    part.end = boundary;
    part.end_is_boundary = boundary != end;
    Outcome outcome = scan(part);
    check_rows(outcome.rows, part.start, part.end);
    std::move(outcome.rows.begin(), outcome.rows.end(), std::back_inserter(parts.rows));
    part.start = boundary;
  }
  check(parts == whole, "splits change nothing");
}

// Ranges that end at the start of a row, or anywhere.
void Segment::check_ranges(const Outcome& whole) const {
  if (whole.rows.empty()) return;
  const size_t row = options_.range % whole.rows.size();
  Request range = request();
  range.end = pos_of(whole.rows[row]);
  Outcome head = scan(range);
  check_rows(head.rows, range.start, range.end);
  if (!is_corrupt(whole.rows[row])) {
    const std::vector<Row> rows(whole.rows.begin(), whole.rows.begin() + static_cast<std::ptrdiff_t>(row));
    check(head.rows == rows, "a range that ends at an entry has the rows before it");
  }
  range.end = std::min(range.end + options_.range / 3, id_.base + id_.size);
  check_rows(scan(range).rows, range.start, range.end);
  // An extent of several rows would be cut at other positions.
  if (row > 0 && is_corrupt(whole.rows[row]) && is_corrupt(whole.rows[row - 1])) return;
  range.start = pos_of(whole.rows[row]);
  range.end = id_.base + id_.size;
  const std::vector<Row> rows(whole.rows.begin() + static_cast<std::ptrdiff_t>(row), whole.rows.end());
  check(scan(range).rows == rows, "a range that begins at a row has the rows from there on");
}

bool holds(const std::optional<IntCondition>& condition, const Value& value) {
  if (!condition) return true;
  if (value.is_null || value.number < condition->low || value.number > condition->high) return false;
  if (!condition->values) return true;
  return std::find(condition->values->begin(), condition->values->end(), value.number) != condition->values->end();
}

bool holds(const std::optional<TextCondition>& condition, const Value& value) {
  if (!condition) return true;
  return !value.is_null && std::find(condition->begin(), condition->end(), value.text) != condition->end();
}

bool meets(const Conditions& where, const Row& row) {
  if (where.kinds) {
    uint32_t kind = 0;
    while (of(row, "kind").text != kKinds[kind]) kind++;
    if ((*where.kinds >> kind & 1) == 0) return false;
  }
  const Value& committed = of(row, "committed");
  if (where.committed && (committed.is_null || (committed.number != 0) != *where.committed)) return false;
  return holds(where.index, of(row, "index")) && holds(where.term, of(row, "term")) &&
         holds(where.pos, of(row, "pos")) && holds(where.queue_id, of(row, "queueId")) &&
         holds(where.store_timestamp, of(row, "storeTimestamp")) && holds(where.topic, of(row, "topic")) &&
         holds(where.tags, of(row, "tags"));
}

// Conditions that at least one row meets.
Conditions conditions_of(const Options& options, const std::vector<Row>& rows) {
  Conditions where;
  if (rows.empty()) return where;
  const Row& row = rows[options.filter_row % rows.size()];
  const auto from = [&](const char* column) {
    return IntCondition{of(row, column).number, options.filter & 0x10 ? INT64_MAX : of(row, column).number, {}};
  };
  const auto one_of = [&](const char* column) { return TextCondition{"OrderTopic", of(row, column).text}; };
  const auto number = std::vector<int64_t>{of(row, "queueId").number};
  if ((options.filter & 0xF) == 1) where.index = from("index");
  if ((options.filter & 0xF) == 2) where.term = from("term");
  if ((options.filter & 0xF) == 3) where.pos = from("pos");
  if ((options.filter & 0xF) == 4) where.queue_id = IntCondition{INT64_MIN, INT64_MAX, number};
  if ((options.filter & 0xF) == 5) where.store_timestamp = from("storeTimestamp");
  if ((options.filter & 0xF) == 6) where.topic = one_of("topic");
  if ((options.filter & 0xF) == 7) where.tags = one_of("tags");
  if ((options.filter & 0xF) == 8) where.kinds = options.filter >> 4;
  if ((options.filter & 0xF) == 9) where.committed = (options.filter & 0x10) != 0;
  if ((options.filter & 0xF) == 10) where.topic = TextCondition{};
  if (options.filter & 0x20) where.kinds = 1u << (options.filter_row % 5) | 1u;
  return where;
}

// Columns, filters and modes select from all rows.
void Segment::check_request(const Outcome& whole) const {
  Request some = request();
  some.columns.clear();
  std::vector<size_t> columns;
  for (size_t c = 0; c < kAllColumns.size(); c++) {
    if ((options_.columns >> c & 1) == 0) continue;
    columns.push_back(c);
    some.columns.push_back(kAllColumns[c]);
  }
  some.conditions = conditions_of(options_, whole.rows);
  some.mode = static_cast<Mode>(options_.mode % 3);
  Outcome expected;
  for (const Row& row : whole.rows) {
    if (!meets(some.conditions, row)) continue;
    if (has_problem(row) && some.mode == Mode::FailFast) {
      expected.is_malformed = true;
      break;
    }
    if (has_problem(row) && some.mode == Mode::DropMalformed) continue;
    Row left;
    for (const size_t column : columns) left.push_back(row[column]);
    expected.rows.push_back(std::move(left));
  }
  check(scan(some) == expected, "columns, filters and modes select from all rows");
}

// A file that shrinks while it is read: only the corrupt row is after its end.
void Segment::check_shrinking(const Outcome& whole) const {
  const size_t row = options_.filter_row % (whole.rows.size() + 1);
  int64_t left = options_.range;
  if (row < whole.rows.size()) left += pos_of(whole.rows[row]) - id_.base;
  memory_file.shrinks_to = std::min(left, readable());
  memory_file.shrinks_after = 1 + options_.batch_rows % 5;
  Request slow = request();
  slow.max_rows = (is_large() ? 128 : 1) + options_.batch_bytes % 4;
  const Outcome outcome = scan(slow);
  memory_file.shrinks_to = -1;
  int64_t at = id_.base;
  for (const Row& row_left : outcome.rows) {
    check(pos_of(row_left) >= at && end_of(row_left) > pos_of(row_left), "rows of a shrinking file are in order");
    at = end_of(row_left);
  }
}

void Segment::run() {
  const Outcome whole = scan(request());
  check(!whole.is_malformed, "PERMISSIVE raises nothing");
  check_rows(whole.rows, id_.base, id_.base + id_.size);
  check_batches(whole);
  check_splits(whole);
  check_ranges(whole);
  check_request(whole);
  if (options_.has(kShrinks)) check_shrinking(whole);
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
  Segment(options, memory_file.bytes).run();
  return 0;
}
