# Recorded steps from a checkpoint, from its resharded twin and from its twin in the other format.
sample="$GOLDEN/lw_muon_bf16_torch_dp2"
reshard "$sample/ckpt" four --dp 4 > /dev/null || exit
ckpt-convert "$sample/ckpt" dist --to torch_dist > /dev/null || exit
step-replay run "$sample/ckpt" --grads "$sample/expected" -o first > /dev/null || exit
for twin in four dist; do
  step-replay run "$twin" --grads "$sample/expected" --expect first --atol 0 > /dev/null
  echo "$twin: exit $?"
done
