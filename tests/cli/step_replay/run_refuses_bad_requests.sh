sample="$GOLDEN/lw_muon_bf16_torch_dp2"
run() { step-replay run "$sample/ckpt" --grads "$sample/expected" "$@" > /dev/null; echo "exit $?"; }
run --dp 0
run --steps 0
run --steps 4
run --spawn 0
run --atol -1
run --grad-norm mine
run --config x.json
run --expect nowhere
run --expect nowhere --spawn 2
mkdir there
run -o there
step-replay run "$sample/ckpt" --grads nowhere; echo "exit $?"
step-replay run nowhere --grads "$sample/expected"; echo "exit $?"
step-replay run "$sample/expected/state.safetensors" --grads "$sample/expected"; echo "exit $?"
