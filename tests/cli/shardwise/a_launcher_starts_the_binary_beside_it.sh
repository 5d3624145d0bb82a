shardwise=$(command -v shardwise)
mkdir wheel elsewhere
ln -s "$shardwise" wheel/shardwise
cp "$(dirname "$shardwise")/launcher" wheel/reshard
ln -s ../wheel/reshard elsewhere/mine
elsewhere/mine --help | sed -n '/^Usage/p'
elsewhere/mine nowhere out --dp 2 || echo $?
rm wheel/shardwise
elsewhere/mine --version || echo $?
