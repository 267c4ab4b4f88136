"""How formats differ, in lines that are few, short and harmless."""

from kvpool_agent.policy.difference import MAX_LINES, MAX_TEXT, differences


def test_each_field_that_differs_is_named_with_both_values() -> None:
    here = {"dtype": "float32", "model": "m", "parallel": {"tensor": 1, "pipeline": 1}, "seed": "", "only": 1}
    there = {"dtype": "bfloat16", "model": "m", "parallel": {"tensor": 2, "pipeline": 1}, "seed": "00", "new": [1]}
    assert differences(here, there) == [
        "dtype: float32 here, bfloat16 there",
        "new: none here, [1] there",
        "only: 1 here, none there",
        "parallel.tensor: 1 here, 2 there",
        'seed: "" here, 00 there',
    ]
    assert differences(here, here) == []


def test_what_a_stranger_says_is_cut_and_carries_no_control_characters() -> None:
    there = {f"f{n:03}": "x" for n in range(100)} | {"a\x1b[2J": "\x1b]0;title\x07\n" + "y" * 10_000}
    lines = differences({}, there)
    assert len(lines) == MAX_LINES + 1
    assert lines[-1] == f"and {101 - MAX_LINES} fields more"
    assert all(line.isprintable() and len(line) < 3 * MAX_TEXT for line in lines)


def test_fields_as_deep_as_can_be_are_compared() -> None:
    deep: dict[str, object] = {}
    for _ in range(200):
        deep = {"a": deep}
    (line,) = differences({"a": 1}, deep)[:1]
    assert line == "a: 1 here, none there"
    assert len(differences({}, deep)) == 1
