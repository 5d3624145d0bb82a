from="$GOLDEN/lw_muon_bf16_torch_dp2/ckpt"
programs() {
  env "$@" ckpt-convert "$from" out --to torch_dist; echo "exit $?"
  env "$@" reshard "$from" out_dp4 --dp 4; echo "exit $?"
  env "$@" ckpt-inspect verify "$from"; echo "exit $?"
  env "$@" ckpt-inspect hash "$from"; echo "exit $?"
}
programs A=B > whole.said
mv out whole && mv out_dp4 whole_dp4
grep -E '^(wrote|sound|exit)' whole.said
for pair in "RANK WORLD_SIZE" "OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_SIZE" "PMI_RANK PMI_SIZE" "SLURM_PROCID SLURM_NTASKS" "JOB_COMPLETION_INDEX JOB_COMPLETIONS"; do
  set -- $pair
  programs $1=1 $2=2 > said
  diff whole.said said && diff -r whole out && diff -r whole_dp4 out_dp4 && echo "$1=1 $2=2: whole runs"
  rm -r out out_dp4
done
ls -A
