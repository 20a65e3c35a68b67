# Commit and library versions for a run's manifest. They are determined when CMake configures, which the wrapper does before
# every build, and compiled into one file, so that a new commit recompiles only that file.
set(SIMPLESCALE_COMMIT "unknown")
find_program(GIT git)
if(GIT)
  execute_process(COMMAND ${GIT} rev-parse HEAD WORKING_DIRECTORY ${CMAKE_SOURCE_DIR}
    OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE failed ERROR_QUIET)
  execute_process(COMMAND ${GIT} status --porcelain --untracked-files=no WORKING_DIRECTORY ${CMAKE_SOURCE_DIR}
    OUTPUT_VARIABLE changes ERROR_QUIET)
  if(NOT failed)
    set(SIMPLESCALE_COMMIT ${commit})
    if(changes)
      string(APPEND SIMPLESCALE_COMMIT "+changes")
    endif()
  endif()
endif()

set(SIMPLESCALE_TORCH "unknown")
if(EXISTS ${TORCH_DIR}/version.py)
  file(STRINGS ${TORCH_DIR}/version.py line REGEX "^__version__ = " LIMIT_COUNT 1)
  string(REGEX REPLACE ".*'(.*)'.*" "\\1" SIMPLESCALE_TORCH "${line}")
endif()

set(SIMPLESCALE_NCCL "none")
if(CUDA_BUILT)
  set(SIMPLESCALE_NCCL "")
  foreach(part MAJOR MINOR PATCH)
    file(STRINGS ${NCCL_INCLUDE}/nccl.h line REGEX "^#define NCCL_${part} " LIMIT_COUNT 1)
    string(REGEX REPLACE ".* " "" number "${line}")
    string(APPEND SIMPLESCALE_NCCL ".${number}")
  endforeach()
  string(SUBSTRING "${SIMPLESCALE_NCCL}" 1 -1 SIMPLESCALE_NCCL)
endif()

set_source_files_properties(${CMAKE_SOURCE_DIR}/app/launch/manifest.cpp PROPERTIES COMPILE_DEFINITIONS
  "SIMPLESCALE_COMMIT=\"${SIMPLESCALE_COMMIT}\";SIMPLESCALE_TORCH=\"${SIMPLESCALE_TORCH}\";SIMPLESCALE_NCCL=\"${SIMPLESCALE_NCCL}\"")
set_source_files_properties(${CMAKE_SOURCE_DIR}/runtime/config/signature.cpp PROPERTIES COMPILE_DEFINITIONS
  "SIMPLESCALE_TORCH=\"${SIMPLESCALE_TORCH}\"")
