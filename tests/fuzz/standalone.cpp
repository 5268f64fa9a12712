// Runs a target without libFuzzer: every input of a folder, then mutations of them that depend on the seed.
// Usage: TARGET FOLDER ITERATIONS SEED REPRODUCER, or TARGET FILE. The reproducer is the file for the current input.
#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "input.hpp"

namespace {

using dledger::fuzz::Random;
using Bytes = std::vector<uint8_t>;

constexpr size_t kMaxMadeSize = 16 * 1024;
constexpr size_t kMostInputs = 4000;
constexpr unsigned kSecondsOfAnInput = 60;

Random generator(0);

Bytes read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    std::fprintf(stderr, "%s: cannot be read\n", path.c_str());
    std::exit(2);
  }
  return {std::istreambuf_iterator<char>(file), {}};
}

void run(const Bytes& input, int reproducer) {
  if (reproducer >= 0) {
    const ssize_t size = static_cast<ssize_t>(input.size());
    if (pwrite(reproducer, input.data(), input.size(), 0) != size || ftruncate(reproducer, size) != 0) std::abort();
  }
  alarm(kSecondsOfAnInput);
  LLVMFuzzerTestOneInput(input.data(), input.size());
  alarm(0);
}

}  // namespace

// Random changes, as libFuzzer makes them.
size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size) {
  const size_t at = generator.below(size + 1);
  switch (generator.below(size > 0 ? 5 : 1)) {
    case 0: {  // insert
      const size_t more = std::min(1 + generator.below(16), max_size - size);
      std::memmove(data + at + more, data + at, size - at);
      for (size_t i = 0; i < more; i++) data[at + i] = static_cast<uint8_t>(generator.next());
      return size + more;
    }
    case 1: {  // erase
      const size_t less = std::min(generator.below(16), size - at);
      if (less == size || size == max_size) break;
      std::memmove(data + at, data + at + less, size - at - less);
      return size - less;
    }
    case 2:
      data[generator.below(size)] ^= static_cast<uint8_t>(1u << generator.below(8));
      break;
    case 3:
      data[generator.below(size)] = static_cast<uint8_t>(generator.next());
      break;
    default: {  // copy
      const size_t to = generator.below(size), from = generator.below(size);
      std::memmove(data + to, data + from, std::min(size - std::max(to, from), generator.below(64)));
    }
  }
  return size;
}

int main(int count, char** arguments) {
  if (count == 2) {
    run(read_file(arguments[1]), -1);
    return 0;
  }
  if (count != 5) {
    std::fprintf(stderr, "usage: %s FOLDER ITERATIONS SEED REPRODUCER, or %s FILE\n", arguments[0], arguments[0]);
    return 2;
  }
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator(arguments[1])) paths.push_back(entry.path());
  std::sort(paths.begin(), paths.end());
  const int reproducer = open(arguments[4], O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (paths.empty() || reproducer < 0) {
    std::fprintf(stderr, "%s: no inputs, or no reproducer\n", arguments[1]);
    return 2;
  }
  std::vector<Bytes> inputs;
  for (const auto& path : paths) inputs.push_back(read_file(path));
  for (const Bytes& input : inputs) run(input, reproducer);

  const unsigned long iterations = std::strtoul(arguments[2], nullptr, 10);
  generator = Random(std::strtoul(arguments[3], nullptr, 10));
  for (unsigned long i = 0; i < iterations; i++) {
    Bytes input = inputs[generator.below(inputs.size())];
    size_t size = std::min(input.size(), kMaxMadeSize);
    input.resize(kMaxMadeSize);
    for (size_t times = 1 + generator.below(3); times > 0; times--) {
      size = LLVMFuzzerCustomMutator(input.data(), size, kMaxMadeSize, static_cast<unsigned>(generator.next()));
    }
    input.resize(size);
    input.shrink_to_fit();
    run(input, reproducer);
    // Some mutations are kept, so that changes accumulate.
    if (!generator.one_in(8)) continue;
    if (inputs.size() < kMostInputs) {
      inputs.push_back(std::move(input));
    } else {
      inputs[generator.below(inputs.size())] = std::move(input);
    }
  }
  unlink(arguments[4]);
  std::printf("%zu inputs replayed, %lu made and run\n", paths.size(), iterations);
  return 0;
}
