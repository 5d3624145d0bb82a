# The Trainer of Hugging Face keeps the optimizer in a file beside model.safetensors.
tar -xJf "$GOLDEN/trainers.tar.xz" ./hf_trainer
ckpt-inspect groups hf_trainer/checkpoint-4 3 19
ckpt-inspect groups hf_trainer/checkpoint-4 --json | grep -E '"(file|elements|lr)":'
ckpt-inspect hf_trainer/checkpoint-4 | grep -A1 -E '^(format|optimizer|next)'
ckpt-inspect hf_trainer/checkpoint-4 --json | sed -n '/"optimizer": {/,/^  }/p'
ckpt-inspect show hf_trainer/checkpoint-4 --include 'lm_head*' --stats
ckpt-inspect lineage hf_trainer --verbose 2> log | grep -E 'FOLDER|^checkpoint.*complete|^optimizer|\.pt:/state/20'
# Two of Accelerate's; a link that leads out of the folder; a file that ends early.
mkdir two linked cut
for to in two linked cut; do cp hf_trainer/checkpoint-2/model.safetensors $to; done
cp hf_trainer/checkpoint-2/optimizer.pt two/optimizer.bin
cp hf_trainer/checkpoint-4/optimizer.pt two/optimizer_1.bin
ckpt-inspect groups two --limit 0 | grep group
ln -s ../hf_trainer/checkpoint-2/optimizer.pt linked/optimizer.pt
ckpt-inspect groups linked || echo $?
ckpt-inspect groups linked --follow-links --limit 0 | grep group
head -c 20000 hf_trainer/checkpoint-2/optimizer.pt > cut/optimizer.pt
ckpt-inspect groups cut || echo $?
ckpt-inspect cut | grep -A1 status
mkdir root && cp -r cut root/checkpoint-2 && ckpt-inspect lineage root
