weights="$GOLDEN/lw_muon_bf16_torch_dp2/expected/state.safetensors"
for step in 10 9 100; do
  mkdir -p hf/checkpoint-$step
  cp "$weights" hf/checkpoint-$step/model.safetensors
  printf '{"epoch": 0.5, "global_step": %s, "log_history": [{"loss": NaN}]}' $step >hf/checkpoint-$step/trainer_state.json
done
mkdir hf/runs hf/checkpoint-last hf/checkpoint-3
mv hf/checkpoint-100 hf/checkpoint-101
ckpt-inspect lineage hf --quick
ckpt-inspect lineage hf --quick --json | head -24
mkdir -p others/epoch_1 others/step_20 others/global_step_5/actor others/global_step7
cp "$weights" others/epoch_1
cp "$weights" others/step_20
touch others/global_step_5/actor/model_world_size_2_rank_0.pt others/global_step7/mp_rank_00_model_states.pt
ckpt-inspect lineage others --quick
mkdir none
ckpt-inspect lineage none || echo $?
