# The GPU libraries: two shared libraries beside the programs, loaded only where a GPU is used. The rest builds and runs
# without them. Sets CUDA_BUILT.
set(CUDA_BUILT OFF)
set(NVIDIA_WHEELS ${TORCH_DIR}/../nvidia)

# Finds nvcc of CUDA 13, the version that libtorch is built for: CUDA_HOME's, the system's, or the Python wheel's
# (pip install "cuda-toolkit[nvcc,cccl,crt,nvvm]==13.0.2").
function(simplescale_is_cuda_13 result program)
  execute_process(COMMAND ${program} --version OUTPUT_VARIABLE version ERROR_QUIET)
  if(NOT version MATCHES "release 13\\.")
    set(${result} FALSE PARENT_SCOPE)
  endif()
endfunction()
find_program(SIMPLESCALE_NVCC nvcc VALIDATOR simplescale_is_cuda_13
  PATHS $ENV{CUDA_HOME}/bin /usr/local/cuda/bin ${NVIDIA_WHEELS}/cu13/bin)
if(NOT SIMPLESCALE_NVCC)
  message(STATUS "CUDA: no nvcc of CUDA 13 found, the GPU libraries are not built")
  return()
endif()
file(REAL_PATH ${SIMPLESCALE_NVCC} nvcc)
cmake_path(GET nvcc PARENT_PATH nvcc_bin)
cmake_path(GET nvcc_bin PARENT_PATH cuda_root)
foreach(include ${cuda_root}/include ${cuda_root}/targets/x86_64-linux/include)
  if(EXISTS ${include}/cuda_runtime_api.h AND EXISTS ${include}/crt/host_defines.h)
    set(CUDA_INCLUDE ${include})
    break()
  endif()
endforeach()

# Prefers the libraries that libtorch itself loads, so that a process has each library once.
function(simplescale_wheel_library variable folder name)
  file(GLOB found ${NVIDIA_WHEELS}/${folder}/lib/lib${name}.so*)
  if(NOT found)
    find_library(found_${name} ${name} PATHS ${cuda_root}/lib64)
    set(found ${found_${name}})
  endif()
  list(GET found 0 found)
  set(${variable} ${found} PARENT_SCOPE)
endfunction()
simplescale_wheel_library(CUDART_LIBRARY cu13 cudart)
simplescale_wheel_library(CUBLASLT_LIBRARY cu13 cublasLt)
simplescale_wheel_library(NCCL_LIBRARY nccl nccl)
find_path(NCCL_INCLUDE nccl.h PATHS ${NVIDIA_WHEELS}/nccl/include ${cuda_root}/include NO_DEFAULT_PATH)
find_path(NCCL_INCLUDE nccl.h)
# cuDNN's and NVRTC's headers only: cudnn-frontend loads the libraries that libtorch has loaded.
find_path(CUDNN_INCLUDE cudnn.h PATHS ${NVIDIA_WHEELS}/cudnn/include ${cuda_root}/include NO_DEFAULT_PATH)
find_path(NVRTC_INCLUDE nvrtc.h PATHS ${CUDA_INCLUDE} ${NVIDIA_WHEELS}/cu13/include NO_DEFAULT_PATH)
find_path(CUDNN_FRONTEND_INCLUDE cudnn_frontend.h PATHS ${NVIDIA_WHEELS}/../include NO_DEFAULT_PATH)
foreach(need CUDA_INCLUDE CUDART_LIBRARY CUBLASLT_LIBRARY NCCL_LIBRARY NCCL_INCLUDE CUDNN_INCLUDE NVRTC_INCLUDE
    CUDNN_FRONTEND_INCLUDE)
  if(NOT ${need} OR NOT EXISTS ${${need}})
    message(STATUS "CUDA: ${need} not found, the GPU libraries are not built")
    return()
  endif()
endforeach()

set(CMAKE_CUDA_COMPILER ${nvcc})
if(NOT EXISTS ${cuda_root}/lib64)  # nvcc links with lib64 only; the wheel's folder is lib
  string(APPEND CMAKE_CUDA_FLAGS " -L${cuda_root}/lib")
endif()
set(CMAKE_CUDA_ARCHITECTURES 80-real 90-real 100)  # A100, H100 and H200, B200; PTX for later GPUs (kOldestGpuMajor)
set(CMAKE_CUDA_RUNTIME_LIBRARY None)
set(CMAKE_CUDA_STANDARD 17)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
set(CMAKE_CUDA_FLAGS_RELEASE "-O2")
enable_language(CUDA)
set(CUDA_BUILT ON)

add_library(deps::cudart INTERFACE IMPORTED)
target_include_directories(deps::cudart SYSTEM INTERFACE ${CUDA_INCLUDE})
target_link_libraries(deps::cudart INTERFACE ${CUDART_LIBRARY})
add_library(deps::nccl INTERFACE IMPORTED)
target_include_directories(deps::nccl SYSTEM INTERFACE ${NCCL_INCLUDE})
target_link_libraries(deps::nccl INTERFACE ${NCCL_LIBRARY} deps::cudart)
add_library(deps::cublaslt INTERFACE IMPORTED)
target_link_libraries(deps::cublaslt INTERFACE ${CUBLASLT_LIBRARY} deps::cudart)
add_library(deps::cudnn INTERFACE IMPORTED)
target_include_directories(deps::cudnn SYSTEM INTERFACE ${CUDNN_FRONTEND_INCLUDE} ${CUDNN_INCLUDE} ${CUDA_INCLUDE}
  ${NVRTC_INCLUDE})
target_link_libraries(deps::cudnn INTERFACE deps::cudart ${CMAKE_DL_LIBS})
add_library(deps::torch_cuda INTERFACE IMPORTED)
# libtorch_cuda.so registers its kernels when it is loaded; no symbol of it is referenced. Debian's gcc links with
# --as-needed, which would drop the library.
target_link_libraries(deps::torch_cuda INTERFACE deps::torch
  "-Wl,--push-state,--no-as-needed,${TORCH_DIR}/lib/libtorch_cuda.so,--pop-state"
  ${TORCH_DIR}/lib/libc10_cuda.so deps::cudart)

# Adds an object library, which the tests link, too, and a shared library of the same objects.
function(simplescale_gpu_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LINK" ${ARGN})
  add_library(${name}_objects OBJECT ${ARG_SOURCES})
  target_include_directories(${name}_objects PUBLIC ${CMAKE_SOURCE_DIR})
  target_link_libraries(${name}_objects PUBLIC training observe ${ARG_LINK})
  target_compile_options(${name}_objects PRIVATE
    $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall,-Wextra,-Werror -Werror=all-warnings
    -Xptxas=--warn-on-spills,--warning-as-error>)
  simplescale_flags(${name}_objects)
  add_library(${name} SHARED $<TARGET_OBJECTS:${name}_objects>)
  target_link_libraries(${name} PRIVATE ${name}_objects)
  simplescale_flags(${name})  # also links the sanitizer's library
  # Reports undefined symbols at link time instead of at run time.
  target_link_options(${name} PRIVATE -Wl,--no-undefined)
  set_target_properties(${name} ${name}_objects PROPERTIES LINKER_LANGUAGE CXX)
endfunction()

file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/model/cuda/*.cpp ${CMAKE_SOURCE_DIR}/model/cuda/*.cu)
# libtorch contains another version of cudnn-frontend: neither may take the other's functions.
set_source_files_properties(${CMAKE_SOURCE_DIR}/model/cuda/cudnn_attention.cpp PROPERTIES COMPILE_OPTIONS -fvisibility=hidden)
simplescale_gpu_library(simplescale_cuda SOURCES ${sources} LINK deps::torch_cuda deps::cublaslt deps::cudnn)

file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/transport/nccl/*.cpp ${CMAKE_SOURCE_DIR}/transport/nccl/*.cu)
if(sources)
  simplescale_gpu_library(simplescale_nccl SOURCES ${sources} ${CMAKE_SOURCE_DIR}/transport/collective/plan.cpp
    LINK deps::nccl)
endif()

if(EXISTS /proc/driver/nvidia/version)
  add_dependencies(programs simplescale_cuda)
  if(TARGET simplescale_nccl)
    add_dependencies(programs simplescale_nccl)
  endif()
endif()
