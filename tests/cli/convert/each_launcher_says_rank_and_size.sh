from="$GOLDEN/lw_muon_bf16_torch_dp2/ckpt"
ckpt-convert "$from" whole --to torch_dist > /dev/null
# share OUT NAME=VALUE... [-- OPTION...]
share() {
  out=$1 variables=(); shift
  while [ $# != 0 ] && [ "$1" != -- ]; do variables+=("$1"); shift; done
  env "${variables[@]}" ckpt-convert "$from" $out --to torch_dist --distributed "${@:2}" > said
  echo "exit $?$(sed -n '1s/^\(.*\): torch -> .*/, \1/p; s/^this part/, this part/p' said | tr -d '\n')"
}
pair() { for rank in 1 0; do share $1 $2=$rank $3=2; done; diff -r whole $1 && echo "$1: equal"; }
pair torchrun RANK WORLD_SIZE
pair open_mpi OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_SIZE
pair pmi PMI_RANK PMI_SIZE
pair slurm SLURM_PROCID SLURM_NTASKS
pair kubernetes JOB_COMPLETION_INDEX JOB_COMPLETIONS

echo "== the first pair counts: torchrun, and mpirun, in a task of Slurm"
share first RANK=1 WORLD_SIZE=2 SLURM_PROCID=0 SLURM_NTASKS=5
share first OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=2 SLURM_PROCID=4 SLURM_NTASKS=5
diff -r whole first && echo "first: equal"

echo "== a rank without a size is no pair"
share second RANK=7 SLURM_PROCID=1 SLURM_NTASKS=2
share second RANK=7 SLURM_PROCID=0 SLURM_NTASKS=2
diff -r whole second && echo "second: equal"

echo "== no size, and one that is said"
share nothing JOB_COMPLETION_INDEX=1
share told JOB_COMPLETION_INDEX=1 -- --world-size 2
share told RANK=0 WORLD_SIZE=5 -- --world-size 2
diff -r whole told && echo "told: equal"
ls -A
