include(GenerateExportHeader)

# shardwise_library(TARGET HEADER NAMESPACE): what every shared library of ours has: its name in the
# package, HEADER generated with the macro that exports, its public headers, a SONAME, and symbols
# of NAMESPACE alone.
function(shardwise_library target header namespace)
  set(generated "${CMAKE_CURRENT_BINARY_DIR}/include")
  add_library(shardwise::${target} ALIAS ${target})
  generate_export_header(${target} EXPORT_FILE_NAME "${generated}/${header}")
  target_include_directories(${target}
    PUBLIC $<BUILD_INTERFACE:${CMAKE_CURRENT_SOURCE_DIR}/include> $<BUILD_INTERFACE:${generated}>
           $<BUILD_INTERFACE:${CMAKE_CURRENT_SOURCE_DIR}/internal>
           $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  set_target_properties(${target} PROPERTIES VERSION ${PROJECT_VERSION} SOVERSION 0)
  if(NOT SHARDWISE_STATIC)
    shardwise_export_only(${target} ${namespace})
  endif()
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
