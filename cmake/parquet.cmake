# Reading Parquet is optional: without Arrow's library the program links a stub that says how to get it.
# Sets CAROPE_PARQUET_SOURCES and CAROPE_PARQUET_LIBRARIES.
set(carope_oldest_arrow 12.0)  # the first that verifies checksums of pages

set(CAROPE_PARQUET_LIBRARIES)
if(NOT CAROPE_PARQUET STREQUAL "OFF")
  find_package(Arrow CONFIG QUIET)
  find_package(Parquet CONFIG QUIET)
  if(Arrow_FOUND AND Parquet_FOUND AND Arrow_VERSION VERSION_GREATER_EQUAL carope_oldest_arrow)
    foreach(target Parquet::parquet_shared Parquet::parquet_static parquet_shared parquet_static)
      if(TARGET ${target} AND NOT CAROPE_PARQUET_LIBRARIES)
        set(CAROPE_PARQUET_LIBRARIES ${target})
        set(carope_arrow_found "Arrow ${Arrow_VERSION}, ${Arrow_DIR}")
      endif()
    endforeach()
  endif()

  # The wheel of pyarrow holds the library and its headers.
  if(NOT CAROPE_PARQUET_LIBRARIES)
    string(CONCAT carope_ask_pyarrow
           "import pyarrow as a, os; lib = os.path.join(a.get_library_dirs()[0], 'lib%s.so.' + "
           "a.cpp_build_info.so_version); "
           "print(a.__version__, a.get_include(), lib % 'arrow', lib % 'parquet', sep='\\n')")
    foreach(python ${CAROPE_PYTHON} ${PROJECT_SOURCE_DIR}/build/python/bin/python python3)
      execute_process(COMMAND ${python} -c "${carope_ask_pyarrow}" OUTPUT_VARIABLE carope_pyarrow
                      RESULT_VARIABLE carope_failed ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE)
      if(carope_failed)
        continue()
      endif()
      string(REPLACE "\n" ";" carope_pyarrow "${carope_pyarrow}")
      list(POP_FRONT carope_pyarrow version include arrow parquet)
      if(version VERSION_GREATER_EQUAL carope_oldest_arrow AND EXISTS ${include}/parquet/api/reader.h
         AND EXISTS ${arrow} AND EXISTS ${parquet})
        add_library(carope_arrow SHARED IMPORTED)
        set_target_properties(carope_arrow PROPERTIES IMPORTED_LOCATION ${arrow})
        add_library(carope_parquet SHARED IMPORTED)
        set_target_properties(carope_parquet PROPERTIES IMPORTED_LOCATION ${parquet}
                              INTERFACE_INCLUDE_DIRECTORIES ${include})
        target_link_libraries(carope_parquet INTERFACE carope_arrow)
        set(CAROPE_PARQUET_LIBRARIES carope_parquet)
        set(carope_arrow_found "pyarrow ${version}, ${include}")
        break()
      endif()
    endforeach()
  endif()

  if(CAROPE_PARQUET STREQUAL "ON" AND NOT CAROPE_PARQUET_LIBRARIES)
    message(FATAL_ERROR "CAROPE_PARQUET is ON but neither Arrow's C++ library nor pyarrow, of version "
                        "${carope_oldest_arrow} or later, was found: install libparquet-dev, or pyarrow with pip "
                        "and set CAROPE_PYTHON to its Python")
  endif()
endif()

if(CAROPE_PARQUET_LIBRARIES)
  set(CAROPE_PARQUET_SOURCES ${CMAKE_CURRENT_SOURCE_DIR}/src/data/corpus/parquet.cpp)
  message(STATUS "Parquet: yes (${carope_arrow_found})")
else()
  set(CAROPE_PARQUET_SOURCES ${CMAKE_CURRENT_SOURCE_DIR}/src/data/corpus/no_parquet.cpp)
  message(STATUS "Parquet: no")
endif()
