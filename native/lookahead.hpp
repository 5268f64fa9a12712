// What a search found after the entry that it chose, for the next search of the same walk. It changes no result.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "chains.hpp"

namespace dledger {

// An entry or message, or a damaged header with its own position, whose size is 0 and which can end at `end`.
struct Header {
  int64_t pos, size, end;
};

class Lookahead {
 public:
  WalkedChains walked;

  // Forgets everything if the file's end has changed.
  void set_file_end(int64_t file_end) {
    if (file_end == file_end_) return;
    found_.clear();
    walked.clear();
    file_end_ = file_end;
  }

  // Forgets what is before `start`.
  void begin(int64_t start) {
    walked.forget_before(start);
    for (next_ = 0; next_ < found_.size() && found_[next_].header.pos < start;) next_++;
    found_.erase(found_.begin(), found_.begin() + static_cast<std::ptrdiff_t>(next_));
    next_ = 0;
  }

  // The first header at or after `from`, or nullptr if it is not known. Positions of one search ascend.
  const Header* find(int64_t from) {
    while (next_ < found_.size() && found_[next_].header.pos < from) next_++;
    return next_ < found_.size() && found_[next_].from <= from ? &found_[next_].header : nullptr;
  }

  // Adds the first header at or after `from`, which is not known.
  void add(int64_t from, const Header& header) {
    found_.resize(next_);
    found_.push_back({from, header, {}});
  }

  // The chain of the header at pos, or nullptr if it is not known.
  const Chain* chain(int64_t pos) const {
    const bool is_known = next_ < found_.size() && found_[next_].header.pos == pos && found_[next_].chain.length > 0;
    return is_known ? &found_[next_].chain : nullptr;
  }

  void set_chain(const Chain& chain) {
    if (next_ < found_.size() && found_[next_].header.pos == chain.first) found_[next_].chain = chain;
  }

 private:
  struct Found {
    int64_t from;
    Header header;
    Chain chain;
  };

  std::vector<Found> found_;  // in order
  size_t next_ = 0;
  int64_t file_end_ = 0;
};

}  // namespace dledger
