ckpt-inspect show "$GOLDEN/lw_muon_bf16_torch_dist_dp2/ckpt" decoder.layers.mlp.linear_fc.weight || echo $?
ckpt-inspect show "$GOLDEN/lw_muon_bf16_torch_dp2/ckpt" args.muon_momentun || echo $?
ckpt-inspect show "$GOLDEN/torch_save_zip/zip.pt" module_sd.0.wieght --json || echo $?
ckpt-inspect ls "$GOLDEN/torch_save_zip/zip.pt" --include module_sd.0.wieght --include '*nothing*' || echo $?
ckpt-inspect hash "$GOLDEN/torch_save_zip/zip.pt" --include module_sd.0.wieght || echo $?
ckpt-inspect diff "$GOLDEN/torch_save_zip/zip.pt" "$GOLDEN/torch_save_zip/zip.pt" --include module_sd.0.wieght || echo $?
ckpt-inspect verify "$GOLDEN/torch_save_zip/zip.pt" --include module_sd.0.wieght || echo $?
