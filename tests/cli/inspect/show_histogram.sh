CKPT="$GOLDEN/lw_muon_bf16_torch_dist_dp2/ckpt"
ckpt-inspect show "$CKPT" --histogram optimizer.state.exp_avg.output_layer.weight
ckpt-inspect show "$CKPT" --histogram 'embedding.word_embeddings.weight[0]' --json
ckpt-inspect show "$GOLDEN/torch_save_zip/zip.pt" --histogram /dtypes/complex64
ckpt-inspect show "$GOLDEN/torch_save_zip/zip.pt" --histogram /dtypes/bool
