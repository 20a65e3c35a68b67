# One target per layer. A layer's sources are the files of its folder.
function(simplescale_flags target)
  target_compile_options(${target} PRIVATE
    $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wpedantic -Werror -Wno-missing-field-initializers>)
  if(SIMPLESCALE_ASAN)  # null: CAF 0.17.6 binds a reference to no arguments when a function actor is spawned
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=address,undefined
      -fno-sanitize=null -fno-omit-frame-pointer -fno-sanitize-recover=undefined>)
    target_link_options(${target} PRIVATE -fsanitize=address,undefined)
  endif()
  if(SIMPLESCALE_TSAN)  # gcc's tsan does not know fences and says so
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=thread -Wno-tsan>)
    target_link_options(${target} PRIVATE -fsanitize=thread)
  endif()
endfunction()

function(simplescale_layer name)
  cmake_parse_arguments(ARG "" "EXCLUDE" "FOLDERS;LINK;PRIVATE_LINK" ${ARGN})
  if(NOT ARG_EXCLUDE)
    set(ARG_EXCLUDE "/none/")
  endif()
  set(sources)
  foreach(folder ${ARG_FOLDERS})
    file(GLOB_RECURSE found CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/${folder}/*.cpp)
    list(APPEND sources ${found})
  endforeach()
  list(FILTER sources EXCLUDE REGEX "/model/cuda/|/transport/nccl/|${ARG_EXCLUDE}")
  if(NOT sources)
    return()
  endif()
  add_library(${name} STATIC ${sources})
  target_include_directories(${name} PUBLIC ${CMAKE_SOURCE_DIR})
  target_link_libraries(${name} PUBLIC ${ARG_LINK} PRIVATE ${ARG_PRIVATE_LINK})
  simplescale_flags(${name})
endfunction()

simplescale_layer(base FOLDERS runtime/base runtime/config runtime/data runtime/checkpoint runtime/exports
  LINK Threads::Threads spdlog::spdlog nlohmann_json::nlohmann_json PkgConfig::tomlplusplus
       PkgConfig::xxhash PkgConfig::sentencepiece rt)
# The log rules are part of the program.
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/configs/log_rules.toml)
file(READ configs/log_rules.toml SIMPLESCALE_LOG_RULES)
configure_file(cmake/log_rules.cpp.in ${CMAKE_BINARY_DIR}/generated/log_rules.cpp @ONLY)
target_sources(base PRIVATE ${CMAKE_BINARY_DIR}/generated/log_rules.cpp)

simplescale_layer(model FOLDERS model LINK base PRIVATE_LINK deps::torch)
if(TARGET model)
  # Lets MKL choose its kernels by what the CPU can do: see model/cpu/gemm.cpp.
  target_link_options(model INTERFACE -Wl,--export-dynamic-symbol=mkl_serv_intel_cpu_true)
  file(GLOB kernels ${CMAKE_SOURCE_DIR}/model/cpu/kernels_*.cpp)
  set_source_files_properties(${kernels} PROPERTIES
    COMPILE_OPTIONS "-O3;-ffp-contract=fast;-fno-math-errno;-fno-trapping-math")
endif()

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

simplescale_layer(transport FOLDERS transport LINK base protocol deps::caf PkgConfig::ucx
  PRIVATE_LINK PkgConfig::sodium)

simplescale_layer(http FOLDERS runtime/http LINK base PRIVATE_LINK PkgConfig::httplib)
# So is the page.
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/runtime/http/page.html)
file(READ runtime/http/page.html SIMPLESCALE_PAGE)
configure_file(cmake/page.cpp.in ${CMAKE_BINARY_DIR}/generated/page.cpp @ONLY)
target_sources(http PRIVATE ${CMAKE_BINARY_DIR}/generated/page.cpp)

# The trainer actor is the one that meets the model; the others stay free of libtorch.
simplescale_layer(actors FOLDERS actors EXCLUDE "/actors/trainer/" LINK base transport)
simplescale_layer(trainer FOLDERS actors/trainer LINK actors model)

# Two programs: `simplescale` is what people call; `simplescale-compute` beside it is a trainer, generate and evaluate.
set(common runtime/app/report.cpp runtime/app/usage.cpp runtime/app/actor_process.cpp)
add_executable(simplescale runtime/app/main.cpp runtime/app/commands.cpp runtime/app/train.cpp
  runtime/app/run_start.cpp runtime/app/slurm.cpp runtime/app/slurm_task.cpp runtime/app/agent.cpp
  runtime/app/keeper.cpp runtime/app/supervisor_process.cpp runtime/app/http_process.cpp
  runtime/app/watch.cpp runtime/app/progress.cpp runtime/app/console.cpp runtime/app/supervisor_client.cpp runtime/app/line_editor.cpp
  runtime/app/logs.cpp runtime/app/trace.cpp runtime/app/doctor.cpp runtime/app/fleet_doctor.cpp runtime/app/prepare_data.cpp
  runtime/app/runs.cpp runtime/app/sweep.cpp runtime/app/manifest.cpp ${common})
target_link_libraries(simplescale PRIVATE actors http CLI11::CLI11 PkgConfig::libedit)
target_compile_definitions(simplescale PRIVATE SIMPLESCALE_VERSION="${PROJECT_VERSION}")
simplescale_flags(simplescale)

add_executable(simplescale-compute runtime/app/compute_main.cpp runtime/app/trainer_process.cpp
  runtime/app/generate.cpp ${common})
target_link_libraries(simplescale-compute PRIVATE trainer CLI11::CLI11)
target_compile_definitions(simplescale-compute PRIVATE SIMPLESCALE_VERSION="${PROJECT_VERSION}")
simplescale_flags(simplescale-compute)

add_custom_target(programs DEPENDS simplescale simplescale-compute)
