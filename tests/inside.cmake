# What is tested from inside, and needs neither programs nor LibTorch.

# The rooms of libckpt.
shardwise_tests(ckpt_test SOURCES ckpt/*_test.cc LIBRARIES ckpt_internal LABELS unit)
shardwise_tests(corrupt_test SOURCES corrupt/*_test.cc LIBRARIES ckpt_internal LABELS corrupt ALONE)

# Conversions on a system that fails, and power that does.
shardwise_tests(faults_test SOURCES faults/*.cc
  LIBRARIES training_internal LABELS faults TIMEOUT 600 ALONE)
# Apart from these, since it replaces operator new.
shardwise_tests(allocations_test SOURCES faults/allocations/*.cc
  LIBRARIES training_internal LABELS faults TIMEOUT 1200)

# Fuzz targets: programs of libFuzzer under the preset `fuzz` (clang), else tests that run what the
# fuzzer has found worth keeping.
foreach(target pickle zip dist_metadata safetensors folder flat_buffers store_reply)
  add_executable(fuzz_${target} fuzz/${target}.cc)
  target_include_directories(fuzz_${target} PRIVATE "${CMAKE_CURRENT_SOURCE_DIR}")
  if(target STREQUAL flat_buffers)
    target_link_libraries(fuzz_${target} PRIVATE training_internal shardwise_warnings)
  else()
    target_link_libraries(fuzz_${target} PRIVATE ckpt_internal shardwise_warnings)
  endif()
  target_compile_definitions(fuzz_${target} PRIVATE
    SHARDWISE_GOLDEN_DIR="${CMAKE_CURRENT_SOURCE_DIR}/golden")
  if(SHARDWISE_FUZZ)
    target_link_options(fuzz_${target} PRIVATE -fsanitize=fuzzer)
  else()
    target_sources(fuzz_${target} PRIVATE fuzz/replay.cc)
    add_test(NAME fuzz_corpus/${target}
      COMMAND fuzz_${target} "${CMAKE_CURRENT_SOURCE_DIR}/fuzz/corpus/${target}")
    set_tests_properties(fuzz_corpus/${target} PROPERTIES LABELS corrupt TIMEOUT 120)
  endif()
endforeach()

# The semantic fuzzer in one process; by commands, with PyTorch as the oracle, below.
add_executable(semantic_in_process semantic/in_process.cc semantic/state_dict_case.cc
  semantic/layer_wise_case.cc semantic/layer_wise_mutations.cc semantic/random_state.cc
  semantic/save_state.cc semantic/encode_state.cc semantic/facts.cc semantic/listed.cc)
target_include_directories(semantic_in_process PRIVATE "${CMAKE_CURRENT_SOURCE_DIR}")
target_link_libraries(semantic_in_process PRIVATE training_internal shardwise_warnings)
target_compile_definitions(semantic_in_process PRIVATE
  SHARDWISE_GOLDEN_DIR="${CMAKE_CURRENT_SOURCE_DIR}/golden")
set(cases_of_state_dict 1500)
set(cases_of_layer_wise 200)
if(SHARDWISE_SANITIZE)  # about ten times as slow
  set(cases_of_state_dict 400)
  set(cases_of_layer_wise 100)
endif()
foreach(kind state_dict layer_wise)
  add_test(NAME semantic_in_process/${kind}
    COMMAND semantic_in_process ${kind} 1 ${cases_of_${kind}})
  set_tests_properties(semantic_in_process/${kind} PROPERTIES LABELS unit TIMEOUT 600)
endforeach()
# Cases that were wrong once.
foreach(seed 900229)
  add_test(NAME semantic_in_process/state_dict_${seed}
    COMMAND semantic_in_process state_dict ${seed} 1)
  set_tests_properties(semantic_in_process/state_dict_${seed} PROPERTIES LABELS unit TIMEOUT 60)
endforeach()

# What the tools share; what they print is tested in cli.
shardwise_tests(tools_test SOURCES tools/*_test.cc LIBRARIES tools_inspect LABELS unit ALONE)

# liboptim and libtraining; of a state that Megatron recorded, layout_test below.
shardwise_tests(optim_layout_tests SOURCES optim/*_test.cc
  LIBRARIES training_internal nlohmann_json::nlohmann_json LABELS unit TIMEOUT 1200)
