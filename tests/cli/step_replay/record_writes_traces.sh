# Recorded steps are replayed with the same bits, from the middle of a run and from its start.
sample="$GOLDEN/lw_muon_bf16_torch_dp2"
record() { step-replay record "$sample/ckpt" --grads "$sample/expected" "$@"; echo "exit $?"; }
record --steps 2 -o middle
step-replay check middle/*.json --atol 0 --color never
record --from-init --grad-norm recorded -o start
step-replay check start/*.json --atol 0 --color never
record -o start
ls
python3 - <<'END'
import json
trace = json.load(open("middle/optimizer1_group0.json"))
print(trace["config"]["class"], trace["first_step"], len(trace["rates"]), len(trace["params"]))
END
