// Entries of a segment that are known from outside it, see pyspark_dledger/format/spec.py.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

namespace dledger {

// `count` entries in [pos, end), sorted and disjoint. The header of a whole one is the one that the witness gives.
struct KnownEntries {
  std::shared_ptr<const void> memory;
  const int64_t* pos = nullptr;
  const int64_t* end = nullptr;
  const uint8_t* is_whole = nullptr;
  int64_t count = 0;
};

// Knows entries of one segment. It is asked at the first damage, once.
class Witness {
 public:
  using Ask = std::function<KnownEntries()>;

  explicit Witness(Ask ask) : ask_(std::move(ask)) {}

  bool is_asked() const { return is_asked_; }

  // Throws what `ask` throws.
  const KnownEntries& known() {
    if (!is_asked_) known_ = ask_();
    is_asked_ = true;
    return known_;
  }

 private:
  Ask ask_;
  KnownEntries known_;
  bool is_asked_ = false;
};

}  // namespace dledger
