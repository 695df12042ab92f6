import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bathyal.memory.errors import ConfigError
from bathyal.memory.sizes import format_size, format_size_exact, parse_size


@pytest.mark.parametrize(
    ("value", "nbytes"),
    [
        (1, 1),
        (2**40, 2**40),
        (np.int64(4096), 4096),
        ("123", 123),
        ("123 B", 123),
        ("1 GiB", 2**30),
        ("400MiB", 400 * 2**20),
        ("512 KiB", 512 * 2**10),
        ("512 kiB", 512 * 2**10),
        ("2 TiB", 2 * 2**40),
        ("1.5 GB", 1_500_000_000),
        ("1.5 GiB", 3 * 2**29),
        ("3 kB", 3000),
        ("3 KB", 3000),
        ("7 MB", 7_000_000),
        ("1 TB", 10**12),
        ("  0.5 GiB  ", 2**29),
        ("1.0000000001 B", 1),
        ("0.1 GB", 100_000_000),  # exact, though 0.1 is no binary fraction
        ("8388607 TiB", 8388607 * 2**40),
    ],
)
def test_sizes_that_make_sense(value, nbytes):
    parsed = parse_size(value)
    assert parsed == nbytes
    assert type(parsed) is int


@pytest.mark.parametrize(
    ("value", "hint"),
    [
        (True, ""),
        (np.bool_(True), ""),
        (None, ""),
        (b"1 GiB", ""),
        (0, "at least one byte"),
        (-5, "at least one byte"),
        ("0 GiB", "at least one byte"),
        ("0.3 B", "at least one byte"),
        (2**63, "2**63"),
        pytest.param(10**5000, "2**63", id="huge"),
        pytest.param(-(10**5000), "at least one byte", id="minus huge"),
        ("9999999 TiB", "2**63"),
        (1e9, "int(1000000000.0) = 1000000000"),
        (1.5, "text with a unit"),
        (math.nan, "text with a unit"),
        (math.inf, "text with a unit"),
        ("NaN", "digits"),
        ("inf", "digits"),
        ("", "digits"),
        ("GiB", "digits"),
        ("-1 GiB", "no sign"),
        ("+1 GiB", "no sign"),
        ("1e9", "no exponent"),
        ("1,5 GiB", "digits"),
        ("1 000 MiB", "digits"),
        ("1. GiB", "digits"),
        ("٣ GiB", "digits"),
        pytest.param("9" * 10_000, "digits", id="long"),
        ("1 GiB 2", "digits"),
        ("12 parsecs", "Units are B"),
        ("1 Gb", 'reads as bits; if bytes are meant, write "GB"'),
        ("1 gb", 'reads as bits; if bytes are meant, write "GB"'),
        ("1 mb", 'write "MB"'),
        ("1 gib", 'reads as bits; if bytes are meant, write "GiB"'),
        ("1 Gib", 'write "GiB"'),
        ("1 Gbit", 'reads as bits; if bytes are meant, write "GB"'),
        ("1 Gibit", 'reads as bits; if bytes are meant, write "GiB"'),
        ("1 Mbits", "reads as bits"),
        ("1 b", "reads as bits"),
        ("1 gB", 'Write "GB"'),
        ("1 GIB", 'Write "GiB"'),
        ("1 G", 'write "GiB" (powers of two) or "GB"'),
        ("1 Gi", 'write "GiB" (powers of two) or "GB"'),
    ],
)
def test_what_is_refused_says_where_and_what_to_write(value, hint):
    with pytest.raises(ConfigError) as caught:
        parse_size(value, "budget")
    assert caught.value.where == "budget"
    assert hint in caught.value.hint
    assert len(str(caught.value)) < 400


def test_a_message_about_an_enormous_text_stays_short():
    with pytest.raises(ConfigError) as caught:
        parse_size("9" * 10_000)
    assert len(caught.value.actual) < 100


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (0, "0 B"),
        (17, "17 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (400 * 2**20, "400.0 MiB"),
        (2**20 - 1, "1.0 MiB"),
        (2**30 - 1, "1.00 GiB"),
        (2**30, "1.00 GiB"),
        (5 * 2**39, "2.50 TiB"),
        (5000 * 2**40, "5000.00 TiB"),
        (-17, "-17 B"),
        (-(2**20), "-1.0 MiB"),
    ],
)
def test_sizes_as_people_read_them(nbytes, text):
    assert format_size(nbytes) == text


def test_messages_can_show_the_exact_number_too():
    assert format_size_exact(400 * 2**20) == "400.0 MiB (419430400 bytes)"


@given(st.integers(1, 2**60))
def test_what_is_printed_is_read_back_within_its_rounding(nbytes):
    assert parse_size(format_size(nbytes)) == pytest.approx(nbytes, rel=0.05)


@given(st.text())
def test_no_text_does_anything_but_parse_or_say_why(text):
    try:
        assert parse_size(text) > 0
    except ConfigError as error:
        assert error.hint
