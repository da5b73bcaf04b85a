"""Token shards: a corpus that was tokenized once, as a folder of files that training reads piece by piece."""
