#include "transport/caf/message_types.hpp"

#include <caf/all.hpp>

#define SS_DEFINE(T) SS_MESSAGE_TYPE(, simplescale::T)
SS_MESSAGES(SS_DEFINE)
