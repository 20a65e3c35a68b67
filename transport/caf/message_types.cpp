#include "transport/caf/message_types.hpp"

#define SS_DEFINE(T, MEMBER) SS_MESSAGE_TYPE(, simplescale::T)
SS_MESSAGES(SS_DEFINE)
