// fuzz TARGET [INPUTS] [SEED]: runs a target on mutated inputs, without libFuzzer.
// fuzz TARGET --write-seeds FOLDER: writes the seeds to files instead.
#include "tests/fuzz/driver.hpp"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <random>

#include "runtime/base/log.hpp"

namespace {

std::vector<const FuzzTarget*>& targets() {
  static std::vector<const FuzzTarget*> all;
  return all;
}

const FuzzTarget* find(const char* name) {
  for (const FuzzTarget* target : targets())
    if (name && std::strcmp(target->name, name) == 0) return target;
  std::fprintf(stderr, "fuzz: a target is missing; known are");
  for (const FuzzTarget* target : targets()) std::fprintf(stderr, " %s", target->name);
  std::fprintf(stderr, "\n");
  std::exit(64);
}

constexpr unsigned kInputTimeoutS = 20;
constexpr rlim_t kMemory = rlim_t{6} << 30;

std::string mutated(const std::vector<std::string>& seeds, std::mt19937_64& random) {
  auto below = [&](size_t n) { return n == 0 ? 0 : static_cast<size_t>(random() % n); };
  static const std::vector<std::string> words = {"-1",
                                                 "0",
                                                 "18446744073709551615",
                                                 "9223372036854775807",
                                                 "1e999",
                                                 "nan",
                                                 "null",
                                                 "true",
                                                 "\"\"",
                                                 "[]",
                                                 "{}",
                                                 "[[",
                                                 "\n",
                                                 std::string("\0", 1),
                                                 "\xff\xff\xff\xff",
                                                 "\xc3\x28",
                                                 "..",
                                                 "/",
                                                 "%s",
                                                 "4294967296",
                                                 "\r\n\r\n",
                                                 "{\"a\":",
                                                 "1_000_000_000_000"};
  std::string text = seeds[below(seeds.size())];
  for (size_t changes = below(8); changes > 0; --changes) {
    const size_t at = below(text.size() + 1);
    switch (random() % 7) {
      case 0:
        if (at < text.size()) text[at] = static_cast<char>(random());
        break;
      case 1:
        if (at < text.size()) text[at] = static_cast<char>(text[at] ^ (1 << (random() % 8)));
        break;
      case 2:
        text.insert(at, words[below(words.size())]);
        break;
      case 3:
        text.erase(at, below(text.size() - at + 1));
        break;
      case 4:
        if (text.size() < (1 << 16)) text.insert(at, text.substr(at, below(64)));
        break;
      case 5: {
        const std::string& other = seeds[below(seeds.size())];
        const size_t from = below(other.size() + 1);
        text = text.substr(0, at) + other.substr(from);
        break;
      }
      default:
        for (size_t n = below(9); n > 0; --n) text.insert(at, 1, static_cast<char>(random()));
    }
  }
  return text;
}

}  // namespace

FuzzTarget::FuzzTarget(const char* name, Run run, Seeds seeds)
    : name(name), run(run), seeds(seeds) {
  targets().push_back(this);
}

#ifdef __clang__
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  static const FuzzTarget* const target = find(std::getenv("FUZZ_TARGET"));
  target->run(data, bytes);
  return 0;
}
#else
int main(int argc, char** argv) {
  const FuzzTarget* const target = find(argc > 1 ? argv[1] : nullptr);
  const auto seeds = target->seeds();
  if (argc == 4 && std::strcmp(argv[2], "--write-seeds") == 0) {
    for (size_t i = 0; i < seeds.size(); ++i)
      std::ofstream(std::string(argv[3]) + "/seed-" + std::to_string(i), std::ios::binary)
          << seeds[i];
    return 0;
  }
  simplescale::log::set_level(simplescale::log::Level::off);
  const long inputs = argc > 2 ? std::atol(argv[2]) : 10'000;
  std::mt19937_64 random(argc > 3 ? std::strtoull(argv[3], nullptr, 10) : 1);
#if !defined(__SANITIZE_ADDRESS__)
  const rlimit limit{kMemory, kMemory};
  setrlimit(RLIMIT_AS, &limit);  // a larger allocation throws bad_alloc, which ends the run
#endif
  // Left behind if the target crashes. One open file: a file system writes one that is replaced to
  // the disk each time.
  const int input = open("fuzz_input", O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  for (long i = 0; i < inputs; ++i) {
    const std::string text = mutated(seeds, random);
    if (pwrite(input, text.data(), text.size(), 0) != static_cast<ssize_t>(text.size()) ||
        ftruncate(input, static_cast<off_t>(text.size())) != 0) {
      std::perror("fuzz_input");
      return 74;
    }
    alarm(kInputTimeoutS);
    target->run(reinterpret_cast<const uint8_t*>(text.data()), text.size());
  }
  alarm(0);
  unlink("fuzz_input");
  std::printf("%ld inputs\n", inputs);
  return 0;
}
#endif
