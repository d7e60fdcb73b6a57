"""Where a chain starts and how it goes on: free tables, which EM can maximise (`free_tables`), and networks
(`transitions`, on the feature maps of `features`); the factors of rank space (`rank_factors`).
"""
