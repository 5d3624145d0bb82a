# Each changed field is refused with what was expected and what was found.
changed() {  # TRACE FROM TO
  sed "0,/$2/s//$3/" "$GOLDEN/steps/$1.json" > trace.json
  step-replay check trace.json; echo "$3: exit $?"
}
cp "$GOLDEN/steps/adamw_decoupled_b2_0.95.safetensors" trace.safetensors
adam=adamw_decoupled_b2_0.95 muon=muon_split_qkv_nesterov
changed $adam '"qkv_params"' '"unknown_field": 1, "qkv_params"'
changed $adam '"eps": 1e-08' '"eps": -1'
changed $adam '"lr": 0.01' '"lr": "0.01"'
changed $adam '"lr": 0.01' '"lr": 0.01, "lr": 0.02'
changed $adam '"lr": 0.01' '"lr": 0.01, "amsgrad": true'
changed $adam '0.95$' '1.5'
changed $muon '"num_ns_steps": 5' '"num_ns_steps": 5.9'
changed $muon '"num_ns_steps": 5' '"num_ns_steps": 1000000000'
changed $muon '"nesterov": true' '"nesterov": "yes"'
changed $muon '^   4,' '   -1,'
step-replay check trace.json --json; echo "exit $?"
