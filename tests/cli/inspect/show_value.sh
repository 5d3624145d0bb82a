ckpt-inspect show "$GOLDEN/lw_muon_bf16_torch_dp2/ckpt" /args/@muon_momentum /args/@attention_backend \
  mp_rank_00/layer_wise_optimizer_1.pt:/0/optimizer/param_groups/0/params
