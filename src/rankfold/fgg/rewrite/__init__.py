"""Grammars from grammars: conjunction with queries (`query`, `query_grammar`, `conjoin`), factors by their ranks
(`decompose`), several as one (`merge`), ranks in place of states (`rank_space`)."""
