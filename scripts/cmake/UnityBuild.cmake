# shardwise_unity(TARGET): compiles the sources of each folder together, so
# that what they include is compiled once. Large folders make several groups; a source's group
# depends on its name alone: a new file moves another one only where it makes one more group.
# SHARDWISE_UNITY=OFF compiles each file alone.
#
# What an anonymous namespace names must be unique in the folder. Sources with options of their own
# are compiled alone.
option(SHARDWISE_UNITY "compile the sources of a folder together" ON)
set(SHARDWISE_UNITY_FILES 10)

function(shardwise_unity target)
  if(NOT SHARDWISE_UNITY)
    return()
  endif()
  get_target_property(sources ${target} SOURCES)
  list(FILTER sources INCLUDE REGEX "\\.cc$")
  foreach(source IN LISTS sources)
    get_filename_component(folder "${source}" DIRECTORY)
    # The same names, and so the same order in an archive, wherever the work tree lies.
    string(REPLACE "${PROJECT_SOURCE_DIR}/" "" folder "${folder}")
    string(MD5 folder "${folder}")
    list(APPEND files_${folder} "${source}")
    list(APPEND folders ${folder})
  endforeach()
  list(REMOVE_DUPLICATES folders)
  foreach(folder IN LISTS folders)
    list(LENGTH files_${folder} count)
    math(EXPR groups "(${count} + ${SHARDWISE_UNITY_FILES} - 1) / ${SHARDWISE_UNITY_FILES}")
    foreach(source IN LISTS files_${folder})
      get_filename_component(name "${source}" NAME)
      string(MD5 hash "${name}")
      string(SUBSTRING "${hash}" 0 4 hash)
      math(EXPR group "0x${hash} % ${groups}")
      set_source_files_properties("${source}" PROPERTIES UNITY_GROUP ${folder}_${group})
    endforeach()
  endforeach()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
  # It takes the file that includes the sources for a header.
  target_compile_options(${target} PRIVATE $<$<CXX_COMPILER_ID:GNU>:-Wno-subobject-linkage>)
endfunction()
