CKPT="$GOLDEN/lw_muon_bf16_torch_dist_dp2/ckpt"
ckpt-inspect show "$CKPT" 'embedding.word_embeddings.weight[0:4, :8]'
ckpt-inspect show "$CKPT" 'embedding/word_embeddings/weight[1, 2]' --json
ckpt-inspect show "$CKPT" 'embedding.word_embeddings.weight[64]' || echo $?
ckpt-inspect show "$CKPT" 'embedding.word_embeddings.weight[::0]' || echo $?
ckpt-inspect show "$CKPT" 'embedding.word_embeddings.weight[0, 0, 0]' || echo $?
ckpt-inspect show "$CKPT" 'embedding.word_embeddings.wieght[0:4]' || echo $?
ckpt-inspect show "$CKPT" 'common.pt:/args[0]' || echo $?
