# Training by several processes is optional: by MPI on CPUs, by NCCL on GPUs. Without them stubs are linked that say so.
# Sets CAROPE_RANKS_SOURCES and CAROPE_RANKS_LIBRARIES.
set(CAROPE_RANKS_SOURCES)
set(CAROPE_RANKS_LIBRARIES)

set(carope_with_mpi OFF)
if(NOT CAROPE_MPI STREQUAL "OFF")
  find_package(MPI QUIET COMPONENTS CXX)
  set(carope_with_mpi ${MPI_CXX_FOUND})
  if(CAROPE_MPI STREQUAL "ON" AND NOT carope_with_mpi)
    message(FATAL_ERROR "CAROPE_MPI is ON but no MPI was found: install OpenMPI (libopenmpi-dev, openmpi-bin), or set "
                        "MPI_CXX_COMPILER to its mpicxx")
  endif()
endif()
if(carope_with_mpi)
  list(APPEND CAROPE_RANKS_SOURCES ${CMAKE_CURRENT_SOURCE_DIR}/src/dist/mpi.cpp)
  list(APPEND CAROPE_RANKS_LIBRARIES ${MPI_CXX_LIBRARIES})
  # For this file alone: all others are compiled as without MPI.
  set_source_files_properties(src/dist/mpi.cpp PROPERTIES INCLUDE_DIRECTORIES "${MPI_CXX_INCLUDE_DIRS}"
                              COMPILE_DEFINITIONS OMPI_SKIP_MPICXX)
  message(STATUS "MPI: yes (${MPI_CXX_VERSION}, ${MPI_CXX_COMPILER})")
else()
  list(APPEND CAROPE_RANKS_SOURCES ${CMAKE_CURRENT_SOURCE_DIR}/src/dist/no_mpi.cpp)
  message(STATUS "MPI: no")
endif()

set(carope_with_nccl OFF)
if(carope_with_cuda AND NOT CAROPE_NCCL STREQUAL "OFF")
  find_path(NCCL_INCLUDE_DIR nccl.h HINTS ${NCCL_ROOT} ${CUDAToolkit_INCLUDE_DIRS} PATH_SUFFIXES include)
  find_library(NCCL_LIBRARY NAMES nccl libnccl.so.2 HINTS ${NCCL_ROOT} ${CUDAToolkit_LIBRARY_DIR}
               PATH_SUFFIXES lib lib64)
  mark_as_advanced(NCCL_INCLUDE_DIR NCCL_LIBRARY)
  if(NCCL_INCLUDE_DIR AND NCCL_LIBRARY)
    set(carope_with_nccl ON)
  endif()
endif()
if(CAROPE_NCCL STREQUAL "ON" AND NOT carope_with_nccl)
  message(FATAL_ERROR "CAROPE_NCCL is ON but NCCL, or the CUDA toolkit, was not found: install libnccl-dev, or set "
                      "NCCL_ROOT to where NCCL is")
endif()
if(carope_with_nccl)
  list(APPEND CAROPE_RANKS_SOURCES ${CMAKE_CURRENT_SOURCE_DIR}/src/dist/nccl.cpp)
  list(APPEND CAROPE_RANKS_LIBRARIES ${NCCL_LIBRARY})
  set_source_files_properties(src/dist/nccl.cpp PROPERTIES INCLUDE_DIRECTORIES
                              "${NCCL_INCLUDE_DIR};${CUDAToolkit_INCLUDE_DIRS}")
  message(STATUS "NCCL: yes (${NCCL_LIBRARY})")
else()
  list(APPEND CAROPE_RANKS_SOURCES ${CMAKE_CURRENT_SOURCE_DIR}/src/dist/no_nccl.cpp)
  message(STATUS "NCCL: no")
endif()
