# latest, --iteration and report --lineage know the roots that lineage knows.
tar -xJf "$GOLDEN/trainers.tar.xz"
ckpt-inspect latest hf_trainer
ckpt-inspect latest torchtitan --json
ckpt-inspect hf_trainer --iteration 4 | sed -n '1p;/^run/p'
ckpt-inspect groups torchtitan --iteration 6 --limit 0 | head -1
ckpt-inspect verify torchtitan --iteration 2 --quiet && echo sound
ckpt-inspect ls hf_trainer --iteration 5 || echo $?
ckpt-inspect report hf_trainer --lineage --json > page
grep -E '"path": .*safetensors"' page | sort -u; grep -c '"kind": "not_finite"' page
head -c 900 hf_trainer/checkpoint-6/model.safetensors > cut && mv cut hf_trainer/checkpoint-6/model.safetensors
ckpt-inspect latest hf_trainer
# Of two namings nobody knows which is newer; what is not read is not called incomplete.
mkdir -p both deepspeed/global_step7
cp -r hf_trainer/checkpoint-2 both/epoch_1
cp -r hf_trainer/checkpoint-4 both/step_1
ckpt-inspect latest both || echo $?
ckpt-inspect ls both --iteration 1 || echo $?
touch deepspeed/global_step7/mp_rank_00_model_states.pt
ckpt-inspect latest deepspeed || echo $?
mkdir verl && mkdir -p verl/global_step_20/actor && cp -r torchtitan/step-4 verl/global_step_20/actor/dist_ckpt
ckpt-inspect latest verl
ckpt-inspect ls verl --iteration 20 --limit 1 | tail -1
