ckpt-inspect ls x --sort color || echo $?
ckpt-inspect ls x --limit -1 || echo $?
ckpt-inspect diff x y --atol -1 || echo $?
ckpt-inspect diff x y --rtol nan || echo $?
ckpt-inspect ls x -j many || echo $?
ckpt-inspect x --iteration -5 || echo $?
