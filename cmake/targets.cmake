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
