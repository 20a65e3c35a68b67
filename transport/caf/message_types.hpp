// What CAF compiles for a message that an actor sends: once for each message, in message_types.cpp,
// and not in every file that sends it.
#pragma once

#include <caf/detail/tuple_vals.hpp>
#include <caf/mailbox_element.hpp>

#include "transport/protocol/messages.hpp"

// How: `extern` declares the templates of T, nothing defines them. Only two members of
// mailbox_element_vals: one that nobody calls does not compile.
#define SS_MESSAGE_TYPE(How, T)                                                            \
  How template caf::message caf::mailbox_element_vals<T>::move_content_to_message();       \
  How template caf::message caf::mailbox_element_vals<T>::copy_content_to_message() const; \
  How template class caf::detail::tuple_vals<T>;                                           \
  How template class caf::detail::tuple_vals_impl<caf::detail::message_data, T>;           \
  How template class caf::detail::tuple_vals_impl<caf::type_erased_tuple, T>;              \
  How template class caf::detail::type_erased_value_impl<T>;

#define SS_EXTERN(T) SS_MESSAGE_TYPE(extern, simplescale::T)
SS_MESSAGES(SS_EXTERN)
#undef SS_EXTERN
