// Which of several connections between the same two processes stays. Each of them decides alone,
// about what it has seen; messages of different connections overtake each other. Pure functions.
//
// CONNECTION-4: whatever the order, both keep the same one. Where the calls of both cross, it is the call of
//     the one with the lower id. Who has lost a connection calls anew, and the new one stays.
#pragma once

#include <cstdint>

namespace simplescale::remote {

/// A connection that takes the other process's place here, answered or not.
struct Connection {
  uint64_t number = 0;  // counts the connections of this process, from 1
  bool ours = false;    // this process called
  bool established = false;
};

/// Whether a hello is answered. current: null if there is none. lower: this process's id is.
inline bool accepts_hello(const Connection* current, bool lower) {
  return !current || current->established || !lower;
}

/// What a caller's hello found here: the connection that was established then, 0 if none was. The
/// welcome names it, so that a caller to whom it still means something does not go on (yields()).
inline uint64_t established_number(const Connection* current) {
  return current && current->established ? current->number : 0;
}

/// An answer to our call. named: it names another connection with us. alive: which is still known
/// here, whether it has been established or not. True: that one stays, our call is over.
inline bool keeps_named_connection(bool named, bool alive) {
  return named && alive;
}

enum class TieBreak : uint8_t {
  take,   // the caller's stays
  cross,  // the same, and the other side, too, will find that the current one has to go
  keep,   // the current one stays, the caller's goes on both sides
};

/// A caller has shown that it has the key. born, met: of its connection.
inline TieBreak break_tie(const Connection* current, uint64_t number, uint64_t established_at_hello,
                          bool lower) {
  if (!current || !current->established) return TieBreak::replace;
  if (!current->ours)
    return number > current->number ? TieBreak::replace : TieBreak::keep;  // it overtook
  if (established_at_hello == current->number)
    return TieBreak::replace;  // it was told of the current one, and has lost it
  return lower ? TieBreak::keep : TieBreak::replace_silently;
}

}  // namespace simplescale::remote
