for word in tree verify groups latest; do ckpt-inspect $word x || echo $?; done
ckpt-inspect hash x -c hashes.json || echo $?
