# Third-party libraries. CAF and libtorch, which have no usable CMake package, become imported targets under deps::.
find_program(CCACHE ccache)
if(CCACHE)
  set(CMAKE_C_COMPILER_LAUNCHER ${CCACHE})
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CCACHE})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CCACHE})
endif()
find_program(MOLD mold)
if(MOLD)
  add_link_options(-fuse-ld=mold)
endif()

find_package(Threads REQUIRED)
find_package(CapnProto REQUIRED)
find_package(spdlog REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(CLI11 REQUIRED)
find_package(PkgConfig REQUIRED)
pkg_check_modules(sentencepiece REQUIRED IMPORTED_TARGET sentencepiece)
pkg_check_modules(pcre2 REQUIRED IMPORTED_TARGET libpcre2-8)
pkg_check_modules(utf8proc REQUIRED IMPORTED_TARGET libutf8proc)
pkg_check_modules(tomlplusplus REQUIRED IMPORTED_TARGET tomlplusplus)
pkg_check_modules(archive REQUIRED IMPORTED_TARGET libarchive)
pkg_check_modules(zlib REQUIRED IMPORTED_TARGET zlib)
pkg_check_modules(xxhash REQUIRED IMPORTED_TARGET libxxhash)
pkg_check_modules(httplib REQUIRED IMPORTED_TARGET cpp-httplib)
pkg_check_modules(sodium REQUIRED IMPORTED_TARGET libsodium)
pkg_check_modules(crypto REQUIRED IMPORTED_TARGET libcrypto)
pkg_check_modules(curl REQUIRED IMPORTED_TARGET libcurl)
pkg_check_modules(pugixml REQUIRED IMPORTED_TARGET pugixml)
pkg_check_modules(libedit REQUIRED IMPORTED_TARGET libedit)
pkg_check_modules(ucx REQUIRED IMPORTED_TARGET ucx)

# CAF ships no CMake config.
find_library(CAF_CORE caf_core REQUIRED)
find_library(CAF_IO caf_io REQUIRED)
find_path(CAF_INCLUDE caf/all.hpp REQUIRED)
add_library(deps::caf UNKNOWN IMPORTED)
set_target_properties(deps::caf PROPERTIES IMPORTED_LOCATION ${CAF_CORE}
  INTERFACE_INCLUDE_DIRECTORIES ${CAF_INCLUDE} INTERFACE_LINK_LIBRARIES Threads::Threads)
add_library(deps::caf_io UNKNOWN IMPORTED)  # only for the benchmarks, as a baseline
set_target_properties(deps::caf_io PROPERTIES IMPORTED_LOCATION ${CAF_IO}
  INTERFACE_LINK_LIBRARIES deps::caf)

# Apache Arrow comes from the Python wheel of pyarrow, which may be missing: then parquet cannot be read.
file(GLOB ARROW_DIR ${SIMPLESCALE_DEPS}/python/lib/python3*/site-packages/pyarrow)
if(ARROW_DIR)
  file(GLOB libraries ${ARROW_DIR}/libparquet.so.* ${ARROW_DIR}/libarrow.so.*)
  add_library(deps::arrow INTERFACE IMPORTED)
  target_include_directories(deps::arrow SYSTEM INTERFACE ${ARROW_DIR}/include)
  target_link_libraries(deps::arrow INTERFACE ${libraries})
  target_link_options(deps::arrow INTERFACE -Wl,-rpath,${ARROW_DIR})
endif()

# libtorch comes from the Python wheel. Its CMake package requires nvcc, so this file names the libraries.
file(GLOB TORCH_DIR ${SIMPLESCALE_DEPS}/python/lib/python3*/site-packages/torch)
if(DEFINED ENV{SIMPLESCALE_EARLY})  # while the wheels are being installed: for what needs no libtorch
  set(TORCH_DIR)
elseif(NOT TORCH_DIR)
  message(FATAL_ERROR "no libtorch under ${SIMPLESCALE_DEPS}: run ./simplescale build, which installs it")
endif()
add_library(deps::torch INTERFACE IMPORTED)
# Searched after the system's headers: the wheel contains other versions of libraries such as fmt.
target_compile_options(deps::torch INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:SHELL:-idirafter \"${TORCH_DIR}/include\">"
  "$<$<COMPILE_LANGUAGE:CXX>:SHELL:-idirafter \"${TORCH_DIR}/include/torch/csrc/api/include\">")
target_link_libraries(deps::torch INTERFACE ${TORCH_DIR}/lib/libtorch_cpu.so ${TORCH_DIR}/lib/libc10.so)
target_link_options(deps::torch INTERFACE -Wl,-rpath,${TORCH_DIR}/lib
  -Wl,--allow-shlib-undefined)
target_compile_definitions(deps::torch INTERFACE _GLIBCXX_USE_CXX11_ABI=1)
