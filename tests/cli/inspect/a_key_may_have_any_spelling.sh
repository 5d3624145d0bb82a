for key in /module_sd/0.bias module_sd.0.bias module_sd/0/bias user.b.2.t; do
  ckpt-inspect show "$GOLDEN/torch_save_zip/zip.pt" $key | head -1
done
for key in /args/@muon_momentum args.muon_momentum mp_rank_00/model_optim_rng.pt:args/muon_momentum; do
  ckpt-inspect show "$GOLDEN/lw_muon_bf16_torch_dp2/ckpt" $key
done
ckpt-inspect show "$GOLDEN/lw_muon_bf16_torch_dist_dp2/ckpt" rng_state.shard_0.0_1.1 /decoder/final_layernorm/weight --json | grep '"key"'
