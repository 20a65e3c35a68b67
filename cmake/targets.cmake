# One target per layer. A layer's sources are the files of its folder.
function(simplescale_flags target)
  target_compile_options(${target} PRIVATE
    $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wpedantic -Werror -Wno-missing-field-initializers>)
  if(SIMPLESCALE_ASAN)
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=address,undefined
      -fno-omit-frame-pointer -fno-sanitize-recover=undefined>)
    target_link_options(${target} PRIVATE -fsanitize=address,undefined)
  endif()
  if(SIMPLESCALE_TSAN)
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=thread>)
    target_link_options(${target} PRIVATE -fsanitize=thread)
  endif()
endfunction()

function(simplescale_layer name)
  cmake_parse_arguments(ARG "" "" "FOLDERS;LINK" ${ARGN})
  set(sources)
  foreach(folder ${ARG_FOLDERS})
    file(GLOB_RECURSE found CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/${folder}/*.cpp)
    list(APPEND sources ${found})
  endforeach()
  list(FILTER sources EXCLUDE REGEX "/cuda/|/nccl/")
  if(NOT sources)
    return()
  endif()
  add_library(${name} STATIC ${sources})
  target_include_directories(${name} PUBLIC ${CMAKE_SOURCE_DIR})
  target_link_libraries(${name} PUBLIC ${ARG_LINK})
  simplescale_flags(${name})
endfunction()

simplescale_layer(base FOLDERS runtime/base runtime/config runtime/data runtime/checkpoint
  LINK Threads::Threads spdlog::spdlog nlohmann_json::nlohmann_json PkgConfig::tomlplusplus
       PkgConfig::xxhash PkgConfig::sentencepiece rt)

simplescale_layer(model FOLDERS model LINK base deps::torch)

# The wire protocol: one Cap'n Proto schema, its C++ generated into the build tree, not held to our warnings.
set(SIMPLESCALE_PROTOCOL transport/protocol/protocol.capnp)
set(SIMPLESCALE_GENERATED ${CMAKE_BINARY_DIR}/generated)
file(MAKE_DIRECTORY ${SIMPLESCALE_GENERATED})
find_program(CAPNP capnp REQUIRED)  # Debian's CapnProto package names its tools by a path that is not there
add_custom_command(
  OUTPUT ${SIMPLESCALE_GENERATED}/${SIMPLESCALE_PROTOCOL}.c++
         ${SIMPLESCALE_GENERATED}/${SIMPLESCALE_PROTOCOL}.h
  COMMAND ${CAPNP} compile -oc++:${SIMPLESCALE_GENERATED}
          --src-prefix=${CMAKE_SOURCE_DIR} ${CMAKE_SOURCE_DIR}/${SIMPLESCALE_PROTOCOL}
  DEPENDS ${SIMPLESCALE_PROTOCOL} VERBATIM)
add_library(protocol STATIC ${SIMPLESCALE_GENERATED}/${SIMPLESCALE_PROTOCOL}.c++)
target_include_directories(protocol SYSTEM PUBLIC ${SIMPLESCALE_GENERATED})
target_link_libraries(protocol PUBLIC CapnProto::capnp)

simplescale_layer(transport FOLDERS transport LINK base protocol deps::caf PkgConfig::ucx)

# The transport is optional here: the supervision library alone needs CAF only.
set(actors_link base deps::caf)
if(TARGET transport)
  list(APPEND actors_link transport)
endif()
simplescale_layer(actors FOLDERS actors LINK ${actors_link})
