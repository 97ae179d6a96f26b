# Flags that every target of the project shares, as the interface target carope_options.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release)
endif()

add_library(carope_options INTERFACE)
function(carope_cxx_options)
  foreach(option ${ARGN})
    target_compile_options(carope_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:${option}>)
  endforeach()
endfunction()

carope_cxx_options(-Wall -Wextra)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # Until it has used 300 MB the compiler need not look for memory it could use again, which takes a twentieth of its time.
  carope_cxx_options(--param=ggc-min-heapsize=300000)
endif()
# Loops over square roots and comparisons vectorise only without errno and floating-point traps.
carope_cxx_options(-fno-math-errno -fno-trapping-math)
if(CAROPE_NATIVE)
  carope_cxx_options(-march=native)
endif()
if(CAROPE_SANITIZE)
  # What a null pointer or the end of an object would be noticed by, the address sanitizer sees anyway.
  carope_cxx_options(-fsanitize=address,undefined -fno-sanitize=null,object-size -fno-sanitize-recover=all
                     -fno-omit-frame-pointer)
  target_link_options(carope_options INTERFACE -fsanitize=address,undefined)
endif()
