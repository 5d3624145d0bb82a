CKPT="$GOLDEN/lw_muon_bf16_torch_dist_dp2/ckpt"
ckpt-inspect show "$CKPT" 'decoder.layers.mlp.linear_fc1.weight[:, ::32, 0:3]' --values all
ckpt-inspect show "$CKPT" 'embedding.word_embeddings.weight[:, :4]' --values 6
ckpt-inspect show "$CKPT" 'embedding.word_embeddings.weight[:, :4]' --values 8
ckpt-inspect show "$CKPT" 'embedding.word_embeddings.weight[0:0]' --values all
ckpt-inspect show "$CKPT" 'embedding.word_embeddings.weight[:, :2]' --values 3 --json
ckpt-inspect show "$GOLDEN/torch_save_zip/zip.pt" /dtypes/complex64 /dtypes/bool --values all
ckpt-inspect show "$GOLDEN/torch_save_zip/zip.pt" /dtypes/complex64 /dtypes/bool --values 1 --json
ckpt-inspect show "$CKPT" output_layer.weight --values some || echo $?
