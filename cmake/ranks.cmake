# Training by several processes is optional: by MPI on CPUs, by NCCL on GPUs. Without them stubs are linked that say so.
# Sets CAROPE_RANKS_SOURCES and CAROPE_RANKS_LIBRARIES.
set(CAROPE_RANKS_SOURCES)
set(CAROPE_RANKS_LIBRARIES)

set(carope_with_mpi OFF)
if(NOT CAROPE_MPI STREQUAL "OFF")
  set(MPI_CXX_SKIP_MPICXX ON)  # C's interface is all that is used
  find_package(MPI QUIET COMPONENTS CXX)
  set(carope_with_mpi ${MPI_CXX_FOUND})
  if(CAROPE_MPI STREQUAL "ON" AND NOT carope_with_mpi)
    message(FATAL_ERROR "CAROPE_MPI is ON but no MPI was found: install OpenMPI (libopenmpi-dev, openmpi-bin), or set "
                        "MPI_CXX_COMPILER to its mpicxx")
  endif()
endif()
if(carope_with_mpi)
  list(APPEND CAROPE_RANKS_SOURCES ${CMAKE_CURRENT_SOURCE_DIR}/src/dist/mpi.cpp)
  list(APPEND CAROPE_RANKS_LIBRARIES MPI::MPI_CXX)
  message(STATUS "MPI: yes (${MPI_CXX_VERSION}, ${MPI_CXX_COMPILER})")
else()
  list(APPEND CAROPE_RANKS_SOURCES ${CMAKE_CURRENT_SOURCE_DIR}/src/dist/no_mpi.cpp)
  message(STATUS "MPI: no")
endif()
