#include "faults.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <iterator>
#include <string>

#include "client.hpp"

namespace file_faults {
namespace {

constexpr int kCalls = static_cast<int>(Call::count), kEffects = static_cast<int>(Effect::count);
constexpr const char* kCallNames[] = {"open",    "create", "read",   "write", "sync",
                                      "size",    "close",  "rename", "link",  "unlink",
                                      "symlink", "mkdir",  "stat",   "list",  "touch"};
static_assert(std::size(kCallNames) == kCalls);
constexpr const char* kEffectNames[] = {"none", "delay",  "hang",  "outage",   "fail",
                                        "tear", "replay", "stale", "overwrite"};
static_assert(std::size(kEffectNames) == kEffects);

/// Which effects a class of calls can have.
bool possible(Effect effect, Call call) {
  switch (effect) {
    case Effect::tear:
      return call == Call::write;
    case Effect::replay:
      return call == Call::rename || call == Call::link || call == Call::unlink ||
             call == Call::symlink || call == Call::mkdir;
    case Effect::overwrite:
      return call == Call::write;
    case Effect::stale:
      return call == Call::open || call == Call::stat || call == Call::list;
    default:
      return true;
  }
}

int error_of(Call call, uint64_t random) {
  const bool makes = call == Call::create || call == Call::write || call == Call::sync ||
                     call == Call::size || call == Call::close || call == Call::rename ||
                     call == Call::link || call == Call::symlink || call == Call::mkdir;
  const int errors[] = {EIO, makes ? ENOSPC : ESTALE};
  return errors[random % 2];
}

/// What the client of NFS gets when it repeats a call that was made already.
int replayed_error(Call call) {
  return call == Call::rename || call == Call::unlink ? ENOENT : EEXIST;
}

uint64_t mixed(uint64_t x) {  // splitmix64
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

/// Written by the constructor only, before other threads exist.
struct Settings {
  bool on = false;
  char folder[PATH_MAX] = "", state[PATH_MAX] = "";
  size_t folder_bytes = 0;
  double rates[kEffects][kCalls] = {};
  int64_t delay_ms = 40, hang_ms = 3000, outage_ms = 8000, stale_ms = 3000;
  char name[128] = "";  // of the process: its arguments, and the number of its start
  uint64_t seed = 0, client = 0;
} settings;

std::atomic<uint64_t> counts[kCalls];
std::atomic<uint64_t> fails_before[kCalls];  // calls of a lower number fail with fails_with
std::atomic<int> fails_with[kCalls];
constexpr uint8_t kOpen = 1, kWritable = 2;
std::atomic<uint8_t> descriptors[1 << 16];

void set_rate(const std::string& key, double rate) {
  const size_t dot = key.find('.');
  for (int effect = 1; effect < kEffects; ++effect) {
    if (key.substr(0, dot) != kEffectNames[effect]) continue;
    for (int call = 0; call < kCalls; ++call)
      if (possible(static_cast<Effect>(effect), static_cast<Call>(call)) &&
          (dot == std::string::npos || key.substr(dot + 1) == kCallNames[call]))
        settings.rates[effect][call] = rate;
  }
}

void set(const std::string& key, const char* value) {
  if (key == "folder") {
    std::snprintf(settings.folder, sizeof settings.folder, "%s", value);
    settings.folder_bytes = std::strlen(settings.folder);
  } else if (key == "state") {
    std::snprintf(settings.state, sizeof settings.state, "%s", value);
  } else if (key == "seed") {
    settings.seed = std::strtoull(value, nullptr, 10);
  } else if (key == "delay_ms") {
    settings.delay_ms = std::max(1LL, std::atoll(value));
  } else if (key == "hang_ms") {
    settings.hang_ms = std::max(4LL, std::atoll(value));
  } else if (key == "outage_ms") {
    settings.outage_ms = std::max(4LL, std::atoll(value));
  } else if (key == "stale_ms") {
    settings.stale_ms = std::atoll(value);
  } else {
    set_rate(key, std::atof(value));
  }
}

/// How often a process of this name was started before: the size of a file that each start extends.
uint64_t starts_before(const char* name) {
  char path[PATH_MAX + 32];
  std::snprintf(path, sizeof path, "%s/starts-%016llx", settings.state,
                static_cast<unsigned long long>(hash(name, std::strlen(name))));
  const long fd =
      syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (fd < 0) return 0;
  const bool written = syscall(SYS_write, fd, "x", 1) == 1;
  const long size = written ? syscall(SYS_lseek, fd, 0, SEEK_CUR) : 1;
  syscall(SYS_close, fd);
  return static_cast<uint64_t>(size) - 1;
}

/// Names the process by its arguments, without paths and long random texts.
void name_process() {
  char text[16 << 10];
  const long fd = syscall(SYS_openat, AT_FDCWD, "/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
  const long got = fd < 0 ? 0 : syscall(SYS_read, fd, text, sizeof text - 1);
  if (fd >= 0) syscall(SYS_close, fd);
  text[std::max(got, 0L)] = 0;
  const char* slash = std::strrchr(text, '/');
  std::string name = slash ? slash + 1 : text, before;
  for (const char* word = text + std::strlen(text) + 1; word < text + got;
       word += std::strlen(word) + 1) {
    const std::string one = word;
    if (before == "--node" || before == "--process") {
      const size_t first = one[0] == 'n';
      settings.client = 1 + std::strtoull(one.c_str() + first, nullptr, 10);
    }
    before = one;
    if (one.size() > 24 || one[0] == '/' || one.rfind("--run", 0) == 0) continue;
    name += " " + one;
    if (name.size() > 90) break;
  }
  const uint64_t start = starts_before(name.c_str());
  if (settings.client == 0) settings.client = hash(name.data(), name.size()) | 1ULL << 63;
  std::snprintf(settings.name, sizeof settings.name, "%s #%llu", name.c_str(),
                static_cast<unsigned long long>(start));
  for (char* c = settings.name; *c; ++c)
    if (*c == '"' || *c == '\\' || *c < ' ') *c = '_';
  settings.seed = mixed(settings.seed ^ hash(settings.name, std::strlen(settings.name)));
}

__attribute__((constructor)) void begin() {
  const char* text = std::getenv("SIMPLESCALE_FILE_FAULTS");
  if (!text) return;
  for (std::string rest = text; !rest.empty();) {
    const std::string item = rest.substr(0, rest.find(';'));
    rest.erase(0, item.size() + 1);
    const size_t equals = item.find('=');
    if (equals != std::string::npos) set(item.substr(0, equals), item.c_str() + equals + 1);
  }
  if (settings.folder_bytes == 0 || settings.state[0] == 0) return;
  name_process();
  settings.on = true;
}

/// Sets `relative` if the path lies below the folder.
void place(Path& path) {
  const size_t bytes = settings.folder_bytes;
  if (std::strncmp(path.text, settings.folder, bytes) != 0) return;
  if (path.text[bytes] == '/') path.relative_at = static_cast<int>(bytes) + 1;
  if (path.text[bytes] == 0) path.relative_at = static_cast<int>(bytes);
}

bool read_descriptor(int fd, char* text, size_t size) {
  char name[40];
  std::snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
  const long got = syscall(SYS_readlinkat, AT_FDCWD, name, text, size - 1);
  text[std::max(got, 0L)] = 0;
  return got > 0;
}

double uniform(uint64_t random) {
  return static_cast<double>(random >> 11) * 0x1p-53;
}

Choice chosen(int call, uint64_t number) {
  Choice choice{.number = number};
  const uint64_t random =
      mixed(settings.seed ^ mixed(number * kCalls + static_cast<uint64_t>(call)));
  const uint64_t more = mixed(random), size = mixed(more);
  if (number < fails_before[call]) {
    choice.effect = Effect::fail;
    choice.error = fails_with[call];
    return choice;
  }
  double at = uniform(random);
  for (int effect = 1; effect < kEffects; ++effect) {
    if (effect >= static_cast<int>(Effect::stale)) break;  // choose_rare()
    at -= settings.rates[effect][call];
    if (at >= 0) continue;
    choice.effect = static_cast<Effect>(effect);
    break;
  }
  const auto class_of = static_cast<Call>(call);
  switch (choice.effect) {
    case Effect::delay:
      choice.ms = 1 + static_cast<int64_t>(uniform(size) * static_cast<double>(settings.delay_ms));
      break;
    case Effect::hang:
    case Effect::outage: {
      const int64_t most = choice.effect == Effect::hang ? settings.hang_ms : settings.outage_ms;
      choice.ms = static_cast<int64_t>((1 + 3 * uniform(size)) * static_cast<double>(most) / 4);
      break;
    }
    case Effect::fail:
      choice.error = error_of(class_of, more);
      fails_with[call] = choice.error;
      fails_before[call] = number + 1 + size % 8;
      break;
    case Effect::tear:
      choice.error = more % 3 == 0 ? 0 : error_of(class_of, more >> 8);
      choice.part = uniform(size);
      break;
    case Effect::replay:
      choice.error = more % 2 ? EIO : replayed_error(class_of);
      break;
    default:
      break;
  }
  return choice;
}

}  // namespace

Path path_at(int folder, const char* path) {
  Path result;
  result.text[0] = 0;
  if (!settings.on || !path) return result;
  const int error = errno;
  if (path[0] == '/') {
    std::snprintf(result.text, sizeof result.text, "%s", path);
  } else {
    char base[PATH_MAX];
    const bool known = folder == AT_FDCWD ? syscall(SYS_getcwd, base, sizeof base) > 0
                                          : read_descriptor(folder, base, sizeof base);
    // Too long a path is cut; it does not name a file either.
    if (known &&
        std::snprintf(result.text, sizeof result.text, path[0] ? "%s/%s" : "%s%s", base, path) < 0)
      result.text[0] = 0;
  }
  place(result);
  errno = error;
  return result;
}

Path path_of(int fd) {
  Path result;
  result.text[0] = 0;
  if (!settings.on || fd < 0 || fd >= static_cast<int>(std::size(descriptors)) ||
      descriptors[fd] == 0)
    return result;
  // The descriptor may have been closed unseen and may now be another file.
  const int error = errno;
  if (read_descriptor(fd, result.text, sizeof result.text)) place(result);
  errno = error;
  return result;
}

void opened(int fd, bool for_writing) {
  if (fd < 0 || fd >= static_cast<int>(std::size(descriptors))) return;
  descriptors[fd] = for_writing ? kOpen | kWritable : kOpen;
}

void closed(int fd) {
  if (fd >= 0 && fd < static_cast<int>(std::size(descriptors))) descriptors[fd] = 0;
}

bool for_writing(int fd) {
  return fd >= 0 && fd < static_cast<int>(std::size(descriptors)) && descriptors[fd] & kWritable;
}

Choice choose(Call call, const Path& path) {
  const int index = static_cast<int>(call), error = errno;
  const Choice choice = chosen(index, counts[index]++);
  char detail[96];
  if (const int64_t waited_ms = wait_for_outage(); waited_ms > 0) {
    std::snprintf(detail, sizeof detail, "\"ms\":%lld", static_cast<long long>(waited_ms));
    log("waited", call, path, detail);
  }
  errno = error;
  if (choice.effect == Effect::none) return choice;
  std::snprintf(detail, sizeof detail, "\"call_number\":%llu,\"error\":%d,\"ms\":%lld",
                static_cast<unsigned long long>(choice.number), choice.error,
                static_cast<long long>(choice.ms));
  log(kEffectNames[static_cast<int>(choice.effect)], call, path, detail);
  if (choice.effect == Effect::outage) client_page().blocked_until_ms = now_ms() + choice.ms;
  if (choice.ms > 0) sleep_ms(choice.ms);
  errno = error;
  return choice;
}

bool choose_rare(Effect effect, Call call) {
  static std::atomic<uint64_t> asked[kCalls];
  const int index = static_cast<int>(call);
  const double rate = settings.rates[static_cast<int>(effect)][index];
  if (rate <= 0) return false;
  const uint64_t number = asked[index]++ * kCalls + static_cast<uint64_t>(index);
  return uniform(mixed(~settings.seed ^ mixed(number))) < rate;
}

void log(const char* effect, Call call, const Path& path, const char* detail) {
  const int error = errno;
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  char line[PATH_MAX + 512], file[PATH_MAX + 16];
  const int bytes = std::snprintf(
      line, sizeof line,
      "{\"time\":%lld.%06ld,\"process\":\"%s\",\"pid\":%ld,\"call\":\"%s\",\"effect\":\"%s\","
      "\"path\":\"%s\",%s}\n",
      static_cast<long long>(now.tv_sec), now.tv_nsec / 1000, settings.name, syscall(SYS_getpid),
      kCallNames[static_cast<int>(call)], effect, path.relative(), detail);
  std::snprintf(file, sizeof file, "%s/faults.jsonl", settings.state);
  // Opened for each line: the process may close descriptors that are not its own.
  const long fd =
      syscall(SYS_openat, AT_FDCWD, file, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (fd >= 0) {
    if (syscall(SYS_write, fd, line,
                std::min<size_t>(static_cast<size_t>(bytes), sizeof line - 1)) < 0) {
    }
    syscall(SYS_close, fd);
  }
  errno = error;
}

int64_t stale_ms() {
  return settings.stale_ms;
}
uint64_t client() {
  return settings.client;
}
const char* state_folder() {
  return settings.state;
}

}  // namespace file_faults
