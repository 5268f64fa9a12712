#include "bytes.hpp"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
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

// As by ulimit -v, or by Spark in its Python workers (spark.executor.pyspark.memory).
bool is_address_space_limited() {
  struct rlimit limit{};
  return getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur != RLIM_INFINITY;
}

[[noreturn]] void fail(const std::string& path, const char* what, int error) {
  throw StoreFault(path + ": " + what + ": " + std::strerror(error));
}

}  // namespace

MappedFile::MappedFile(const SegmentBytes& bytes, bool is_whole)
    : path_(bytes.path),
      is_partial_(bytes.is_partial),
      is_whole_(is_whole || !is_address_space_limited()),
      extents_(bytes.extents) {
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
  try {
    window(0, 0);
  } catch (...) {
    close(fd_);
    throw;
  }
}

MappedFile::~MappedFile() {
  for (const Mapping& mapping : windows_) unmap(mapping);
  if (fd_ >= 0) close(fd_);
}

Window MappedFile::window(int64_t offset, int64_t length) {
  if (size_ == 0) return {};
  offset = std::clamp<int64_t>(offset, 0, size_);
  const int64_t end = std::min(size_, offset + length);
  for (Mapping& mapping : windows_) {
    const Window& one = mapping.window;
    if (offset < one.begin || offset >= one.begin + one.reach || end > one.begin + one.size) continue;
    mapping.used = ++uses_;
    return one;
  }
  constexpr int64_t kAlignment = 64 * 1024;  // at least a page
  const int64_t begin = is_whole_ ? 0 : std::min(offset, size_ - 1) / kAlignment * kAlignment;
  unmap_oldest(kMaxWindows - 1);
  for (int64_t bytes = kWindowBytes;; bytes /= 8) {
    const int64_t wanted = std::max(begin + bytes, end) + kOverlap;
    try {
      windows_.push_back(map(begin, is_whole_ ? size_ : std::min(size_, wanted) - begin));
      windows_.back().used = ++uses_;
      return windows_.back().window;
    } catch (const StoreFault&) {
      // The address space may be used up: a smaller window, and fewer of them, may fit.
      if (is_whole_ || bytes < kAlignment) throw;
      unmap_oldest(kMinWindows);
    }
  }
}

void MappedFile::unmap_oldest(size_t kept) {
  while (!is_held_ && windows_.size() > kept) {
    const auto oldest = std::min_element(windows_.begin(), windows_.end(),
                                         [](const Mapping& a, const Mapping& b) { return a.used < b.used; });
    unmap(*oldest);
    windows_.erase(oldest);
  }
}

MappedFile::Mapping MappedFile::map(int64_t begin, int64_t size) const {
  // Pages after the end of a file cannot be read. They are mapped where a partial copy has no bytes.
  const auto after_end = static_cast<off_t>((static_cast<uintptr_t>(size_) + page_size - 1) & ~(page_size - 1));
  const auto length = static_cast<size_t>(size);
  void* const mapped = mmap(nullptr, length, PROT_READ, MAP_SHARED, fd_, is_partial_ ? after_end : begin);
  if (mapped == MAP_FAILED) fail(path_, "cannot be mapped", errno);
  auto* const data = static_cast<uint8_t*>(mapped);
  for (const auto& [from, to] : is_partial_ ? extents_ : Extents{}) {
    const int64_t low = std::max(from, begin), high = std::min({to, size_, begin + size});
    if (from < 0 || low >= high || static_cast<uintptr_t>(low) % page_size != 0) continue;
    if (high < std::min(size_, begin + size) && static_cast<uintptr_t>(high) % page_size != 0) continue;
    void* const at = data + (low - begin);
    if (mmap(at, static_cast<size_t>(high - low), PROT_READ, MAP_SHARED | MAP_FIXED, fd_, low) != at) {
      const int error = errno;
      munmap(mapped, length);
      fail(path_, "cannot be mapped", error);
    }
  }
  const int slot = take_slot(reinterpret_cast<uintptr_t>(data), reinterpret_cast<uintptr_t>(data) + length);
  if (slot < 0) {
    munmap(mapped, length);
    throw StoreFault(path_ + ": this process maps more than " + std::to_string(kSlots) + " files");
  }
  const bool is_last = begin + size == size_;  // the end of the file is a position, too
  return {{begin, size, is_last ? size + 1 : size - kOverlap, data}, slot, 0};
}

void MappedFile::unmap(const Mapping& mapping) {
  fault_ = fault();
  slots[mapping.slot].begin.store(0, std::memory_order_release);
  munmap(mapping.window.data, static_cast<size_t>(mapping.window.size));
}

// The first offset that could not be read; at least the file's size if there is none.
int64_t MappedFile::fault() const {
  int64_t first = fault_;
  for (const Mapping& mapping : windows_) {
    const Slot& slot = slots[mapping.slot];
    const auto at = static_cast<int64_t>(slot.fault.load() - slot.begin.load());
    if (at < mapping.window.size) first = std::min(first, mapping.window.begin + at);
  }
  return first;
}

int64_t MappedFile::readable() {
  if (size_ == 0) return 0;
  if (is_partial_) install_handler();  // missing bytes are frequent, and the handler may have been replaced since
  const int64_t first = fault();
  if (is_partial_ && first < size_) throw MissingFault(first);
  struct stat status{};
  const int64_t now = fstat(fd_, &status) == 0 ? static_cast<int64_t>(status.st_size) : 0;
  return std::min({size_, first, now});
}

int MappedFile::failure() const {
  if (size_ == 0 || is_partial_) return 0;
  const int64_t first = fault();
  struct stat status{};
  if (fstat(fd_, &status) == 0 && first >= std::min(size_, static_cast<int64_t>(status.st_size))) return 0;
  char byte;
  return pread(fd_, &byte, 1, first) < 0 ? errno : EIO;
}

void MappedFile::check() {
  if (const int error = failure()) throw UnreadableFault(path_, std::strerror(error), readable());
}

int64_t MappedFile::populate(int64_t from, int64_t length) {
  const Window one = window(from, 0);
  const int64_t count = std::clamp<int64_t>(one.begin + one.reach - from, 1, std::max<int64_t>(length, 1));
#ifdef MADV_POPULATE_READ
  const int64_t first = (from - one.begin) & ~static_cast<int64_t>(page_size - 1);
  const int64_t last = std::min(one.size, from - one.begin + count);
  if (last > first) madvise(one.data + first, static_cast<size_t>(last - first), MADV_POPULATE_READ);
#endif
  return count;
}

bool MappedFile::load(int64_t from, int64_t to) {
  if (from < 0 || to > size_) return false;
  const auto page = static_cast<int64_t>(page_size);
  for (int64_t at = from; at < to; at = (at / page + 1) * page) {
    *const_cast<const volatile uint8_t*>(data() + at);
  }
  return readable() >= to;
}

bool MappedFile::is_loaded(int64_t at) {
  if (at < 0 || at >= size_) return false;
#ifdef __linux__
  unsigned char state = 0;
  const auto page = static_cast<int64_t>(page_size);
  return mincore(window(0, 0).data + at / page * page, page_size, &state) == 0 && (state & 1) != 0;
#else
  return true;
#endif
}

}  // namespace dledger
