// Numbers queues in the order of their first messages.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace dledger {

using QueueName = std::pair<std::string, int32_t>;

class QueueNumbers {
 public:
  explicit QueueNumbers(std::vector<QueueName>& queues) : queues_(queues) {}

  int32_t operator()(std::string_view topic, int32_t queue_id) {
    if (of_topic_ == nullptr || topic != topic_) {
      topic_ = topic;
      of_topic_ = &numbers_[topic_];
    }
    const auto [found, is_new] = of_topic_->try_emplace(queue_id, static_cast<int32_t>(queues_.size()));
    if (is_new) queues_.emplace_back(topic, queue_id);
    return found->second;
  }

 private:
  std::vector<QueueName>& queues_;
  std::unordered_map<std::string, std::unordered_map<int32_t, int32_t>> numbers_;
  std::string topic_;
  std::unordered_map<int32_t, int32_t>* of_topic_ = nullptr;  // of the last topic
};

}  // namespace dledger
