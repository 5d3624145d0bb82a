# shardwise_export_only(TARGET NAMESPACE...): the shared library exports nothing but symbols of
# these C++ namespaces. Hidden visibility alone is not enough: libstdc++ gives its templates default
# visibility, so that each library would export the instantiations that it happens to use. Patterns
# are mangled names of the Itanium ABI: functions and objects (_ZN, _ZNK), vtables, type
# information and thunks; not names of types (_ZTSN), which are compared as texts.
function(shardwise_export_only target)
  set(map "${CMAKE_CURRENT_BINARY_DIR}/${target}.map")
  set(patterns "")
  foreach(namespace IN LISTS ARGN)
    string(LENGTH "${namespace}" length)
    set(name "${length}${namespace}")
    foreach(prefix _ZN _ZNK _ZTVN _ZTIN _ZTTN)
      string(APPEND patterns "${prefix}${name}*; ")
    endforeach()
    string(APPEND patterns "_ZTh*N${name}*; _ZTv*N${name}*; _ZTc*N${name}*; ")
  endforeach()
  file(CONFIGURE OUTPUT "${map}" CONTENT "{ global: ${patterns} local: *; };\n")
  target_link_options(${target} PRIVATE "LINKER:--version-script=${map}")
  set_property(TARGET ${target} APPEND PROPERTY LINK_DEPENDS "${map}")
endfunction()
