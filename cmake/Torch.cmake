# Defines sluice::torch, one interface target for LibTorch. The wheel's own CMake files are not
# used: in a CUDA wheel they require CUDA even if only the CPU is used, and add their own flags.
#
# Works with the CPU wheel and with the CUDA wheel, whose libraries need those of the nvidia-*
# wheels beside it.

if(NOT EXISTS "${SLUICE_TORCH}/include/torch/csrc/api/include/torch/torch.h")
  message(FATAL_ERROR
    "LibTorch not found in ${SLUICE_TORCH}. Run tools/test.sh, or pass -DSLUICE_TORCH=DIR "
    "(DIR/include, DIR/lib).")
endif()

# Torch's include directory contains an old google/protobuf. A directory that contains only a link
# to the right one is searched first.
set(_protobuf_first "${CMAKE_BINARY_DIR}/protobuf-first")
file(MAKE_DIRECTORY "${_protobuf_first}")
list(GET Protobuf_INCLUDE_DIRS 0 _protobuf_include)
file(CREATE_LINK "${_protobuf_include}/google" "${_protobuf_first}/google" SYMBOLIC)

add_library(sluice_torch INTERFACE)
add_library(sluice::torch ALIAS sluice_torch)
target_include_directories(sluice_torch SYSTEM BEFORE INTERFACE "${_protobuf_first}")
target_include_directories(sluice_torch SYSTEM INTERFACE
  "${SLUICE_TORCH}/include" "${SLUICE_TORCH}/include/torch/csrc/api/include")
foreach(_lib torch torch_cpu c10)
  target_link_libraries(sluice_torch INTERFACE "${SLUICE_TORCH}/lib/lib${_lib}.so")
endforeach()

if(EXISTS "${SLUICE_TORCH}/lib/libtorch_cuda.so")
  target_link_libraries(sluice_torch INTERFACE "${SLUICE_TORCH}/lib/libc10_cuda.so"
    -Wl,--no-as-needed "${SLUICE_TORCH}/lib/libtorch_cuda.so" -Wl,--as-needed)
  # The wheels nvidia-cudnn, nvidia-cublas and others are beside torch in site-packages. Their lib
  # folders are added to the rpath.
  file(GLOB _nvidia_libs LIST_DIRECTORIES true "${SLUICE_TORCH}/../nvidia/*/lib"
    "${SLUICE_TORCH}/../nvidia/lib")
  foreach(_dir IN LISTS _nvidia_libs)
    target_link_options(sluice_torch INTERFACE "-Wl,-rpath,${_dir}" "-Wl,-rpath-link,${_dir}")
  endforeach()
  if(NOT _nvidia_libs AND NOT SLUICE_CUDA)
    message(WARNING
      "LibTorch in ${SLUICE_TORCH} is a CUDA build, and no nvidia-* wheels lie beside it: "
      "libcudart, libcublas and libcudnn must be on the loader's path. "
      "`ldd ${SLUICE_TORCH}/lib/libtorch_cuda.so | grep 'not found'` names what is missing.")
  endif()
endif()
