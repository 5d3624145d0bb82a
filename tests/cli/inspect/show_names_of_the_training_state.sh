for ckpt in lw_muon_bf16_torch_dist_dp2 lw_muon_bf16_torch_dp2 do_adam_bf16_torch_dist_dp_reshardable_dp2; do
  ckpt-inspect show "$GOLDEN/$ckpt/ckpt" 'decoder.layers.1.self_attention.linear_qkv.weight[0, :4]'
done
CKPT="$GOLDEN/do_adam_bf16_torch_dist_dp_reshardable_dp2/ckpt"
ckpt-inspect show "$CKPT" 'optimizer.state.*.decoder.layers.0.mlp.linear_fc2.weight[0, :4]' --values all
ckpt-inspect show "$CKPT" decoder.layers.7.mlp.linear_fc2.weight || echo $?
ckpt-inspect show "$CKPT" --logical '*.output_layer.weight[0:1, 0]' --values all --json
ckpt-inspect show "$GOLDEN/torch_save_zip/zip.pt" --logical 'dtypes.bool' --values all
