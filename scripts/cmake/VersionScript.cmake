# shardwise_export_only(TARGET NAMESPACE): the shared library exports nothing but symbols of this
# C++ namespace. Hidden visibility alone is not enough: libstdc++ gives its templates default
# visibility, so that each library would export the instantiations that it happens to use. Patterns
# are mangled names of the Itanium ABI: functions and objects (_ZN, _ZNK), vtables, type
# information and thunks.
function(shardwise_export_only target namespace)
  string(LENGTH "${namespace}" length)
  set(name "${length}${namespace}")
  set(map "${CMAKE_CURRENT_BINARY_DIR}/${target}.map")
  set(patterns "")
  foreach(prefix _ZN _ZNK _ZTVN _ZTIN _ZTSN _ZTTN)
    string(APPEND patterns "${prefix}${name}*; ")
  endforeach()
  string(APPEND patterns "_ZTh*N${name}*; _ZTv*N${name}*; _ZTc*N${name}*;")
  file(CONFIGURE OUTPUT "${map}" CONTENT "{ global: ${patterns} local: *; };\n")
  target_link_options(${target} PRIVATE "LINKER:--version-script=${map}")
  set_property(TARGET ${target} APPEND PROPERTY LINK_DEPENDS "${map}")
endfunction()
