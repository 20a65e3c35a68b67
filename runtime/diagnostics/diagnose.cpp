#include "runtime/diagnostics/diagnose.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <memory>
#include <thread>

#include "runtime/base/cpu_affinity.hpp"
#include "runtime/base/json_members.hpp"
#include "runtime/base/open_output.hpp"
#include "runtime/base/process.hpp"

namespace simplescale {

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

std::vector<int> cores() {
  const CpuList mask = cpu_mask();
  return mask.empty() ? CpuList{0} : mask;
}

/// A matrix of small integers, whose products and sums are exact in fp32.
constexpr int kSize = 96;
using Matrix = std::array<float, kSize * kSize>;

void fill(Matrix& m, uint32_t seed) {
  for (float& x : m) {
    seed = seed * 1664525u + 1013904223u;
    x = static_cast<float>(static_cast<int>(seed >> 28) - 8);
  }
}

void multiply(const Matrix& a, const Matrix& b, Matrix& c) {
  c.fill(0);
  for (int i = 0; i < kSize; ++i)
    for (int k = 0; k < kSize; ++k) {
      const float x = a[static_cast<size_t>(i * kSize + k)];
      for (int j = 0; j < kSize; ++j)
        c[static_cast<size_t>(i * kSize + j)] += x * b[static_cast<size_t>(k * kSize + j)];
    }
}

/// Number of elements of c that differ from a * b in integer arithmetic.
size_t wrong(const Matrix& a, const Matrix& b, const Matrix& c) {
  size_t count = 0;
  for (int i = 0; i < kSize; ++i)
    for (int j = 0; j < kSize; ++j) {
      int sum = 0;
      for (int k = 0; k < kSize; ++k)
        sum += static_cast<int>(a[static_cast<size_t>(i * kSize + k)]) *
               static_cast<int>(b[static_cast<size_t>(k * kSize + j)]);
      if (static_cast<float>(sum) != c[static_cast<size_t>(i * kSize + j)]) ++count;
    }
  return count;
}

struct CoreResult {
  size_t wrong = 0, products = 0;
  double fastest_s = 1e30;  // fastest product in CPU time of the thread: the core may be shared
};

double cpu_seconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

CoreResult work_on(int core, int ms) {
  CoreResult result;
  std::thread([&] {
    const ScopedAffinity there({core});
    auto a = std::make_unique<Matrix>(), b = std::make_unique<Matrix>(),
         c = std::make_unique<Matrix>();
    fill(*a, static_cast<uint32_t>(core) + 1);
    const auto start = Clock::now();
    do {
      fill(*b, static_cast<uint32_t>(++result.products));
      const double one = cpu_seconds();
      multiply(*a, *b, *c);
      result.fastest_s = std::min(result.fastest_s, cpu_seconds() - one);
      result.wrong += wrong(*a, *b, *c);
    } while (seconds_since(start) * 1e3 < ms);
  }).join();
  return result;
}

std::string error_text(const std::string& what) {
  return what + ": " + std::strerror(errno);
}

}  // namespace

CheckResult check_arithmetic(int ms_per_core) {
  CheckResult result{"arithmetic", true, 0, "GFLOP/s", ""};
  std::string bad;
  double slowest_s = 0;  // the largest fastest_s of all cores
  const std::vector<int> all = cores();
  for (int core : all) {
    const CoreResult one = work_on(core, ms_per_core);
    if (one.wrong > 0)
      bad += fmt::format("{}core {} got {} of {} products wrong", bad.empty() ? "" : ", ", core,
                         one.wrong, one.products);
    slowest_s = std::max(slowest_s, one.fastest_s);
  }
  result.ok = bad.empty();
  result.value = slowest_s > 0 ? 2.0 * kSize * kSize * kSize / slowest_s / 1e9 : 0;
  result.detail =
      result.ok ? fmt::format("known products on {} cores", all.size()) : std::move(bad);
  return result;
}

CheckResult check_memory(size_t bytes) {
  CheckResult result{"memory", true, 0, "GB/s", ""};
  const size_t words = bytes / 2 / sizeof(uint64_t);
  std::vector<uint64_t> a(words), b(words);
  for (const uint64_t pattern : {0x5555'5555'5555'5555ull, 0xaaaa'aaaa'aaaa'aaaaull}) {
    for (size_t i = 0; i < words; ++i) a[i] = pattern ^ (i * 0x9e37'79b9'7f4a'7c15ull);
    std::memcpy(b.data(), a.data(), words * sizeof(uint64_t));
    size_t count = 0;
    for (size_t i = 0; i < words; ++i) count += b[i] != (pattern ^ (i * 0x9e37'79b9'7f4a'7c15ull));
    if (count == 0) continue;
    result.ok = false;
    result.detail = fmt::format("{} of {} words read back wrong", count, words);
    return result;
  }
  constexpr size_t parts = 8;
  double fastest_s = 1e30;  // fastest part: the machine may be shared
  for (size_t i = 0; i < 2 * parts; ++i) {
    const size_t part = words / parts, at = i % parts * part;
    const auto start = Clock::now();
    std::memcpy(a.data() + at, b.data() + at, part * sizeof(uint64_t));
    fastest_s = std::min(fastest_s, seconds_since(start) / static_cast<double>(part));
  }
  result.value = static_cast<double>(sizeof(uint64_t)) / fastest_s / 1e9;
  result.detail = fmt::format("two patterns over {} MiB", bytes >> 20);
  return result;
}

CheckResult check_disk(const std::string& folder, size_t bytes) {
  CheckResult result{"disk", false, 0, "MB/s", ""};
  const std::string path = folder + "/.check-" + unique_id();
  std::vector<uint64_t> data(bytes / sizeof(uint64_t));
  for (size_t i = 0; i < data.size(); ++i) data[i] = i * 0x9e37'79b9'7f4a'7c15ull;
  const int fd = open_output(path, Output::replace, 0600);
  if (fd < 0) {
    result.detail = error_text("cannot create a file in " + folder);
    return result;
  }
  unlink(path.c_str());
  const auto start = Clock::now();
  size_t done = 0;
  while (done < bytes) {
    const ssize_t n = write(fd, reinterpret_cast<const char*>(data.data()) + done, bytes - done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    done += static_cast<size_t>(n);
  }
  if (done < bytes || fsync(fd) != 0) {
    result.detail = error_text("cannot write to " + folder);
    close(fd);
    return result;
  }
  result.value = static_cast<double>(bytes) / seconds_since(start) / 1e6;
  std::vector<uint64_t> read_back(data.size());
  size_t got = 0;
  while (got < bytes) {
    const ssize_t n = pread(fd, reinterpret_cast<char*>(read_back.data()) + got, bytes - got,
                            static_cast<off_t>(got));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    got += static_cast<size_t>(n);
  }
  close(fd);
  result.ok = read_back == data;
  result.detail = result.ok ? fmt::format("{} MiB written, synced, read back", bytes >> 20)
                            : "data written to " + folder + " was read back differently";
  return result;
}

CheckResult check_clock(int times) {
  CheckResult result{"clock", true, 0, "ms", "the latest wake-up from a sleep of 5 ms"};
  for (int i = 0; i < times; ++i) {
    const auto start = Clock::now();
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    result.value = std::max(result.value, seconds_since(start) * 1e3 - 5);
  }
  return result;
}

std::vector<CheckResult> check_machine(const std::string& folder) {
  return {check_arithmetic(), check_memory(), check_disk(folder), check_clock()};
}

bool all_ok(const std::vector<CheckResult>& results) {
  return std::ranges::all_of(results, &CheckResult::ok);
}

std::string complaints(const std::vector<CheckResult>& results) {
  std::string text;
  for (const CheckResult& r : results)
    if (!r.ok) text += (text.empty() ? "" : "; ") + r.check + ": " + r.detail;
  return text;
}

nlohmann::json to_json(const std::vector<CheckResult>& results) {
  nlohmann::json list = nlohmann::json::array();
  for (const CheckResult& r : results)
    list.push_back({{"check", r.check},
                    {"ok", r.ok},
                    {"value", r.value},
                    {"unit", r.unit},
                    {"detail", r.detail}});
  return list;
}

std::vector<CheckResult> from_json(const nlohmann::json& report) {
  std::vector<CheckResult> results;
  if (!report.is_array()) return results;
  for (const auto& r : report)
    if (member_of(r, "check").is_string() && member_of(r, "ok").is_boolean() &&
        member_of(r, "value").is_number())
      results.push_back(
          {r["check"], r["ok"], r["value"], text_of(r, "unit"), text_of(r, "detail")});
  return results;
}

std::string table(const std::vector<CheckResult>& results) {
  std::string text;
  for (const CheckResult& r : results)
    text += fmt::format("{:<12} {:<5} {:>10.2f} {:<8} {}\n", r.check, r.ok ? "pass" : "FAIL",
                        r.value, r.unit, r.detail);
  return text;
}

}  // namespace simplescale
