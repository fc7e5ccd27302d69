from __future__ import annotations

import dis
import sys
from types import CodeType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from freezeframe.agentd.host.cpython import code as lines
from tests.support.fuzz import FUZZ

MINOR = sys.version_info[1]


def codes(code: CodeType) -> list[CodeType]:
    inner = [each for each in code.co_consts if isinstance(each, CodeType)]
    return [code, *(found for each in inner for found in codes(each))]


@pytest.mark.parametrize("module", [lines.__file__, pytest.__file__, dis.__file__])
def test_the_line_of_each_instruction_is_the_one_that_python_tells(module: str) -> None:
    with open(module) as file:
        everything = codes(compile(file.read(), module, "exec"))
    compared = 0
    for code in everything:
        for start, end, line in code.co_lines():
            for offset in range(start, end, 2):
                found = lines.line_of(code.co_linetable, code.co_firstlineno, offset, minor=MINOR)
                assert found == (line or 0), (code.co_name, offset)
                compared += 1
    assert compared > 100


def test_lines_of_a_table_of_3_10() -> None:
    # (bytes, line delta): 6 bytes of line 5, 8 of line 7, 2 of none, 4 of line 6.
    table = bytes([6, 0, 8, 2, 2, 0x80, 4, 0xFF])
    found = [lines.line_of(table, 5, offset, minor=10) for offset in range(0, 22, 2)]
    assert found == [5, 5, 5, 7, 7, 7, 7, 0, 6, 6, 0]


def test_before_the_first_instruction_it_is_the_first_line() -> None:
    assert lines.line_of(b"", 17, -2, minor=12) == 17


@FUZZ
@given(
    st.binary(max_size=200), st.integers(0, 1 << 30), st.integers(-2, 1 << 24), st.sampled_from([10, 11, 12, 13, 14])
)
def test_any_table_gives_some_line(table: bytes, first: int, offset: int, minor: int) -> None:
    assert isinstance(lines.line_of(table, first, offset, minor=minor), int)
