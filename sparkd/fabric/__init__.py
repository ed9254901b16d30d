"""Over which network the ranks of a gang meet: chosen for every launch, for each node. All of it is pure.

`networks.py` finds what nodes have in common, `cards.py` what a card can do, `gids.py` the entry of a port's
table that NCCL has to use; `choice.py` puts them together, `findings.py` says what speaks against it, and
`pins.py` verifies what people gave instead.
"""
