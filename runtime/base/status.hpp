// Errors as values: Status for "did it work", Result<T> for "what came out". Library code never
// exits and never throws for an expected failure; main() turns a Code into an exit code.
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
  requeue,      // stopped before the end, start me again         exit 75
  bad_config,   // the configuration is wrong or impossible       exit 78
  gave_up,      // training gave up, the reason is the message    exit 3
  aborted,      // somebody called abort(), or the generation is over
  deadline,     // a wait reached its deadline
  unavailable,  // a peer is gone or refuses
  not_found,    // what was asked for does not exist
  io,           // the operating system says no: disk full, permission, ...
  mismatch,     // replicas that must hold the same bits do not
};

/// True if a number from elsewhere is a Code.
constexpr bool is_code(unsigned value) {
  return value <= static_cast<unsigned>(Code::mismatch);
}

/// Exit code of a process that ends with this code (docs/operations.md). A code that has none of its
/// own gives 70: main() should not have seen it.
int exit_code(Code code);
const char* to_string(Code code);

/// The message says what was wrong, where, and what to do, in one line.
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

/// The operating system refused: "WHAT WHERE: <text of the errno>", e.g. system_error("cannot read",
/// path, errno, Code::not_found). missing: the code for ENOENT and ENOTDIR; any other error is io.
Status system_error(const std::string& what, const std::string& where, int error,
                    Code missing = Code::io);

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

/// A programmer's mistake: on in release builds too. Never for data that a peer, a user or a file
/// controls.
#define SS_ASSERT(condition)                                                                 \
  do {                                                                                       \
    if (!(condition)) [[unlikely]] {                                                         \
      std::fprintf(stderr, "%s:%d: assertion failed: %s\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                                          \
    }                                                                                        \
  } while (false)

#define SS_CONCAT_(a, b) a##b
#define SS_CONCAT(a, b) SS_CONCAT_(a, b)
/// Returns from the calling function with the status, if it is an error.
#define SS_RETURN_IF_ERROR(expression)                                       \
  do {                                                                       \
    if (auto ss_status_ = (expression); !ss_status_.ok()) return ss_status_; \
  } while (false)
/// SS_ASSIGN(auto x, f()) returns f's error or binds its value.
#define SS_ASSIGN(declaration, expression) \
  SS_ASSIGN_(SS_CONCAT(ss_result_, __LINE__), declaration, expression)
#define SS_ASSIGN_(result, declaration, expression) \
  auto result = (expression);                       \
  if (!result.ok()) return result.status();         \
  declaration = result.take()

}  // namespace simplescale
