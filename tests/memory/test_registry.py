"""Names that stand for one thing: what may be added, and what is refused."""

import pytest

from bathyal.memory.errors import ConfigError
from bathyal.memory.registry import Registry


def test_things_are_added_found_and_taken_back():
    registry = Registry("colour", {"red": 1, "green": 2})
    registry.add("deep-blue", 3)
    registry.add("deep-blue", 3)
    assert dict(registry) == {"red": 1, "green": 2, "deep-blue": 3}
    assert registry.find("deep-blue") == 3
    registry.remove("deep-blue")
    assert list(registry) == ["red", "green"]


@pytest.mark.parametrize("name", ["", "two words", "a:b", 5])
def test_names_that_are_none(name):
    with pytest.raises(ConfigError, match="letters, digits"):
        Registry("colour", {}).add(name, 1)


def test_a_name_stands_for_one_thing():
    registry = Registry("colour", {"red": 1})
    registry.add("blue", 2)
    for name in ("red", "blue"):
        with pytest.raises(ConfigError, match="not taken"):
            registry.add(name, 3)
    for name in ("red", "yellow"):
        with pytest.raises(ConfigError, match="an added one \\('blue'\\)"):
            registry.remove(name)
    with pytest.raises(ConfigError, match="red"):
        registry.find("rde")


@pytest.mark.parametrize(
    "change",
    [
        lambda r: r.__setitem__("red", 2),
        lambda r: r.__delitem__("red"),
        lambda r: r.pop("red"),
        lambda r: r.popitem(),
        lambda r: r.clear(),
        lambda r: r.update(red=2),
        lambda r: r.setdefault("blue", 2),
        lambda r: r.__ior__({"blue": 2}),
    ],
)
def test_what_changes_a_dict_is_refused(change):
    registry = Registry("colour", {"red": 1})
    with pytest.raises(TypeError, match="added by `add`"):
        change(registry)
    assert registry == {"red": 1}
