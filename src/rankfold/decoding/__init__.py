"""Questions asked of potentials, one file each: a function that answers for every structure by one table.

| file | in it |
|---|---|
| `dispatch` | which function answers for which recursion; derivatives of log Z, which most answers are |
| `posterior`, `viterbi`, `k_best`, `mbr`, `sample`, `counts`, `entropy` | the question of that name |
| `online`, `generate`, `prefix` | streams and next words; sentences drawn from a model; how a sentence goes on |
| `segment_table`, `parsed_tree` | segments with their posteriors; brackets and labels of one sentence |
| `query` | all of them as methods: the result of `model(words)` |
"""
