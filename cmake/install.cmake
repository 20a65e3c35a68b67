# `cmake --install` (./simplescale install --prefix DIR) and the Debian package (./simplescale package). The programs lie
# together in lib/simplescale, as in the build folder; bin has a link.
#
#   programs    the programs, completion for bash, zsh and fish, the man page
#   gpu         the GPU libraries, if they are built
#   libraries   copies of libtorch and what it needs. Without this component the programs use those that they were built with.
set(home lib/simplescale)
set(CMAKE_SKIP_INSTALL_ALL_DEPENDENCY TRUE)  # installs what is built, instead of building all tests first
set_target_properties(simplescale simplescale-compute PROPERTIES INSTALL_RPATH "$ORIGIN;${TORCH_DIR}/lib")
install(TARGETS simplescale simplescale-compute RUNTIME_DEPENDENCY_SET libraries
  RUNTIME DESTINATION ${home} COMPONENT programs)
install(RUNTIME_DEPENDENCY_SET libraries PRE_EXCLUDE_REGEXES "^ld-linux" "^libcuda\\.so"
  POST_EXCLUDE_REGEXES "^/lib" "^/usr/lib" LIBRARY DESTINATION ${home} COMPONENT libraries)
if(CUDA_BUILT)
  foreach(library simplescale_cuda simplescale_nccl)
    set_target_properties(${library} PROPERTIES INSTALL_RPATH "$ORIGIN" INSTALL_RPATH_USE_LINK_PATH TRUE)
    install(TARGETS ${library} LIBRARY DESTINATION ${home} COMPONENT gpu OPTIONAL)
  endforeach()
endif()
if(TARGET simplescale_parquet)
  set_target_properties(simplescale_parquet PROPERTIES INSTALL_RPATH "$ORIGIN" INSTALL_RPATH_USE_LINK_PATH TRUE)
  install(TARGETS simplescale_parquet LIBRARY DESTINATION ${home} COMPONENT programs OPTIONAL)
endif()
install(CODE [[
  set(root $ENV{DESTDIR}${CMAKE_INSTALL_PREFIX})
  set(program ${root}/lib/simplescale/simplescale)
  file(MAKE_DIRECTORY ${root}/bin)
  file(CREATE_LINK ../lib/simplescale/simplescale ${root}/bin/simplescale SYMBOLIC)
  function(write_text file)  # file, then the arguments of the program that prints the text
    cmake_path(GET file PARENT_PATH folder)
    file(MAKE_DIRECTORY ${root}/${folder})
    execute_process(COMMAND ${program} ${ARGN} OUTPUT_FILE ${root}/${file} COMMAND_ERROR_IS_FATAL ANY)
  endfunction()
  write_text(share/bash-completion/completions/simplescale completion bash)
  write_text(share/zsh/site-functions/_simplescale completion zsh)
  write_text(share/fish/vendor_completions.d/simplescale.fish completion fish)
  write_text(share/man/man1/simplescale.1 man)
]] COMPONENT programs)

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME simplescale)
set(CPACK_PACKAGE_CONTACT "simplescale <simplescale@localhost>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "pretrains Llama models on many nodes and keeps training while machines fail")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_INSTALL_CMAKE_PROJECTS "${CMAKE_BINARY_DIR};simplescale;programs;/;${CMAKE_BINARY_DIR};simplescale;libraries;/")
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_COMPRESSION_TYPE zstd)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS "${TORCH_DIR}/lib")
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS "gnuplot-nox, bible-kjv, curl, libucx0")
include(CPack)
