# A regression gate: what differs, from which part of the step on, and which argument explains it.
sample="$GOLDEN/lw_muon_bf16_torch_dp2"
run() { step-replay run "$sample/ckpt" --grads "$sample/expected" --steps 1 --color never "$@"; echo "exit $?"; }
echo '{"weight_decay": 0.3}' > decay.json
echo '{"weight_decay": 0.3, "clip_grad": 1.0, "muon_num_ns_steps": 5}' > others.json
run --config decay.json -o stepped > /dev/null
run --config decay.json --expect stepped --junit same.xml
run --expect stepped --junit outcome.xml | grep -v "^elements"
cat same.xml outcome.xml | grep -v "^elements"
run --expect stepped --bisect others.json
run --expect stepped --bisect others.json --config decay.json
echo '{"num_layers": 3}' > layers.json
run --config layers.json
run --junit outcome.xml
run --expect stepped --junit "$PWD"
