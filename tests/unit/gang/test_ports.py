from itertools import permutations

from sparkd.gang.preflight import spread


def test_names_of_the_same_letters_start_at_different_ports() -> None:
    names = ["".join(letters) for letters in permutations("model")]
    starts = {spread(name, 399) for name in names}
    # 120 names on 399 ports by chance: about 104 different ones.
    assert len(starts) > 80
    assert all(0 <= start < 399 for start in starts)
