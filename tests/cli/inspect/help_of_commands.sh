for command in ls show hash diff; do ckpt-inspect $command --help; done
