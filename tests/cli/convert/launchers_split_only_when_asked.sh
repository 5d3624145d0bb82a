quiet() { "$@" > said; code=$?; grep -vE '^(not carried|changed|everything)' said; rm said; return $code; }
from="$GOLDEN/torch_save_zip/zip.pt"
convert() { quiet ckpt-convert "$from" "$@" --to torch_dist; echo "exit $?"; }
RANK=1 WORLD_SIZE=2 convert a
RANK=1 WORLD_SIZE=2 convert b --distributed
RANK=0 WORLD_SIZE=2 convert b --distributed
SLURM_PROCID=0 SLURM_NTASKS=1 convert c --distributed
OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=1 convert d --distributed
PMI_RANK=0 PMI_SIZE=1 convert e --distributed
JOB_COMPLETION_INDEX=0 JOB_COMPLETIONS=1 convert f --distributed
JOB_COMPLETION_INDEX=0 convert g --distributed --world-size 1
ls -A
