#include "bytes.hpp"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <mutex>

namespace dledger {
namespace {

constexpr int kSlots = 4096;

// A mapping, for the signal handler; `begin` 0 marks a free slot.
struct Slot {
  std::atomic<uintptr_t> begin{0};
  std::atomic<uintptr_t> end{0};
  std::atomic<uintptr_t> fault{0};  // the first address that could not be read, or `end`
};

Slot slots[kSlots];
uintptr_t page_size = 4096;
struct sigaction previous_action;
std::mutex slots_mutex;
thread_local bool is_chaining = false;

// Replaces the mapping from the page of `address` on by zeros, and stores where that began.
bool replace_by_zeros(uintptr_t address) {
  for (Slot& slot : slots) {
    const uintptr_t begin = slot.begin.load(std::memory_order_acquire);
    const uintptr_t end = slot.end.load(std::memory_order_acquire);
    if (begin == 0 || address < begin || address >= end) continue;
    const uintptr_t page = address & ~(page_size - 1);
    void* const at = reinterpret_cast<void*>(page);
    if (mmap(at, end - page, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != at) return false;
    uintptr_t known = slot.fault.load();
    while (page < known && !slot.fault.compare_exchange_weak(known, page)) {
    }
    return true;
  }
  return false;
}

void signal_default() {
  struct sigaction action{};
  action.sa_handler = SIG_DFL;
  sigaction(SIGBUS, &action, nullptr);
}

void on_bus_error(int signal, siginfo_t* info, void* context) {
  const int saved_errno = errno;
  const bool replaced = replace_by_zeros(reinterpret_cast<uintptr_t>(info->si_addr));
  errno = saved_errno;
  if (replaced) return;
  // Not our mapping: the previous handler decides.
  if (is_chaining) {
    signal_default();
    return;
  }
  is_chaining = true;
  if (previous_action.sa_flags & SA_SIGINFO) {
    previous_action.sa_sigaction(signal, info, context);
  } else if (previous_action.sa_handler == SIG_DFL || previous_action.sa_handler == SIG_IGN) {
    sigaction(SIGBUS, &previous_action, nullptr);
  } else {
    previous_action.sa_handler(signal);
  }
  is_chaining = false;
}

// Installs the handler, again if it was replaced since: Python's faulthandler replaces it when it is enabled.
void install_handler() {
  static std::once_flag once;
  std::call_once(once, [] {
    page_size = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
    // Otherwise a child that is forked while another thread has the lock could never take it.
    pthread_atfork([] { slots_mutex.lock(); }, [] { slots_mutex.unlock(); }, [] { slots_mutex.unlock(); });
  });
  std::lock_guard<std::mutex> lock(slots_mutex);
  struct sigaction now{};
  sigaction(SIGBUS, nullptr, &now);
  if ((now.sa_flags & SA_SIGINFO) == 0 || now.sa_sigaction != on_bus_error) {
    struct sigaction action{};
    action.sa_sigaction = on_bus_error;
    action.sa_flags = SA_SIGINFO | SA_NODEFER;
    sigemptyset(&action.sa_mask);
    sigaction(SIGBUS, &action, &previous_action);
  }
}

int take_slot(uintptr_t begin, uintptr_t end) {
  std::lock_guard<std::mutex> lock(slots_mutex);
  for (int i = 0; i < kSlots; i++) {
    if (slots[i].begin.load() != 0) continue;
    slots[i].end.store(end);
    slots[i].fault.store(end);
    slots[i].begin.store(begin, std::memory_order_release);
    return i;
  }
  return -1;
}

[[noreturn]] void fail(const std::string& path, const char* what, int error) {
  throw StoreFault(path + ": " + what + ": " + std::strerror(error));
}

}  // namespace

MappedFile::MappedFile(const SegmentBytes& bytes) : path_(bytes.path), is_partial_(bytes.is_partial) {
  install_handler();
  fd_ = open(bytes.local.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd_ < 0) fail(path_, "cannot be opened", errno);
  struct stat status{};
  if (fstat(fd_, &status) != 0 || !S_ISREG(status.st_mode)) {
    const int error = S_ISREG(status.st_mode) ? errno : EINVAL;
    close(fd_);
    fail(path_, "is not a readable file", error);
  }
  size_ = status.st_size;
  if (size_ == 0) return;
  try {
    map(bytes);
    const auto begin = reinterpret_cast<uintptr_t>(data_);
    slot_ = take_slot(begin, begin + static_cast<uintptr_t>(size_));
    if (slot_ < 0) throw StoreFault(path_ + ": this process maps more than " + std::to_string(kSlots) + " files");
  } catch (...) {
    if (data_ != nullptr) munmap(data_, static_cast<size_t>(size_));
    close(fd_);
    throw;
  }
}

void MappedFile::map(const SegmentBytes& bytes) {
  const auto size = static_cast<size_t>(size_);
  // Pages after the end of a file cannot be read. They are mapped where a partial copy has no bytes.
  const auto after_end = static_cast<off_t>((static_cast<uintptr_t>(size_) + page_size - 1) & ~(page_size - 1));
  void* const mapped = mmap(nullptr, size, PROT_READ, MAP_SHARED, fd_, is_partial_ ? after_end : 0);
  if (mapped == MAP_FAILED) fail(path_, "cannot be mapped", errno);
  data_ = static_cast<uint8_t*>(mapped);
  if (!is_partial_) return;
  for (const auto& [from, to] : bytes.extents) {
    const int64_t end = std::min(to, size_);
    if (from < 0 || from >= end || static_cast<uintptr_t>(from) % page_size != 0) continue;
    if (end < size_ && static_cast<uintptr_t>(end) % page_size != 0) continue;
    void* const at = data_ + from;
    if (mmap(at, static_cast<size_t>(end - from), PROT_READ, MAP_SHARED | MAP_FIXED, fd_, from) != at) {
      fail(path_, "cannot be mapped", errno);
    }
  }
}

MappedFile::~MappedFile() {
  if (slot_ >= 0) slots[slot_].begin.store(0, std::memory_order_release);
  if (data_ != nullptr) munmap(data_, static_cast<size_t>(size_));
  if (fd_ >= 0) close(fd_);
}

int64_t MappedFile::readable() {
  if (size_ == 0) return 0;
  if (is_partial_) install_handler();  // missing bytes are frequent, and the handler may have been replaced since
  const auto fault = static_cast<int64_t>(slots[slot_].fault.load() - slots[slot_].begin.load());
  if (is_partial_ && fault < size_) throw MissingFault(fault);
  struct stat status{};
  const int64_t now = fstat(fd_, &status) == 0 ? static_cast<int64_t>(status.st_size) : 0;
  return std::min({size_, fault, now});
}

std::string MappedFile::failure() const {
  if (size_ == 0 || is_partial_) return "";
  const auto fault = static_cast<int64_t>(slots[slot_].fault.load() - slots[slot_].begin.load());
  struct stat status{};
  if (fstat(fd_, &status) == 0 && fault >= std::min(size_, static_cast<int64_t>(status.st_size))) return "";
  char byte;
  return std::strerror(pread(fd_, &byte, 1, fault) < 0 ? errno : EIO);
}

void MappedFile::check() {
  std::string reason = failure();
  if (!reason.empty()) throw UnreadableFault(path_, std::move(reason), readable());
}

void MappedFile::populate(int64_t from, int64_t length) const {
#ifdef MADV_POPULATE_READ
  const int64_t first = from & ~static_cast<int64_t>(page_size - 1);
  const int64_t last = std::min(size_, from + length);
  if (last > first) madvise(data_ + first, static_cast<size_t>(last - first), MADV_POPULATE_READ);
#else
  (void)from;
  (void)length;
#endif
}

bool MappedFile::load(int64_t from, int64_t to) {
  if (from < 0 || to > size_) return false;
  install_handler();  // it may have been replaced since
  const auto page = static_cast<int64_t>(page_size);
  for (int64_t at = from; at < to; at = (at / page + 1) * page) {
    *const_cast<const volatile uint8_t*>(data_ + at);
  }
  return readable() >= to;
}

}  // namespace dledger
