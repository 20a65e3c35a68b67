# One target per floor, and one per room of the ground floor (runtime/) and of tools/. A target's sources are the files of its folder.
function(simplescale_flags target)
  target_compile_options(${target} PRIVATE
    $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wpedantic -Werror -Wno-missing-field-initializers>)
  if(SIMPLESCALE_ASAN)  # no null check: CAF 0.17.6 binds a null reference when it spawns a function actor
    # gcc 12 warns of uninitialized members of std::regex only in instrumented code.
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=address,undefined
      -fno-sanitize=null -fno-omit-frame-pointer -fno-sanitize-recover=undefined -Wno-maybe-uninitialized>)
    target_link_options(${target} PRIVATE -fsanitize=address,undefined)
  endif()
  if(SIMPLESCALE_TSAN)  # gcc warns that its thread sanitizer does not support fences
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=thread -Wno-tsan>)
    target_link_options(${target} PRIVATE -fsanitize=thread)
  endif()
endfunction()

# The target's code runs a few times a step at most, so that -O1, which compiles in three quarters of -O2's time, is
# enough.
function(simplescale_rarely_runs)
  foreach(target ${ARGN})
    target_compile_options(${target} PRIVATE $<$<AND:$<CONFIG:Release>,$<COMPILE_LANGUAGE:CXX>>:-O1>)
  endforeach()
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
  list(FILTER sources EXCLUDE REGEX "/model/cuda/|/transport/nccl/|/prepare/parquet/|${ARG_EXCLUDE}")
  if(NOT sources)
    return()
  endif()
  add_library(${name} STATIC ${sources})
  target_include_directories(${name} PUBLIC ${CMAKE_SOURCE_DIR})
  target_link_libraries(${name} PUBLIC ${ARG_LINK} PRIVATE ${ARG_PRIVATE_LINK})
  simplescale_flags(${name})
endfunction()

# The rooms of runtime/; a room links only rooms above it in this list. A room may include only the rooms that it links.
function(simplescale_room name)
  simplescale_layer(${name} FOLDERS runtime/${name} ${ARGN})
endfunction()

simplescale_room(base LINK Threads::Threads spdlog::spdlog nlohmann_json::nlohmann_json PkgConfig::xxhash rt
  PRIVATE_LINK PkgConfig::tomlplusplus)
simplescale_room(training LINK base)
simplescale_room(run LINK base)
simplescale_room(observe LINK base run PkgConfig::tomlplusplus)
simplescale_room(diagnostics LINK base)
simplescale_room(object_store LINK base
  PRIVATE_LINK PkgConfig::curl PkgConfig::pugixml PkgConfig::sodium)
simplescale_room(program LINK training)
simplescale_room(config LINK program observe object_store PkgConfig::tomlplusplus)
simplescale_room(tokenizer LINK base PkgConfig::sentencepiece PkgConfig::pcre2 PkgConfig::utf8proc)
simplescale_room(data LINK config run tokenizer)
simplescale_room(feed LINK data)
simplescale_room(checkpoint LINK training run tokenizer object_store)

# What works on files and takes no part in a step. Only app includes a tool; a tool includes rooms of runtime and the tools
# that it links.
function(simplescale_tool name)
  simplescale_layer(${name} FOLDERS tools/${name} ${ARGN})
endfunction()
simplescale_tool(prepare LINK feed PRIVATE_LINK PkgConfig::archive PkgConfig::zlib)
simplescale_tool(verify LINK checkpoint)
simplescale_tool(convert LINK verify)
simplescale_tool(report LINK config run)
simplescale_tool(exports LINK report PRIVATE_LINK PkgConfig::zlib)
simplescale_tool(trace LINK report observe)
simplescale_tool(http LINK config run PRIVATE_LINK PkgConfig::httplib)

# Embeds two files in the program: the rules for log lines, and the web page.
function(simplescale_embed room file variable template)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/${file})
  file(READ ${file} ${variable})
  configure_file(cmake/${template}.in ${CMAKE_BINARY_DIR}/generated/${template} @ONLY)
  target_sources(${room} PRIVATE ${CMAKE_BINARY_DIR}/generated/${template})
endfunction()
simplescale_embed(observe configs/log_rules.toml SIMPLESCALE_LOG_RULES log_rules.cpp)
simplescale_embed(http tools/http/page.html SIMPLESCALE_PAGE page.cpp)

simplescale_layer(model FOLDERS model LINK program observe PRIVATE_LINK deps::torch)
if(TARGET model)
  # Lets MKL choose its kernels by the CPU's features; see model/cpu/gemm.cpp.
  target_link_options(model INTERFACE -Wl,--export-dynamic-symbol=mkl_serv_intel_cpu_true)
  file(GLOB kernels ${CMAKE_SOURCE_DIR}/model/cpu/kernels_*.cpp)
  set_source_files_properties(${kernels} PROPERTIES
    COMPILE_OPTIONS "-O3;-ffp-contract=fast;-fno-math-errno;-fno-trapping-math")
endif()

# The wire protocol: one Cap'n Proto schema. `messages` has its messages as plain C++, `protocol` converts them. Their code
# is generated in the build tree, by Cap'n Proto and by our plug-in of it, and compiled without our warnings.
set(SIMPLESCALE_PROTOCOL transport/protocol/protocol.capnp)
set(SIMPLESCALE_GENERATED ${CMAKE_BINARY_DIR}/generated)
set(generated ${SIMPLESCALE_GENERATED}/transport/protocol)
file(MAKE_DIRECTORY ${generated})
find_program(CAPNP capnp REQUIRED)  # Debian's CMake package has a wrong path of the tool
add_executable(generate_messages transport/protocol/generate.cpp)
target_link_libraries(generate_messages PRIVATE CapnProto::capnp fmt::fmt)
target_compile_options(generate_messages PRIVATE -O0 -Wall -Wextra -Wpedantic -Werror)
add_custom_command(
  OUTPUT ${generated}/protocol.capnp.c++ ${generated}/protocol.capnp.h ${generated}/messages.hpp ${generated}/messages.cpp
         ${generated}/convert.hpp ${generated}/convert.cpp
  COMMAND ${CAPNP} compile -oc++:${SIMPLESCALE_GENERATED} -o$<TARGET_FILE:generate_messages>:${SIMPLESCALE_GENERATED}
          --src-prefix=${CMAKE_SOURCE_DIR} ${CMAKE_SOURCE_DIR}/${SIMPLESCALE_PROTOCOL}
  DEPENDS ${SIMPLESCALE_PROTOCOL} generate_messages VERBATIM)
add_library(messages STATIC ${generated}/messages.cpp transport/protocol/reason.cpp)
target_include_directories(messages SYSTEM PUBLIC ${SIMPLESCALE_GENERATED})
target_link_libraries(messages PUBLIC training observe)
simplescale_flags(messages)
add_library(protocol STATIC ${generated}/protocol.capnp.c++ ${generated}/convert.cpp)
target_link_libraries(protocol PUBLIC messages CapnProto::capnp)

simplescale_layer(transport FOLDERS transport EXCLUDE "/transport/protocol/" LINK run protocol deps::caf PkgConfig::crypto
  PRIVATE_LINK PkgConfig::sodium)
if(TARGET transport)  # headers alone: the library is loaded when it is needed
  target_include_directories(transport SYSTEM PUBLIC ${ucx_INCLUDE_DIRS})
endif()

# The supervisor's decisions are pure functions of plain data. The simulation links them without CAF.
simplescale_layer(decision FOLDERS actors/supervisor/decision LINK messages)
# Only the trainer actor uses the model; all other actors are free of libtorch.
simplescale_layer(actors FOLDERS actors EXCLUDE "/actors/(trainer|supervisor/decision)/"
  LINK decision config feed checkpoint diagnostics transport)
# What a trainer will compute, for those who do not compute: without libtorch.
add_library(setup STATIC actors/trainer/engine_setup.cpp)
target_link_libraries(setup PUBLIC config transport program)
simplescale_flags(setup)
simplescale_layer(trainer FOLDERS actors/trainer EXCLUDE "/engine_setup.cpp" LINK actors setup model)

simplescale_rarely_runs(run observe object_store config checkpoint actors convert verify report exports trace http)
set_source_files_properties(transport/caf/message_types.cpp
  PROPERTIES COMPILE_OPTIONS $<$<CONFIG:Release>:-O1>)  # templates over all messages
# Conversions of whole models.
set_source_files_properties(tools/convert/derive.cpp tools/convert/hf_export.cpp
  runtime/checkpoint/safetensors.cpp PROPERTIES COMPILE_OPTIONS $<$<CONFIG:Release>:-O2>)

# Two programs. Users call `simplescale`. `simplescale-compute` beside it runs trainers, `generate` and `evaluate`; it is
# the only one that links libtorch.
set(parts app/doctor/logind.cpp app/hosts/sharing.cpp app/slurm/slurm.cpp)  # both link, or tests
add_library(app STATIC ${parts})
target_include_directories(app PUBLIC ${CMAKE_SOURCE_DIR})
target_link_libraries(app PUBLIC config run diagnostics)
simplescale_flags(app)

set(common app/report.cpp app/terminal.cpp app/usage.cpp app/processes/actor_process.cpp)  # of both programs
add_library(common STATIC ${common})
target_link_libraries(common PUBLIC app transport CLI11::CLI11)
set(compute app/compute_main.cpp app/commands/generate.cpp app/commands/evaluate.cpp app/commands/loaded_model.cpp
  app/processes/trainer_process.cpp)
file(GLOB_RECURSE sources CONFIGURE_DEPENDS RELATIVE ${CMAKE_SOURCE_DIR} ${CMAKE_SOURCE_DIR}/app/*.cpp)
list(REMOVE_ITEM sources ${compute} ${parts} ${common})
add_executable(simplescale ${sources})
target_link_libraries(simplescale PRIVATE actors setup common prepare convert exports trace http PkgConfig::libedit)
add_executable(simplescale-compute ${compute} transport/nccl/program/poll.cpp)
target_link_libraries(simplescale-compute PRIVATE trainer common prepare convert)
foreach(program common simplescale simplescale-compute)
  target_compile_definitions(${program} PRIVATE SIMPLESCALE_VERSION="${PROJECT_VERSION}")
  simplescale_flags(${program})
endforeach()

simplescale_rarely_runs(app common simplescale simplescale-compute)

add_custom_target(programs DEPENDS simplescale simplescale-compute)

# Only `prepare` loads it, for parquet files.
if(TARGET deps::arrow)
  add_library(simplescale_parquet SHARED tools/prepare/parquet/library.cpp)
  target_link_libraries(simplescale_parquet PRIVATE base deps::arrow)
  simplescale_flags(simplescale_parquet)
  add_dependencies(programs simplescale_parquet)
endif()
