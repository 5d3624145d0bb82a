CKPT="$GOLDEN/lw_muon_bf16_torch_dist_dp2/ckpt"
ckpt-inspect show "$CKPT" --stats '*linear_fc1.bias' 'output_layer.weight[0]' common.pt:/args
ckpt-inspect show "$CKPT" --stats --logical '*.output_layer.weight'
ckpt-inspect show "$CKPT" --stats --include 'decoder.final*' --json
ckpt-inspect show "$CKPT" --stats --values 3 || echo $?
ckpt-inspect show "$GOLDEN/torch_save_zip/zip.pt" --stats '/dtypes/c*' '/dtypes/float*'
