"""Grammars: roots and words (`root_leaves`), rules of any distribution (`softmax`), in factors (`factored`), partly of
low rank (`low_rank`), and all of them given a vector (`compound`).
"""
