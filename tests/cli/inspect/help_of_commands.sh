for command in ls show tree verify hash diff groups latest; do ckpt-inspect $command --help; done
