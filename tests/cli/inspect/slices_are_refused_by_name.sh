ckpt-inspect show "$GOLDEN/lw_muon_bf16_torch_dist_dp2/ckpt" 'embedding.word_embeddings.weight[0:4, :8]' || echo $?
ckpt-inspect show "$GOLDEN/lw_muon_bf16_torch_dist_dp2/ckpt" 'embedding.word_embeddings.wieght[0:4]' || echo $?
