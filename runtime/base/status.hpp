// runtime/base: what all other rooms use: errors, files, processes, shared memory, hashes, logging.
//
// Errors as values: a function returns Status, or Result<T> if it has a value to return. Library
// code never exits, and never throws for an expected failure; main() turns a Code into an exit
// code.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <utility>

namespace simplescale {

enum class Code : unsigned char {
  ok,
  usage,        // the command line is wrong                      exit 64
  bad_data,     // an input file is missing or damaged            exit 65
  internal,     // a bug of ours                                  exit 70
  requeue,      // stopped before the end, start the run again    exit 75
  bad_config,   // the configuration is wrong or impossible       exit 78
  gave_up,      // training gave up; the message is the reason    exit 3
  aborted,      // abort() was called, or the generation is over
  deadline,     // a wait reached its deadline
  unavailable,  // a peer is gone, or refuses
  not_found,    // a file, step or object does not exist          exit 65
  io,           // the operating system refused: disk full, ...   exit 74
  mismatch,     // replicas that must hold the same bits differ
};

/// True if a number received from a peer or a file is a Code.
constexpr bool is_code(unsigned value) {
  return value <= static_cast<unsigned>(Code::mismatch);
}

/// Exit code of a process that ends with `code` (docs/operations.md). Codes without an exit code of
/// their own give 70, as a bug: they should have been handled before main().
int exit_code(Code code);
const char* to_string(Code code);

/// A code and a message of one line, which says what was wrong, where, and what to do.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Code code, std::string message) : code_(code), message_(std::move(message)) {}
  bool ok() const { return code_ == Code::ok; }
  Code code() const { return code_; }
  const std::string& message() const { return message_; }
  /// The same status with `where: ` in front of its message.
  Status in(const std::string& where) const {
    return ok() ? *this : Status(code_, where + ": " + message_);
  }

 private:
  Code code_ = Code::ok;
  std::string message_;
};

inline Status bad_data(std::string message) {
  return {Code::bad_data, std::move(message)};
}
inline Status bad_data(const std::string& where, const std::string& what) {
  return {Code::bad_data, where + ": " + what};
}
inline Status bad_config(std::string message) {
  return {Code::bad_config, std::move(message)};
}
/// A system call failed: "WHAT WHERE: <text of the errno>", as system_error("cannot read", path,
/// errno). missing: the code for ENOENT and ENOTDIR; every other errno gives io.
Status system_error(const std::string& what, const std::string& where, int error,
                    Code missing = Code::io);

/// A value, or the error that prevented it. *result requires ok().
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}         // NOLINT: implicit on purpose
  Result(Status status) : status_(std::move(status)) {  // NOLINT
    if (status_.ok()) std::abort();
  }
  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }
  T& operator*() { return *value_; }
  const T& operator*() const { return *value_; }
  T* operator->() { return &*value_; }
  const T* operator->() const { return &*value_; }
  T take() { return std::move(*value_); }

 private:
  std::optional<T> value_;
  Status status_;
};

/// Aborts the process on a programmer's mistake, in release builds, too. Never use it on data that
/// a peer, a user or a file controls.
#define SS_ASSERT(condition)                                                                 \
  do {                                                                                       \
    if (!(condition)) [[unlikely]] {                                                         \
      std::fprintf(stderr, "%s:%d: assertion failed: %s\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                                          \
    }                                                                                        \
  } while (false)

#define SS_CONCAT_(a, b) a##b
#define SS_CONCAT(a, b) SS_CONCAT_(a, b)
/// Returns from the calling function if the expression's Status is an error.
#define SS_RETURN_IF_ERROR(expression)                                       \
  do {                                                                       \
    if (auto ss_status_ = (expression); !ss_status_.ok()) return ss_status_; \
  } while (false)
/// SS_ASSIGN(auto x, f()) binds the value of the Result that f() returns, or returns its error.
#define SS_ASSIGN(declaration, expression) \
  SS_ASSIGN_(SS_CONCAT(ss_result_, __LINE__), declaration, expression)
#define SS_ASSIGN_(result, declaration, expression) \
  auto result = (expression);                       \
  if (!result.ok()) return result.status();         \
  declaration = result.take()

}  // namespace simplescale
