#include "scan.hpp"

#include <algorithm>

#include "check.hpp"
#include "puts.hpp"
#include "text.hpp"

namespace dledger {

namespace {

constexpr int64_t kPrefetchEntries = 16;
constexpr int64_t kMaxCorruptRow = INT32_MAX;
constexpr int64_t kCorruptPiece = int64_t{1} << 30;

bool contains(const TextCondition& values, const TextBytes& text) {
  return std::any_of(values.begin(), values.end(), [&](const std::string& value) {
    return value.size() == text.size && std::memcmp(value.data(), text.p, text.size) == 0;
  });
}

const uint8_t* bytes_of(const std::string& text) { return reinterpret_cast<const uint8_t*>(text.data()); }

}  // namespace

bool IntCondition::allows(int64_t value) const {
  if (value < low || value > high) return false;
  return !values || std::binary_search(values->begin(), values->end(), value);
}

Scan::Scan(Request request)
    : request_(std::move(request)),
      file_(request_.segment.bytes),
      resync_(request_.segment, request_.start),
      pos_(request_.start),
      end_(std::min(request_.end, request_.segment.base + request_.segment.size)),
      populated_(request_.start),
      copies_(new uint8_t[kChunk * kMaxCopy + kTextPadding]) {
  for (const std::string& name : request_.columns) need(name);
  const Conditions& where = request_.conditions;
  if (request_.mode != Mode::Permissive) needs_ |= kProblem;
  if (where.tags) needs_ |= kProperties;
  has_entry_conditions_ = where.pos || where.committed || where.index || where.term;
  has_message_conditions_ = where.kinds || where.topic || where.tags || where.queue_id || where.store_timestamp;
  if (has_message_conditions_) needs_ |= kMessage;
  if (needs(kProblem)) needs_ |= kMessage | kStoredBody;
  is_selective_ = has_entry_conditions_ || needs(kMessage);
}

std::unique_ptr<Batch> Scan::next() {
  const int64_t pos = pos_;
  const Extent corrupt = corrupt_;
  const WalkHistory history = resync_.history;
  const auto build_next = [&](int64_t readable) {
    SegmentView view(request_.segment, readable, file_);
    return build(view);
  };
  return on_readable(file_, build_next, [&] {
    pos_ = pos;
    corrupt_ = corrupt;
    resync_.history = history;
  });
}

std::unique_ptr<Batch> Scan::build(SegmentView& view) {
  auto batch = std::make_unique<Batch>();
  batch->columns.reserve(columns_.size());
  const bool is_first = column_sizes_.empty();
  column_sizes_.resize(columns_.size());
  for (size_t c = 0; c < columns_.size(); c++) {
    const ColumnSpec& spec = *columns_[c];
    batch->columns.emplace_back(spec.name, spec.type);
    if (is_first) column_sizes_[c].values = expected_bytes(spec);
    batch->columns.back().reserve(column_sizes_[c]);
    if (spec.fill == &Scan::fill_body) body_ = &batch->columns.back();
    if (spec.fill == &Scan::fill_entry_body) entry_body_ = &batch->columns.back();
  }
  int64_t bytes = 0;
  count_ = 0;
  copied_ = 0;
  while (batch->rows + count_ < request_.max_rows) {
    if (count_ > 0 && file_.is_full()) flush(*batch);
    file_.hold(count_ > 0);
    Row& row = rows_[count_];
    MessageInfo& info = infos_[count_];
    bool is_stepped = false;
    try {
      if (!step(view, row)) break;
      is_stepped = true;
      if (is_selective_ && !accept(view, row, info)) continue;
    } catch (const std::runtime_error&) {
      // The rows before are returned first. The next call finds the same fault
      // again.
      if (batch->rows + count_ == 0) throw;
      if (is_stepped) put_back(row);
      break;
    }
    const int64_t more = cost(row, info);
    if (bytes + more > request_.max_bytes && batch->rows + count_ > 0) {
      put_back(row);
      break;
    }
    bytes += more;
    if (needs(kBody)) append_bodies(row, info);
    if (++count_ == kChunk) flush(*batch);
  }
  flush(*batch);
  finish_streaming();
  for (size_t c = 0; c < columns_.size(); c++) column_sizes_[c] = batch->columns[c].sizes();
  return batch->rows > 0 ? std::move(batch) : nullptr;
}

// About how many bytes a column of the first batch has, if it is known.
size_t Scan::expected_bytes(const ColumnSpec& column) const {
  if ((column.needs & kBody) == 0 || has_entry_conditions_ || has_message_conditions_) return 0;
  return static_cast<size_t>(std::max<int64_t>(std::min(request_.max_bytes, end_ - pos_), 0));
}

// Moves to the next row, before any condition; false at the end of the range.
inline bool Scan::step(const SegmentView& view, Row& row) {
  if (pos_ < corrupt_.end) return step_corrupt(row);
  while (pos_ < end_) {
    if (pos_ >= populated_) {
      populated_ = pos_ + file_.populate(pos_ - view.base(), std::min(kPopulateBytes, end_ - pos_));
    }
    const int64_t size = view.entry_size(pos_);
    if (size > 0 && resync_.is_of_log(view, pos_, size)) {
      if (passes_end(size)) fail_boundary(view.is_dledger() ? "entry" : "message", size);
      row = {Kind::Entry, view.bytes(pos_, size), pos_, size, -1};
      resync_.history.add(pos_);
      prefetch(view, size);
      pos_ += size;
      return true;
    }
    if (pass_gap(view, size)) return step_corrupt(row);
  }
  pos_ = std::max(pos_, end_);
  return false;
}

// Passes a blank, or what has no entry of the log though it may be one of `size` bytes. Returns whether that has rows.
bool Scan::pass_gap(const SegmentView& view, int64_t size) {
  const int64_t last = size > 0 ? resync_.history.last() : -1;
  const Blank blank = size > 0 ? Blank::None : view.blank_at(pos_, size);
  if (blank == Blank::ToEnd || blank == Blank::Leading) {
    if (passes_end(size)) fail_boundary("blank", size);
    resync_.pass_blank(view, pos_);
    pos_ += size;
    return false;
  }
  // An entry right at the end counts: the walk of the next range starts there.
  const int64_t found = resync_.next(view, pos_, end_ + 1);
  const bool is_found = found >= 0 && found <= end_;
  const bool is_short = !is_found && view.file_end() < end_;
  if (blank == Blank::Odd && !is_found && !is_short) {
    pos_ = end_;
    return false;
  }
  const Damage damage{pos_, is_found ? found : end_, is_short, blank == Blank::Odd, size, last};
  begin_corrupt(damage.pos, damage.end, damage.reason(view));
  return true;
}

// Leaves the row of the last `step` to the next batch.
void Scan::put_back(const Row& row) {
  pos_ = row.pos;
  if (row.kind != Kind::Corrupt) resync_.history.remove_last();
}

// Prefetches the next bytes: all of them if bodies are copied or checked, else the parts of
// the next entries that are read. Those usually have the size of this one.
inline void Scan::prefetch(const SegmentView& view, int64_t size) {
  if (needs(kBody) || (needs(kProblem) && request_.verify_crc)) {
    view.stream(pos_, size, streamed_);
    return;
  }
  const int64_t next = pos_ + kPrefetchEntries * size;
  view.prefetch(next);
  if (!needs(kMessage)) return;
  __builtin_prefetch(view.near(next + 2 * kCacheLine));
  for (int line = 1; line <= 3; line++) __builtin_prefetch(view.near(next - line * kCacheLine));
}

// If the walk passes over a planned end, rows would be returned twice or not at
// all.
void Scan::fail_boundary(const char* what, int64_t size) const {
  throw StoreFault(request_.segment.path + ": a split at " + text(end_) + " is not on an entry boundary: the " + what +
                   " at " + text(pos_) + " ends at " + text(pos_ + size) +
                   "; was the file changed after it was planned?");
}

void Scan::begin_corrupt(int64_t pos, int64_t end, const Fact& reason) {
  pos_ = pos;
  corrupt_ = {end, end - pos > kMaxCorruptRow ? kCorruptPiece : end - pos, reason};
}

bool Scan::step_corrupt(Row& row) {
  const int64_t size = std::min(corrupt_.piece, corrupt_.end - pos_);
  row = {Kind::Corrupt, nullptr, pos_, size, -1};
  pos_ += size;
  return true;
}

bool Scan::is_committed(const Row& row) const { return EntryHeader{row.p}.index() <= *request_.committed_index; }

// Tests the conditions that need no message.
bool Scan::keeps_entry(const Row& row) const {
  const Conditions& where = request_.conditions;
  if (where.pos && !where.pos->allows(row.pos)) return false;
  const bool has_header = request_.segment.is_dledger && row.kind != Kind::Corrupt;
  if (where.committed) {
    if (request_.segment.is_dledger) {
      if (!has_header || !request_.committed_index || is_committed(row) != *where.committed) return false;
    } else if (!*where.committed) {
      return false;
    }
  }
  if (!where.index && !where.term) return true;
  if (!has_header) return false;
  const EntryHeader header{row.p};
  return (!where.index || where.index->allows(header.index())) && (!where.term || where.term->allows(header.term()));
}

bool Scan::keeps_message(const Row& row, const MessageInfo& info) const {
  const Conditions& where = request_.conditions;
  if (where.kinds && (*where.kinds >> static_cast<int>(row.kind) & 1) == 0) return false;
  if (!where.topic && !where.tags && !where.queue_id && !where.store_timestamp) return true;
  if (row.kind != Kind::Message) return false;
  const Message& message = info.message;
  if (where.queue_id && !where.queue_id->allows(message.queue_id())) return false;
  if (where.topic && !contains(*where.topic, info.topic)) return false;
  if (where.store_timestamp) {
    const int64_t ms = message.store_timestamp();
    if (!is_representable(ms) || !where.store_timestamp->allows(ms * 1000)) return false;
  }
  if (!where.tags) return true;
  return info.named.tags >= 0 && contains(*where.tags, value(info, info.named.tags));
}

// Whether the row is kept; completes it then.
bool Scan::accept(const SegmentView& view, Row& row, MessageInfo& info) {
  if (has_entry_conditions_ && !keeps_entry(row)) return false;
  if (!needs(kMessage)) return true;
  const size_t properties = properties_.size(), problems = problems_.size(), texts = texts_.size();
  const size_t copied = copied_;
  read_message(view, row, info);
  const bool has_properties = needs(kProperties) && row.kind == Kind::Message;
  const bool is_early = request_.conditions.tags.has_value();
  if (has_properties && is_early) parse_properties(info);
  bool keep = !has_message_conditions_ || keeps_message(row, info);
  if (keep && needs(kProblem)) {
    check(row, info);
    if (row.problem >= 0 && request_.mode == Mode::FailFast) {
      throw MalformedFault(request_.segment.path + ": " + name_of(row.kind) + " at " + text(row.pos) + ": " +
                           sentence(problems_[static_cast<size_t>(row.problem)], request_.segment.name) +
                           "; mode=PERMISSIVE keeps such rows with their "
                           "problem, DROPMALFORMED drops them");
    }
    keep = row.problem < 0 || request_.mode == Mode::Permissive;
  }
  // Right after texts were copied, reading them would take longer.
  if (has_properties && !is_early && keep) parse_properties(info);
  if (!keep) {
    properties_.resize(properties);
    problems_.resize(problems);
    texts_.resize(texts);
    copied_ = copied;
  }
  return keep;
}

// Finds the row's kind, and its message's parts.
void Scan::read_message(const SegmentView& view, Row& row, MessageInfo& info) {
  if (row.kind == Kind::Corrupt) {
    if (needs(kProblem)) add_problem(row, corrupt_.reason);
    return;
  }
  const uint8_t* bytes = row.p;
  int64_t size = row.size;
  if (view.is_dledger()) {
    const EntryHeader header{row.p};
    if (header.magic() != kMagicNormal) {
      row.kind = header.magic() == kMagicNoop ? Kind::Noop : Kind::Config;
      return;
    }
    // A control entry with a message stays a message.
    if (const int32_t kind = header.control_kind()) row.kind = kind == kChannelNoop ? Kind::Noop : Kind::Config;
    bytes += kEntryHeaderSize;
    size -= kEntryHeaderSize;
    if (size < 8 || !is_message_magic(load_be32(bytes + 4))) return;
  }
  if (!parse_message(bytes, size, info.message)) {
    if (needs(kProblem)) add_problem(row, message_problem(bytes, size, row.pos + (bytes - row.p)));
    return;
  }
  row.kind = Kind::Message;
  read_texts(info);
}

// Copies topic and properties to memory in which the bytes after them may be read, unless they are long.
void Scan::read_texts(MessageInfo& info) {
  const Message& message = info.message;
  const uint8_t* from = message.topic;
  const auto size = static_cast<size_t>(message.p + message.size - from);
  info.padding = 0;
  if (size <= kMaxCopy) {
    uint8_t* const to = copies_.get() + copied_;
    copy_inline(to, from, size);
    std::memset(to + size, 0, kTextPadding);
    copied_ += size;
    info.padding = kTextPadding;
    from = to;
  }
  info.topic = {from, message.topic_length, message.topic_length + info.padding};
  info.text = from + (message.properties - message.topic);
  if (!is_utf8(message.topic, message.topic_length)) {
    texts_.push_back(sanitize_utf8(from, message.topic_length));
    info.topic = {bytes_of(texts_.back()), texts_.back().size(), texts_.back().size()};
  }
}

void Scan::parse_properties(MessageInfo& info) {
  size_t size = info.message.properties_length;
  const bool can_have_shape = info.padding > 0 && size > 0 && size <= PropertyShape::kMaxSize;
  info.shape = can_have_shape ? shapes_.find(info.text, size) : nullptr;
  const bool is_valid = (can_have_shape && shapes_.is_ascii()) || is_utf8(info.text, size);
  if (info.shape != nullptr && is_valid) {
    info.properties = info.shape->pairs;
    info.named = info.shape->named;
    return;
  }
  info.shape = nullptr;
  if (!is_valid) {
    // Replacing malformed bytes moves no separator: both are below 0x80.
    texts_.push_back(sanitize_utf8(info.text, size));
    info.text = bytes_of(texts_.back());
    info.padding = 0;
    size = texts_.back().size();
  }
  const size_t first = properties_.size();
  split_properties(info.text, info.text + size, properties_);
  const size_t found = properties_.size();
  merge_properties(properties_, first);
  info.first_property = static_cast<uint32_t>(first);
  info.properties = static_cast<uint32_t>(properties_.size() - first);
  info.named = find_named(properties_.data() + first, info.properties);
  if (can_have_shape && is_valid && properties_.size() == found) {
    shapes_.learn(info.text, size, properties_.data() + first, info.properties);
  }
}

TextBytes Scan::value(const MessageInfo& info, int32_t number) const {
  if (info.shape != nullptr) {
    const size_t size = info.shape->value_size[number];
    return {info.text + info.shape->value_at[number], size, size + kTextPadding};
  }
  const Property& property = properties_[info.first_property + static_cast<size_t>(number)];
  return {property.value, property.value_length, property.value_length + info.padding};
}

void Scan::add_problem(Row& row, const Fact& problem) {
  if (row.problem >= 0) return;
  row.problem = static_cast<int32_t>(problems_.size());
  problems_.push_back(problem);
}

// Finds the row's first problem. One that was found while parsing comes after
// that of the header.
void Scan::check(Row& row, const MessageInfo& info) {
  if (row.kind == Kind::Corrupt) return;
  if (request_.segment.is_dledger && request_.verify_crc) {
    if (const Fact problem = stored_crc_problem(row.p, row.size)) {
      row.problem = -1;
      add_problem(row, problem);
    }
  }
  if (row.problem >= 0 || row.kind != Kind::Message) return;
  const int64_t at = request_.segment.offset_of(info.message, row.pos + (info.message.p - row.p));
  check_message(info.message, at, request_.segment.is_dledger, request_.verify_crc, [&](const Fact& problem) {
    add_problem(row, problem);
    return false;
  });
}

bool Scan::lists_compressed(const Row& row, const MessageInfo& info) const {
  return needs(kStoredBody) && row.kind == Kind::Message && info.message.has_compressed_body();
}

// About how many bytes the row adds to its batch.
int64_t Scan::cost(const Row& row, const MessageInfo& info) const {
  if (row.kind == Kind::Corrupt) return 0;
  if (needs(kBody)) return row.size;
  if (!needs(kMessage) || row.kind != Kind::Message) return 0;
  const int64_t stored = lists_compressed(row, info) ? info.message.body_length : 0;
  return info.message.size - info.message.body_length + stored;
}

void Scan::flush(Batch& batch) {
  for (int i = 0; i < count_; i++) {
    const Row& row = rows_[i];
    message_valid_[i] = row.kind == Kind::Message;
    body_valid_[i] = row.kind != Kind::Corrupt;
    entry_valid_[i] = row.kind != Kind::Corrupt && request_.segment.is_dledger;
    if (lists_compressed(row, infos_[i])) {
      const Message& message = infos_[i].message;
      batch.compressed.push_back(
          {batch.rows + i, row.pos, message.compression_type(),
           std::string(reinterpret_cast<const char*>(message.body), static_cast<size_t>(message.body_length))});
    }
  }
  for (size_t c = 0; c < columns_.size(); c++) (this->*columns_[c]->fill)(batch.columns[c]);
  batch.rows += count_;
  count_ = 0;
  problems_.clear();
  properties_.clear();
  shapes_.release();
  texts_.clear();
  copied_ = 0;
}

// Copies bodies row by row during the walk, so that the segment is read once,
// front to back.
void Scan::append_bodies(const Row& row, const MessageInfo& info) {
  if (body_ != nullptr) {
    if (row.kind == Kind::Message) {
      const bool is_listed = info.message.has_compressed_body();
      body_->append_body(info.message.body, is_listed ? 0 : static_cast<size_t>(info.message.body_length));
    } else {
      append_rest(*body_, row, kEntryHeaderSize);
    }
  }
  if (entry_body_ != nullptr) append_rest(*entry_body_, row, request_.segment.is_dledger ? kEntryHeaderSize : 0);
}

// Appends the bytes of a row after the first `skip`; none of a corrupt row.
void Scan::append_rest(Column& column, const Row& row, int skip) {
  if (row.kind == Kind::Corrupt) return column.append_nothing();
  column.append_body(row.p + skip, static_cast<size_t>(row.size - skip));
}

}  // namespace dledger
