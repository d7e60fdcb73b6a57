"""Initial distributions and transitions of chains: free tables, which EM can maximise (`free_tables`), and networks
(`transitions`, on the feature maps of `features`); the factors of rank space (`rank_factors`).
"""
