// What CAF needs to know of the messages (transport/protocol/protocol.capnp). Whoever sends one
// includes this.
#pragma once

#include <caf/allowed_unsafe_message_type.hpp>
#include <caf/detail/tuple_vals.hpp>
#include <caf/mailbox_element.hpp>
#include <concepts>
#include <type_traits>

#include "transport/protocol/messages.hpp"

namespace simplescale {
/// A benchmark sends these over CAF's own network, which needs their fields.
template <class T>
concept Inspected = std::same_as<T, Ping> || std::same_as<T, Pong>;
template <class Inspector, Inspected T>
typename Inspector::result_type inspect(Inspector& f, T& x) {
  return f(x.id, x.payload);
}
}  // namespace simplescale

// Only codec.hpp writes and reads a message; otherwise every file that sends it would compile CAF's
// functions for that.
#define SS_ALLOW(T, MEMBER)                               \
  template <>                                             \
  struct caf::allowed_unsafe_message_type<simplescale::T> \
      : std::bool_constant<!simplescale::Inspected<simplescale::T>> {};
SS_MESSAGES(SS_ALLOW)
#undef SS_ALLOW

// What CAF compiles for a message that an actor sends is compiled once, in message_types.cpp, and
// not in every file that sends it: `extern` declares the templates of T, nothing defines them. Only
// two members of mailbox_element_vals: one that nobody calls does not compile.
#define SS_MESSAGE_TYPE(How, T)                                                            \
  How template caf::message caf::mailbox_element_vals<T>::move_content_to_message();       \
  How template caf::message caf::mailbox_element_vals<T>::copy_content_to_message() const; \
  How template class caf::detail::tuple_vals<T>;                                           \
  How template class caf::detail::tuple_vals_impl<caf::detail::message_data, T>;           \
  How template class caf::detail::tuple_vals_impl<caf::type_erased_tuple, T>;              \
  How template class caf::detail::type_erased_value_impl<T>;

#define SS_EXTERN(T, MEMBER) SS_MESSAGE_TYPE(extern, simplescale::T)
SS_MESSAGES(SS_EXTERN)
#undef SS_EXTERN
