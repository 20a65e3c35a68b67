// Tie-break: decides which of several connections between the same two processes stays. Each
// process decides alone, from the messages that it has received. Messages of different connections
// may overtake each other. The caller of a connection is the process that sent the hello. Pure
// functions.
//
//   CONNECTION-4  In whatever order messages arrive, both processes keep the same connection. If
//                 both call at once, the call of the process with the lower id stays. A process
//                 that has lost the connection calls again, and the new connection stays.
#pragma once

#include <cstdint>

namespace simplescale::remote {

/// The current connection with the other process. It need not be established yet.
struct Connection {
  uint64_t number = 0;  // this process numbers its connections from 1
  bool ours = false;    // this process is the caller
  bool established = false;
};

/// True if this process answers a hello with a welcome. current: the connection with the sender;
/// null: none. lower: this process has the lower id.
inline bool accepts_hello(const Connection* current, bool lower) {
  return !current || current->established || !lower;
}

/// Number of the connection that is established when a hello arrives, or 0. The welcome names this
/// connection; see keeps_named_connection().
inline uint64_t established_number(const Connection* current) {
  return current && current->established ? current->number : 0;
}

/// Called when the caller receives a welcome. named: the welcome names another connection between
/// the two processes. alive: the caller still has that connection, established or not. True: the
/// named connection stays, and the caller's new one ends.
inline bool keeps_named_connection(bool named, bool alive) {
  return named && alive;
}

enum class TieBreak : uint8_t {
  replace,           // the caller's connection replaces the current one
  replace_silently,  // the same, but without a goodbye: the other process replaces it, too
  keep,              // the current one stays; both sides end the caller's
};

/// Called when a caller has proven that it has the key. number, established_at_hello: of the
/// caller's connection.
inline TieBreak break_tie(const Connection* current, uint64_t number, uint64_t established_at_hello,
                          bool lower) {
  if (!current || !current->established) return TieBreak::replace;
  if (!current->ours)  // both were called by the other process: the later hello stays
    return number > current->number ? TieBreak::replace : TieBreak::keep;
  // The welcome named the current connection, but the caller continued, so it has lost that
  // connection.
  if (established_at_hello == current->number) return TieBreak::replace;
  return lower ? TieBreak::keep : TieBreak::replace_silently;
}

}  // namespace simplescale::remote
