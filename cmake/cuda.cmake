# The CUDA part is optional: without nvcc the library links a stub that says so.
# Sets CAROPE_CUDA_SOURCES and CAROPE_CUDA_LIBRARIES.
set(carope_with_cuda OFF)
if(NOT CAROPE_CUDA STREQUAL "OFF")
  include(CheckLanguage)
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    execute_process(COMMAND ${CMAKE_CUDA_COMPILER} --version OUTPUT_VARIABLE carope_nvcc_says)
    string(REGEX MATCH "release ([0-9.]+)" carope_nvcc_release "${carope_nvcc_says}")
    set(carope_nvcc_version ${CMAKE_MATCH_1})
  endif()
  if(carope_nvcc_version VERSION_GREATER_EQUAL 12.0)  # the first with C++20
    set(carope_with_cuda ON)
  elseif(CAROPE_CUDA STREQUAL "ON")
    message(FATAL_ERROR "CAROPE_CUDA is ON but no CUDA compiler of version 12.0 or later was found (found: "
                        "'${carope_nvcc_version}'): install the CUDA toolkit and put nvcc on PATH, or set "
                        "CMAKE_CUDA_COMPILER")
  endif()
endif()

if(carope_with_cuda)
  if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES AND NOT DEFINED ENV{CUDAARCHS})
    # The GPUs at hand from sm_80 on. Without any: PTX that every GPU's driver since sm_80 can compile, and code for Hopper.
    execute_process(COMMAND nvidia-smi --query-gpu=compute_cap --format=csv,noheader
                    OUTPUT_VARIABLE carope_gpus ERROR_QUIET RESULT_VARIABLE carope_no_gpus)
    string(REGEX MATCHALL "[0-9]+\\.[0-9]+" carope_gpus "${carope_gpus}")
    string(REPLACE "." "" carope_gpus "${carope_gpus}")
    list(FILTER carope_gpus EXCLUDE REGEX "^[1-7][0-9]$")
    if(carope_no_gpus OR NOT carope_gpus)
      set(CMAKE_CUDA_ARCHITECTURES 80-virtual 90a-real)
    else()
      list(TRANSFORM carope_gpus REPLACE "^90$" "90a")  # with Hopper's own instructions
      list(REMOVE_DUPLICATES carope_gpus)
      list(TRANSFORM carope_gpus APPEND "-real" OUTPUT_VARIABLE CMAKE_CUDA_ARCHITECTURES)
    endif()
  endif()
  enable_language(CUDA)
  if(NOT DEFINED CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # some versions of CMake do not know nvcc's C++20
    set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
    set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
  endif()
  # fmt 9 takes nvcc for a compiler without constexpr and then does not compile as C++20.
  target_compile_definitions(carope_options INTERFACE $<$<COMPILE_LANGUAGE:CUDA>:FMT_USE_CONSTEXPR=1>)
  find_package(CUDAToolkit REQUIRED)
  file(GLOB_RECURSE CAROPE_CUDA_SOURCES CONFIGURE_DEPENDS src/*.cu src/*_cuda.cpp)
  list(FILTER CAROPE_CUDA_SOURCES EXCLUDE REGEX "/no_cuda\\.cpp$")
  set(CAROPE_CUDA_LIBRARIES CUDA::cudart_static CUDA::cublasLt)
  message(STATUS "CUDA part: yes (${CMAKE_CUDA_COMPILER_ID} ${CMAKE_CUDA_COMPILER_VERSION}, for ${CMAKE_CUDA_ARCHITECTURES})")
else()
  file(GLOB CAROPE_CUDA_SOURCES CONFIGURE_DEPENDS src/*/no_cuda.cpp)
  set(CAROPE_CUDA_LIBRARIES)
  message(STATUS "CUDA part: no")
endif()
