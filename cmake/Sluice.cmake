# Settings that all targets share (warnings, sanitizers, include root), and functions that keep the
# CMakeLists.txt of a folder short.

# In a unity build GCC takes a .cc file for a header, and would warn about its types with members
# from an anonymous namespace (subobject-linkage).
add_library(sluice_options INTERFACE)
target_include_directories(sluice_options INTERFACE "${CMAKE_SOURCE_DIR}")
target_compile_options(sluice_options INTERFACE
  "$<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Werror=return-type;-Wno-unused-parameter>"
  "$<$<COMPILE_LANGUAGE:CXX>:-Wno-missing-field-initializers;-Wno-subobject-linkage>")
if(SLUICE_SANITIZE)
  target_compile_options(sluice_options INTERFACE -fsanitize=${SLUICE_SANITIZE}
    -fno-omit-frame-pointer)
  target_compile_definitions(sluice_options INTERFACE SLUICE_SANITIZED=1)
  target_link_options(sluice_options INTERFACE -fsanitize=${SLUICE_SANITIZE})
endif()
if(SLUICE_SANITIZE MATCHES "undefined")
  target_compile_options(sluice_options INTERFACE -fno-sanitize-recover=all)
endif()
if(SLUICE_SANITIZE MATCHES "address" AND SLUICE_SANITIZE MATCHES "undefined")
  # AddressSanitizer finds these faults too. The two checks take a quarter of the compile time.
  target_compile_options(sluice_options INTERFACE -fno-sanitize=null,object-size)
endif()
if(SLUICE_FUZZ)
  target_compile_options(sluice_options INTERFACE -fsanitize=fuzzer-no-link)
endif()
if(SLUICE_SANITIZE STREQUAL "thread")
  # If this macro is defined, protobuf's map fields have members that the packaged library does not
  # have, because it was built without the macro.
  target_compile_options(sluice_options INTERFACE -U__SANITIZE_THREAD__)
  # Packaged libraries are not instrumented, so ThreadSanitizer does not see their locks.
  set(_suppressions suppressions=${CMAKE_SOURCE_DIR}/tests/tsan_suppressions.txt)
  set(SLUICE_TEST_ENVIRONMENT "TSAN_OPTIONS=${_suppressions}:ignore_noninstrumented_modules=1")
endif()
add_link_options(-fuse-ld=lld)

# Makes the library of a folder:
#   sluice_library(base SOURCES a.cc b.cc PUBLIC absl::status PRIVATE OpenSSL::Crypto)
# The target is sluice_base, with the alias sluice::base.
function(sluice_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;PUBLIC;PRIVATE" ${ARGN})
  if(ARG_SOURCES)
    add_library(sluice_${name} STATIC ${ARG_SOURCES})
    target_link_libraries(sluice_${name} PUBLIC sluice_options ${ARG_PUBLIC} PRIVATE ${ARG_PRIVATE})
  else()
    add_library(sluice_${name} INTERFACE)
    target_link_libraries(sluice_${name} INTERFACE sluice_options ${ARG_PUBLIC})
  endif()
  add_library(sluice::${name} ALIAS sluice_${name})
endfunction()

# Makes the bytes of files part of a library, so that the program needs no files at run time:
#   sluice_embed(controller NAMESPACE sluice::controller::page FILES ui/page/app.js)
# app.js becomes the absl::string_view app_js.
function(sluice_embed name)
  cmake_parse_arguments(ARG "" "NAMESPACE" "FILES" ${ARGN})
  list(TRANSFORM ARG_FILES PREPEND "${CMAKE_CURRENT_SOURCE_DIR}/")
  set(out "${CMAKE_CURRENT_BINARY_DIR}/${name}_embedded.cc")
  set(script "${CMAKE_SOURCE_DIR}/cmake/embed.cmake")
  add_custom_command(OUTPUT "${out}"
    COMMAND "${CMAKE_COMMAND}" "-DOUT=${out}" "-DNAMESPACE=${ARG_NAMESPACE}" "-DFILES=${ARG_FILES}"
      -P "${script}"
    DEPENDS ${ARG_FILES} "${script}" VERBATIM)
  target_sources(sluice_${name} PRIVATE "${out}")
endfunction()

# Adds the folder's op.cu to sluice_<name> if CUDA is enabled. As on the CPU, a multiply-add is
# fused only if the source says so. The library's CPU code is the reference of the CUDA checks.
function(sluice_cuda name)
  set_property(GLOBAL APPEND PROPERTY SLUICE_CUDA_REFERENCES "$<TARGET_FILE:sluice_${name}>")
  if(SLUICE_CUDA)
    target_sources(sluice_${name} PRIVATE op.cu)
    set_source_files_properties(op.cu PROPERTIES COMPILE_OPTIONS "--fmad=false")
    target_link_libraries(sluice_${name} PRIVATE CUDA::cudart)
    target_compile_definitions(sluice_${name} PUBLIC SLUICE_CUDA=1)
  endif()
endfunction()

# Sets `out` to the seconds that a test may take: three times as many with sanitizers, which slow it
# down.
function(sluice_timeout out seconds)
  if(SLUICE_SANITIZE)
    math(EXPR seconds "${seconds} * 3")
  endif()
  set(${out} ${seconds} PARENT_SCOPE)
endfunction()

# Makes one test binary:
#   sluice_test(base_test SOURCES a_test.cc LINK sluice::base LABEL integration TIMEOUT 60)
# Tests run with the source tree as SLUICE_SOURCE_DIR and the build's binaries as SLUICE_BIN_DIR.
# Each test runs in a process of its own, but for those that the filter TOGETHER matches: they share
# one process, because they share something that takes long to start.
function(sluice_test name)
  cmake_parse_arguments(ARG "" "LABEL;TIMEOUT;TOGETHER" "SOURCES;LINK" ${ARGN})
  if(ARG_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "sluice_test(${name}) does not know ${ARG_UNPARSED_ARGUMENTS}")
  endif()
  # One label alone: gtest_discover_tests would read a second one as the name of a property, and
  # drop the properties that follow it.
  if(NOT ARG_LABEL)
    set(ARG_LABEL unit)
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 60)
  endif()
  sluice_timeout(timeout ${ARG_TIMEOUT})
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE ${ARG_LINK} GTest::gmock GTest::gtest_main)
  target_compile_definitions(${name} PRIVATE SLUICE_SOURCE_DIR="${CMAKE_SOURCE_DIR}"
    SLUICE_BIN_DIR="${CMAKE_BINARY_DIR}/bin" $<$<BOOL:${SLUICE_FAILPOINTS}>:SLUICE_FAILPOINTS=1>)
  # -O1 compiles faster. Tests spend their time in the libraries, which keep their optimisation.
  target_compile_options(${name} PRIVATE $<$<CONFIG:Release>:-O1>)
  # CTest asks every binary for its tests before it runs the first one. The default limit of 5 s is
  # too short on a busy machine with a cold file cache.
  set(filter)
  if(ARG_TOGETHER)
    set(filter TEST_FILTER "-${ARG_TOGETHER}")
    add_test(NAME ${name}.together COMMAND ${name} --gtest_filter=${ARG_TOGETHER})
    set_tests_properties(${name}.together PROPERTIES LABELS "${ARG_LABEL}" TIMEOUT ${timeout}
      ENVIRONMENT "${SLUICE_TEST_ENVIRONMENT}")
  endif()
  gtest_discover_tests(${name} DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT 120 ${filter}
    PROPERTIES LABELS "${ARG_LABEL}" TIMEOUT ${timeout}
    ENVIRONMENT "${SLUICE_TEST_ENVIRONMENT}")
endfunction()

# Makes a program and a GPU test from the folder's cuda_check.cu if CUDA is enabled.
# tools/gpu_check.sh builds and runs the same program without CMake.
#   sluice_cuda_check(sample sluice::sample)
function(sluice_cuda_check name)
  if(SLUICE_CUDA)
    add_executable(${name}_cuda_check cuda_check.cu
      "${CMAKE_SOURCE_DIR}/tests/kernels/cuda/check_main.cu")
    target_link_libraries(${name}_cuda_check PRIVATE sluice_options ${ARGN} CUDA::cudart)
    add_test(NAME CudaCheckTest.${name} COMMAND ${name}_cuda_check)
    set_tests_properties(CudaCheckTest.${name}
      PROPERTIES LABELS gpu TIMEOUT 120 SKIP_RETURN_CODE 77)
  endif()
endfunction()

# Links a long-running program with jemalloc, except under sanitizers, which have their own
# allocator. Messages and payload are freed by other threads than those that allocated them, and
# glibc's malloc took a third of the queue's CPU time for that.
function(sluice_jemalloc name)
  if(NOT SLUICE_SANITIZE)
    target_link_libraries(${name} PRIVATE PkgConfig::JEMALLOC)
  endif()
endfunction()

# Makes a daemon from the folder's main.cc:  sluice_daemon(sluice-queue sluice::queue_service)
function(sluice_daemon name)
  add_executable(${name} main.cc)
  target_link_libraries(${name} PRIVATE ${ARGN})
  sluice_jemalloc(${name})
endfunction()
