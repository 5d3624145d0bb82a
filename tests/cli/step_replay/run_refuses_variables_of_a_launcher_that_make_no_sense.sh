sample="$GOLDEN/lw_muon_bf16_torch_dp2"
export MASTER_ADDR=127.0.0.1 MASTER_PORT=1
for variables in "RANK=2 WORLD_SIZE=2" "RANK=x WORLD_SIZE=2" "RANK=0 WORLD_SIZE=0" \
                 "RANK=0 WORLD_SIZE=2 MASTER_PORT=99999"; do
  env $variables step-replay run "$sample/ckpt" --grads "$sample/expected" --from-init
  echo "exit $?"
done
