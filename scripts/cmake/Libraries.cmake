# shardwise_library(TARGET NAMESPACE...): what every shared library of ours has: a SONAME, and
# symbols of NAMESPACEs alone.
function(shardwise_library target)
  set_target_properties(${target} PROPERTIES VERSION ${PROJECT_VERSION} SOVERSION 0)
  shardwise_export_only(${target} ${ARGN})
endfunction()

# shardwise_archive(NAME DEPENDENCY...): NAME_objects as the archive NAME_internal with all headers,
# for our programs, and for tests that replace what a library stands on.
function(shardwise_archive name)
  add_library(${name}_internal STATIC EXCLUDE_FROM_ALL $<TARGET_OBJECTS:${name}_objects>)
  target_include_directories(${name}_internal
    PUBLIC include internal src "${CMAKE_CURRENT_BINARY_DIR}/include")
  target_link_libraries(${name}_internal PUBLIC ${ARGN})
endfunction()

# shardwise_headers(TARGET NAME EXPORTS): its name in the package, its public headers, and EXPORTS,
# generated, with the macros NAME_EXPORT and NAME_PRIVATE: in and out of the shared library.
function(shardwise_headers target name exports)
  set(generated "${CMAKE_CURRENT_BINARY_DIR}/include")
  file(CONFIGURE OUTPUT "${generated}/${exports}" CONTENT
    "#pragma once
#define ${name}_EXPORT __attribute__((visibility(\"default\")))
#define ${name}_PRIVATE __attribute__((visibility(\"hidden\")))\n")
  add_library(shardwise::${target} ALIAS ${target})
  get_target_property(type ${target} TYPE)
  set(scope PUBLIC)
  if(type STREQUAL "INTERFACE_LIBRARY")
    set(scope INTERFACE)
  endif()
  target_include_directories(${target}
    ${scope} $<BUILD_INTERFACE:${CMAKE_CURRENT_SOURCE_DIR}/include> $<BUILD_INTERFACE:${generated}>
             $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
endfunction()

# shardwise_read(FILE VARIABLE): the text of FILE; a change of it configures again.
function(shardwise_read file variable)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${file}")
  file(READ "${file}" text)
  set(${variable} "${text}" PARENT_SCOPE)
endfunction()

# shardwise_texts(SOURCES FILE NAMESPACE {CONSTANT VARIABLE}...): generates FILE, in which each
# CONSTANT, a std::string_view of NAMESPACE, is the text of VARIABLE, and adds it to SOURCES.
function(shardwise_texts added_to file namespace)
  set(code "#include <string_view>\nnamespace ${namespace} {\n")
  while(ARGN)
    list(POP_FRONT ARGN constant variable)
    string(APPEND code "extern const std::string_view ${constant};\n"
           "const std::string_view ${constant} = R\"text(@${variable}@)text\";\n")
  endwhile()
  file(CONFIGURE OUTPUT "${file}" @ONLY CONTENT "${code}}\n")
  set(${added_to} ${${added_to}} "${CMAKE_CURRENT_BINARY_DIR}/${file}" PARENT_SCOPE)
endfunction()
