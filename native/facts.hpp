// Problems of bytes as data: a code with values. The catalogue in pyspark_dledger/format/facts.py has the sentences.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace dledger {

// The codes that the engines find, in the order of the catalogue.
// clang-format off
#define DLEDGER_PROBLEM_CODES(X) \
  X(ShortFile) X(Unreadable) X(BlankSize) X(Order) \
  X(NoHeader) X(NoEntry) X(EntryMagic) X(EntrySize) X(EntryEnd) X(EntryNumbers) X(EntryPos) \
  X(MessageEnd) X(NoMessage) X(MessageMagic) X(MessageSize) X(MessageElsewhere) \
  X(ShortMessage) X(TotalSize) X(BodyLength) X(TopicLength) X(PropertiesLength) X(MessageLengths) \
  X(BodyCrc) X(MessageOffset) X(MessageCrc) X(PropertyCrc) X(BornTime) X(StoreTime) \
  X(IndexGap) X(IndexGapAfterDamage) X(TermOrder) X(PosDiffers) X(HeaderField) \
  X(StaleEntry) X(StaleEntries) X(StaleMessage) X(StaleMessages) X(TrailingBytes)
// clang-format on

#define DLEDGER_NAME(name) name,
enum class ProblemCode : uint8_t { None, DLEDGER_PROBLEM_CODES(DLEDGER_NAME) };
#undef DLEDGER_NAME

// A problem with its values; those that its sentence does not have are 0. Of Unreadable, `found` is the offset of the
// first byte of the file that cannot be read, and `also_found` the system's error number.
struct Fact {
  ProblemCode code = ProblemCode::None;
  int64_t at = 0, expected = 0, found = 0, also_expected = 0, also_found = 0;

  explicit operator bool() const { return code != ProblemCode::None; }
};

// A number that is larger by `more` than an index; at most INT64_MAX.
inline int64_t index_after(int64_t index, int64_t more) { return index > INT64_MAX - more ? INT64_MAX : index + more; }

constexpr int kProblemCodes = static_cast<int>(ProblemCode::TrailingBytes) + 1;

// The codes' names, without None.
std::vector<std::string> problem_names();

// Sets the findings and the sentences of the codes from ShortFile on. Call it once, before any other call.
void set_catalogue(const std::vector<std::string>& findings, const std::vector<std::string>& sentences);

// The first code with the same finding.
ProblemCode finding_of(ProblemCode code);

// What was expected and found; `name` is that of the file.
std::string sentence(const Fact& fact, const std::string& name);

}  // namespace dledger
