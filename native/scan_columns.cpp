// The columns of a scan: what they need, and their values of a chunk of rows.
#include <functional>
#include <type_traits>

#include "check.hpp"
#include "puts.hpp"
#include "scan.hpp"
#include "text.hpp"

namespace dledger {

namespace {

const std::string kKindNames[] = {"message", "entry", "noop", "config", "corrupt"};
const std::string kCompressionNames[] = {"zlib", "lz4", "zstd", "zlib"};
const std::string kTransactionNames[] = {"none", "prepared", "commit", "rollback"};
const std::string kNone = "none", kLedger = "dledger", kCommitLog = "commitlog";

}  // namespace

const std::string& name_of(Kind kind) { return kKindNames[static_cast<int>(kind)]; }

template <typename T, typename Get>
void Scan::fill(Column& column, const uint8_t* valid, Get get) {
  T* const out = column.values<T>(count_);
  if (valid == nullptr || std::memchr(valid, 0, static_cast<size_t>(count_)) == nullptr) {
    for (int i = 0; i < count_; i++) out[i] = get(i);
    return column.close_chunk(count_, nullptr);
  }
  for (int i = 0; i < count_; i++) out[i] = valid[i] ? get(i) : T{0};
  column.close_chunk(count_, valid);
}

template <typename TextOf>
void Scan::fill_text(Column& column, const uint8_t* valid, TextOf text_of) {
  {
    TextAppender appender(column, count_);
    for (int i = 0; i < count_; i++) appender.append(valid[i] ? text_of(i) : TextBytes());
  }
  column.close_chunk(count_, valid);
}

template <auto host, auto length>
void Scan::fill_host(Column& column) {
  HostText text;
  fill_text(column, message_valid_, [&](int i) {
    const Message& message = infos_[i].message;
    return text.text((message.*host)(), (message.*length)());
  });
}

template <auto which>
void Scan::fill_property(Column& column) {
  uint8_t valid[kChunk];
  for (int i = 0; i < count_; i++) valid[i] = message_valid_[i] && infos_[i].named.*which >= 0;
  fill_text(column, valid, [&](int i) { return value(infos_[i], infos_[i].named.*which); });
}

void Scan::fill_put_id(Column& column) {
  uint8_t valid[kChunk], ids[kChunk][kIdSize];
  for (int i = 0; i < count_; i++) {
    valid[i] = message_valid_[i] && infos_[i].named.put_id >= 0;
    if (valid[i] == 0) continue;
    const TextBytes id = value(infos_[i], infos_[i].named.put_id);
    valid[i] = read_id_text({reinterpret_cast<const char*>(id.p), id.size}, ids[i]);
  }
  fill_text(column, valid, [&](int i) { return TextBytes{ids[i], kIdSize, kIdSize}; });
}

template <auto time>
void Scan::fill_timestamp(Column& column) {
  uint8_t valid[kChunk];
  int64_t milliseconds[kChunk];
  for (int i = 0; i < count_; i++) {
    milliseconds[i] = message_valid_[i] ? (infos_[i].message.*time)() : 0;
    valid[i] = message_valid_[i] && is_representable(milliseconds[i]);
  }
  fill<int64_t>(column, valid, [&](int i) { return milliseconds[i] * 1000; });
}

// A column of few different names, which are usually the same from row to row;
// a null pointer is a null.
template <typename NameOf>
void Scan::fill_names(Column& column, NameOf name_of) {
  static const std::string kNothing;
  uint8_t valid[kChunk];
  for (int i = 0; i < count_;) {
    const std::string* const name = name_of(i);
    int end = i;
    while (end < count_ && name_of(end) == name) valid[end++] = name != nullptr;
    column.append_repeated(name != nullptr ? *name : kNothing, end - i);
    i = end;
  }
  column.close_chunk(count_, valid);
}

void Scan::fill_compression(Column& column) {
  fill_names(column, [this](int i) -> const std::string* {
    if (!message_valid_[i]) return nullptr;
    const Message& message = infos_[i].message;
    if ((message.sys_flag() & kFlagCompressed) == 0) return &kNone;
    return message.compression_type() <= 3 ? &kCompressionNames[message.compression_type()] : nullptr;
  });
}

void Scan::fill_transaction(Column& column) {
  fill_names(column, [this](int i) -> const std::string* {
    if (!message_valid_[i]) return nullptr;
    return &kTransactionNames[(infos_[i].message.sys_flag() & kFlagTransactionMask) >> 2];
  });
}

void Scan::fill_offset_msg_id(Column& column) {
  char id[56];
  fill_text(column, message_valid_, [&](int i) {
    const Message& message = infos_[i].message;
    const int length = message.store_host_length();
    write_hex(message.store_host(), length, id);
    write_hex(message.p + kPhysicalOffsetAt, 8, id + 2 * length);
    return TextBytes{reinterpret_cast<const uint8_t*>(id), static_cast<size_t>(2 * (length + 8)), sizeof id};
  });
}

void Scan::fill_properties(Column& column) {
  int64_t pairs = 0;
  for (int i = 0; i < count_; i++) pairs += message_valid_[i] ? infos_[i].properties : 0;
  TextAppender keys(column.keys(), pairs), items(column.items(), pairs);
  for (int i = 0; i < count_; i++) {
    const MessageInfo& info = infos_[i];
    const uint32_t count = message_valid_[i] ? info.properties : 0;
    column.close_map(count);
    if (count > 0 && info.shape != nullptr) {
      const PropertyShape& shape = *info.shape;
      keys.append_all(shape.names, shape.names_size, shape.name_ends, count);
      items.append_parts(info.text, shape.size, shape.value_at, shape.value_size, count);
      continue;
    }
    for (uint32_t k = 0; k < count; k++) {
      const Property& property = properties_[info.first_property + k];
      keys.append({property.key, property.key_length, property.key_length + info.padding});
      items.append({property.value, property.value_length, property.value_length + info.padding});
    }
  }
  column.close_chunk(count_, message_valid_);
}

void Scan::fill_committed(Column& column) {
  uint8_t valid[kChunk];
  const bool known = !request_.segment.is_dledger || request_.committed_index.has_value();
  for (int i = 0; i < count_; i++) {
    valid[i] = known && (!request_.segment.is_dledger || entry_valid_[i]);
    column.append_bool(valid[i] && (!request_.segment.is_dledger || is_committed(rows_[i])));
  }
  column.close_chunk(count_, valid);
}

void Scan::fill_problem(Column& column) {
  uint8_t valid[kChunk];
  for (int i = 0; i < count_; i++) valid[i] = rows_[i].problem >= 0;
  std::string problem;
  fill_text(column, valid, [&](int i) {
    problem = sentence(problems_[static_cast<size_t>(rows_[i].problem)], request_.segment.name);
    return TextBytes{reinterpret_cast<const uint8_t*>(problem.data()), problem.size(), problem.size()};
  });
}

// A number in the header of each row's entry.
template <auto field>
void Scan::fill_entry(Column& column) {
  using Number = std::invoke_result_t<decltype(field), EntryHeader>;
  fill<Number>(column, entry_valid_, [&](int i) { return (EntryHeader{rows_[i].p}.*field)(); });
}

// A number of each row's message.
template <auto field>
void Scan::fill_message(Column& column) {
  using Number = std::decay_t<std::invoke_result_t<decltype(field), const Message&>>;
  fill<Number>(column, message_valid_, [&](int i) { return std::invoke(field, infos_[i].message); });
}

// A number of each row's problem; with `only`, of rows with that problem.
template <typename Number, auto field, ProblemCode only>
void Scan::fill_fact(Column& column) {
  const auto fact = [this](int i) -> const Fact& { return problems_[static_cast<size_t>(rows_[i].problem)]; };
  uint8_t valid[kChunk];
  for (int i = 0; i < count_; i++) {
    valid[i] = rows_[i].problem >= 0 && (only == ProblemCode::None || fact(i).code == only);
  }
  fill<Number>(column, valid, [&](int i) { return static_cast<Number>(fact(i).*field); });
}

void Scan::fill_constant(Column& column, const std::string& value) {
  column.append_repeated(value, count_);
  column.close_chunk(count_, nullptr);
}

void Scan::fill_kind(Column& column) {
  fill_names(column, [this](int i) { return &name_of(rows_[i].kind); });
}

void Scan::fill_source(Column& column) { fill_constant(column, request_.segment.is_dledger ? kLedger : kCommitLog); }

void Scan::fill_segment(Column& column) { fill_constant(column, request_.segment.name); }

void Scan::fill_pos(Column& column) {
  fill<int64_t>(column, nullptr, [this](int i) { return rows_[i].pos; });
}

void Scan::fill_size(Column& column) {
  fill<int32_t>(column, nullptr, [this](int i) { return static_cast<int32_t>(rows_[i].size); });
}

void Scan::fill_topic(Column& column) {
  fill_text(column, message_valid_, [this](int i) { return infos_[i].topic; });
}

// Python fills it where it heals: the engine reads one file.
void Scan::fill_healed_from(Column& column) {
  fill_names(column, [](int) -> const std::string* { return nullptr; });
}

// append_bodies has appended the bytes.
void Scan::fill_body(Column& column) { column.close_chunk(count_, body_valid_); }

void Scan::fill_entry_body(Column& column) { column.close_chunk(count_, body_valid_); }

const Scan::ColumnSpec Scan::kColumns[] = {
    {"kind", Type::String, kMessage, &Scan::fill_kind},
    {"source", Type::String, kNothing, &Scan::fill_source},
    {"index", Type::Int64, kNothing, &Scan::fill_entry<&EntryHeader::index>},
    {"term", Type::Int64, kNothing, &Scan::fill_entry<&EntryHeader::term>},
    {"pos", Type::Int64, kNothing, &Scan::fill_pos},
    {"size", Type::Int32, kNothing, &Scan::fill_size},
    {"magic", Type::Int32, kNothing, &Scan::fill_entry<&EntryHeader::magic>},
    {"channel", Type::Int32, kNothing, &Scan::fill_entry<&EntryHeader::channel>},
    {"chainCrc", Type::Int32, kNothing, &Scan::fill_entry<&EntryHeader::chain_crc>},
    {"bodyCrc", Type::Int32, kNothing, &Scan::fill_entry<&EntryHeader::body_crc>},
    {"bodySize", Type::Int32, kNothing, &Scan::fill_entry<&EntryHeader::body_size>},
    {"committed", Type::Bool, kNothing, &Scan::fill_committed},
    {"problem", Type::String, kProblem, &Scan::fill_problem},
    {"segment", Type::String, kNothing, &Scan::fill_segment},
    {"topic", Type::String, kMessage, &Scan::fill_topic},
    {"queueId", Type::Int32, kMessage, &Scan::fill_message<&Message::queue_id>},
    {"queueOffset", Type::Int64, kMessage, &Scan::fill_message<&Message::queue_offset>},
    {"commitLogOffset", Type::Int64, kMessage, &Scan::fill_message<&Message::physical_offset>},
    {"storeSize", Type::Int32, kMessage, &Scan::fill_message<&Message::size>},
    {"messageMagic", Type::Int32, kMessage, &Scan::fill_message<&Message::magic>},
    {"flag", Type::Int32, kMessage, &Scan::fill_message<&Message::flag>},
    {"sysFlag", Type::Int32, kMessage, &Scan::fill_message<&Message::sys_flag>},
    {"reconsumeTimes", Type::Int32, kMessage, &Scan::fill_message<&Message::reconsume_times>},
    {"bornTimestamp", Type::Timestamp, kMessage, &Scan::fill_timestamp<&Message::born_timestamp>},
    {"storeTimestamp", Type::Timestamp, kMessage, &Scan::fill_timestamp<&Message::store_timestamp>},
    {"bornHost", Type::String, kMessage, &Scan::fill_host<&Message::born_host, &Message::born_host_length>},
    {"storeHost", Type::String, kMessage, &Scan::fill_host<&Message::store_host, &Message::store_host_length>},
    {"messageCrc", Type::Int32, kMessage, &Scan::fill_message<&Message::body_crc>},
    {"preparedTransactionOffset", Type::Int64, kMessage, &Scan::fill_message<&Message::prepared_transaction_offset>},
    {"transaction", Type::String, kMessage, &Scan::fill_transaction},
    {"compression", Type::String, kMessage, &Scan::fill_compression},
    {"tags", Type::String, kMessage | kProperties, &Scan::fill_property<&NamedProperties::tags>},
    {"keys", Type::String, kMessage | kProperties, &Scan::fill_property<&NamedProperties::keys>},
    {"uniqKey", Type::String, kMessage | kProperties, &Scan::fill_property<&NamedProperties::uniq_key>},
    {"offsetMsgId", Type::String, kMessage, &Scan::fill_offset_msg_id},
    {"properties", Type::Map, kMessage | kProperties, &Scan::fill_properties},
    {"body", Type::Binary, kMessage | kBody | kStoredBody, &Scan::fill_body},
    {"healedFrom", Type::String, kNothing, &Scan::fill_healed_from},
    {"entryBody", Type::Binary, kBody, &Scan::fill_entry_body},
    {"putId", Type::Binary, kMessage | kProperties, &Scan::fill_put_id},
    {"problemCode", Type::Int32, kProblem, &Scan::fill_fact<int32_t, &Fact::code>},
    {"problemExpected", Type::Int64, kProblem, &Scan::fill_fact<int64_t, &Fact::expected>},
    {"problemFound", Type::Int64, kProblem, &Scan::fill_fact<int64_t, &Fact::found>},
    {"problemErrno", Type::Int32, kProblem, &Scan::fill_fact<int32_t, &Fact::also_found, ProblemCode::Unreadable>},
};

std::vector<std::string> Scan::column_names() {
  std::vector<std::string> names;
  for (const ColumnSpec& column : kColumns) names.emplace_back(column.name);
  return names;
}

void Scan::need(const std::string& name) {
  for (const ColumnSpec& column : kColumns) {
    if (name != column.name) continue;
    columns_.push_back(&column);
    needs_ |= column.needs;
    return;
  }
  throw std::invalid_argument("unknown column " + name);
}

}  // namespace dledger
