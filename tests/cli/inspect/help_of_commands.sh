for command in ls show tree verify hash diff groups latest report; do ckpt-inspect $command --help; done
