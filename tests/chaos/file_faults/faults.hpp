// Faults of the file system that holds a run folder, for the tests of real processes: a library for
// LD_PRELOAD that delays, hangs, fails and tears the file calls of a process, below one folder.
// chaos.py --file-faults uses it; test_file_faults.py tests it.
//
//   LD_PRELOAD=libfile_faults.so
//   SIMPLESCALE_FILE_FAULTS="folder=/f/run;state=/f/state;seed=1;delay=0.02;fail=0.01;fail.write=0"
//
//   folder  the calls below this folder are faulted; an absolute path without symbolic links
//   state   an existing folder for the log (faults.jsonl) and the counts of starts; not in `folder`
//   seed    number
//   delay_ms, hang_ms, outage_ms   the longest of each, by default 40, 3000 and 8000
//   stale_ms   how long a client answers with what it remembers, by default 3000; NFS: 30000
//   EFFECT or EFFECT.CALL   probability of the effect at each call, or at each call of one class
//
// The effects (Effect) and the classes of calls (Call) are below. Which effect a call gets is a
// function of the seed, the arguments of the process, how often a process with these arguments was
// started before, the class, and the number of calls of the class before it. What the C library
// calls itself (in fwrite, for example) is not seen.
//
// This file: settings, choices and the log. calls_data.cpp, calls_names.cpp: the calls that take
// the places of the C library's. client.cpp: what the processes of a node share. stale.cpp: what a
// client of NFS remembers.
#pragma once

#include <climits>
#include <cstddef>
#include <cstdint>

namespace file_faults {

enum class Call : int {
  open,    // without O_CREAT
  create,  // open with O_CREAT, mkstemp, fopen for writing
  read,
  write,
  sync,
  size,  // ftruncate, truncate, fallocate
  close,
  rename,
  link,
  unlink,  // and rmdir
  symlink,
  mkdir,
  stat,  // and access, readlink
  list,  // opendir
  touch,
  count,
};

enum class Effect : int {
  none,
  delay,      // the call is made after 1 ms to delay_ms
  hang,       // the call is made after hang_ms / 4 to hang_ms
  outage,     // all calls of the client's processes wait for outage_ms / 4 to outage_ms
  fail,       // an error instead of the call; the next 0 to 7 calls of the class fail, too
  tear,       // write: a part is written; the call returns its size, or an error
  replay,     // rename, link, ...: the call is made, and reported as failed, as NFS does when the
              // answer of its server was lost
  stale,      // open, stat, list: the answer is up to stale_ms old
  overwrite,  // an append, after one by another client: written where the file ended before that
  count,
};

struct Choice {
  Effect effect = Effect::none;
  int error = 0;        // errno of fail and replay; of tear: 0 if the call returns a part
  int64_t ms = 0;       // of delay, hang and outage
  double part = 0;      // of tear: the part of the bytes that is written, in [0, 1)
  uint64_t number = 0;  // of this call in its class, from 0
};

/// An absolute path below the folder.
struct Path {
  char text[PATH_MAX];
  int relative_at = -1;  // where the part below the folder begins; -1: not below the folder
  const char* relative() const { return text + relative_at; }
  explicit operator bool() const { return relative_at >= 0; }
};

/// The path of a call relative to an open folder or AT_FDCWD.
Path path_at(int folder, const char* path);
/// The path of an open file, if this library has seen how it was opened.
Path path_of(int fd);
void opened(int fd, bool for_writing);
void closed(int fd);
bool for_writing(int fd);

/// Chooses the effect of the next call of this class, logs it, and carries out what takes time.
Choice choose(Call call, const Path& path);
/// True with the probability of an effect that the caller carries out and logs: stale, overwrite.
bool choose_rare(Effect effect, Call call);
void log(const char* effect, Call call, const Path& path, const char* detail);

/// Identifies the client of the file system, the node of this process (client.hpp).
uint64_t client();
const char* state_folder();
int64_t stale_ms();

}  // namespace file_faults
