# Attention through cuDNN is optional: it takes cuDNN and the headers of cudnn-frontend. Without them a stub is linked
# and the program's own kernels serve. Adds to CAROPE_CUDA_SOURCES and CAROPE_CUDA_LIBRARIES.
set(carope_oldest_cudnn 9.6)           # the first whose backward pass clears its own sums
set(carope_oldest_cudnn_frontend 1.13) # the first with SDPA_attributes::set_generate_stats

# Sets `result` to the version that a header defines with these three macros.
function(carope_version_in header macros result)
  file(STRINGS ${header} lines REGEX "#define +(${macros}) +[0-9]+")
  string(REGEX REPLACE "[^;]* ([0-9]+)[^;]*" "\\1" numbers "${lines}")
  list(JOIN numbers "." version)
  set(${result} ${version} PARENT_SCOPE)
endfunction()

if(carope_with_cuda)
  set(carope_cudnn_missing "CAROPE_CUDNN is OFF")
  if(NOT CAROPE_CUDNN STREQUAL "OFF")
    # Wheels put cudnn-frontend's headers into include/ and cuDNN into nvidia/cudnn/.
    set(carope_wheels)
    foreach(python ${CAROPE_PYTHON} ${PROJECT_SOURCE_DIR}/build/python/bin/python python3)
      execute_process(COMMAND ${python} -c "import site; print(*site.getsitepackages(), sep=';')"
                      OUTPUT_VARIABLE carope_site RESULT_VARIABLE carope_failed ERROR_QUIET
                      OUTPUT_STRIP_TRAILING_WHITESPACE)
      if(NOT carope_failed)
        list(APPEND carope_wheels ${carope_site})
      endif()
    endforeach()
    list(TRANSFORM carope_wheels APPEND /nvidia/cudnn OUTPUT_VARIABLE carope_cudnn_wheels)

    find_path(CUDNN_INCLUDE_DIR cudnn_version.h HINTS ${CUDNN_ROOT} ${CUDAToolkit_INCLUDE_DIRS}
              PATHS ${carope_cudnn_wheels} PATH_SUFFIXES include)
    find_library(CUDNN_LIBRARY NAMES cudnn libcudnn.so.9 HINTS ${CUDNN_ROOT} ${CUDAToolkit_LIBRARY_DIR}
                 PATHS ${carope_cudnn_wheels} PATH_SUFFIXES lib lib64)
    find_path(CUDNN_FRONTEND_INCLUDE_DIR cudnn_frontend_version.h HINTS ${CUDNN_FRONTEND_ROOT}
              PATHS ${carope_wheels} ${CUDAToolkit_INCLUDE_DIRS} PATH_SUFFIXES include)
    mark_as_advanced(CUDNN_INCLUDE_DIR CUDNN_LIBRARY CUDNN_FRONTEND_INCLUDE_DIR)

    set(carope_cudnn_missing)
    if(NOT CUDNN_INCLUDE_DIR OR NOT CUDNN_LIBRARY)
      set(carope_cudnn_missing "cuDNN was not found")
    else()
      carope_version_in(${CUDNN_INCLUDE_DIR}/cudnn_version.h "CUDNN_MAJOR|CUDNN_MINOR|CUDNN_PATCHLEVEL"
                        carope_cudnn_version)
      if(carope_cudnn_version VERSION_LESS carope_oldest_cudnn)
        set(carope_cudnn_missing "cuDNN ${carope_cudnn_version} is older than ${carope_oldest_cudnn}")
      elseif(NOT CUDNN_FRONTEND_INCLUDE_DIR)
        set(carope_cudnn_missing "the headers of cudnn-frontend were not found")
      else()
        carope_version_in(${CUDNN_FRONTEND_INCLUDE_DIR}/cudnn_frontend_version.h
                          "CUDNN_FRONTEND_(MAJOR|MINOR|PATCH)_VERSION" carope_cudnn_frontend_version)
        if(carope_cudnn_frontend_version VERSION_LESS carope_oldest_cudnn_frontend)
          set(carope_cudnn_missing
              "cudnn-frontend ${carope_cudnn_frontend_version} is older than ${carope_oldest_cudnn_frontend}")
        elseif(NOT TARGET CUDA::nvrtc)  # cudnn-frontend calls it
          set(carope_cudnn_missing "the CUDA toolkit has no libnvrtc")
        endif()
      endif()
    endif()
    if(CAROPE_CUDNN STREQUAL "ON" AND carope_cudnn_missing)
      message(FATAL_ERROR "CAROPE_CUDNN is ON but ${carope_cudnn_missing}: install cuDNN and, with pip, "
                          "nvidia-cudnn-frontend, and set CUDNN_ROOT and CUDNN_FRONTEND_ROOT to where they are, or "
                          "CAROPE_PYTHON to the Python that has them")
    endif()
  endif()

  if(carope_cudnn_missing)
    list(APPEND CAROPE_CUDA_SOURCES ${CMAKE_CURRENT_SOURCE_DIR}/src/ops/attention/no_cudnn.cpp)
    message(STATUS "cuDNN: no (${carope_cudnn_missing})")
  else()
    add_library(carope_cudnn UNKNOWN IMPORTED)
    set_target_properties(carope_cudnn PROPERTIES IMPORTED_LOCATION ${CUDNN_LIBRARY}
                          INTERFACE_INCLUDE_DIRECTORIES "${CUDNN_INCLUDE_DIR};${CUDNN_FRONTEND_INCLUDE_DIR}")
    list(APPEND CAROPE_CUDA_LIBRARIES carope_cudnn CUDA::nvrtc)
    list(APPEND CAROPE_CUDA_SOURCES ${CMAKE_CURRENT_SOURCE_DIR}/src/ops/attention/attention_cudnn.cpp)
    # Without writing graphs as JSON, of which cudnn-frontend brings a library of its own. Its headers are the slowest
    # to compile of all, and what they hold only hands work to the GPU.
    set_source_files_properties(src/ops/attention/attention_cudnn.cpp PROPERTIES
                                COMPILE_DEFINITIONS CUDNN_FRONTEND_SKIP_JSON_LIB COMPILE_OPTIONS -O1)
    message(STATUS "cuDNN: yes (${carope_cudnn_version}, ${CUDNN_LIBRARY}; cudnn-frontend "
                   "${carope_cudnn_frontend_version}, ${CUDNN_FRONTEND_INCLUDE_DIR})")
  endif()
elseif(CAROPE_CUDNN STREQUAL "ON")
  message(FATAL_ERROR "CAROPE_CUDNN is ON but the CUDA part is not built: set CAROPE_CUDA to ON")
endif()
