"""A set of whole numbers that were counted up, at a bit each instead of some hundred bytes."""

from __future__ import annotations

from collections.abc import Iterable

_PAGE_BITS = 15
_PAGE = 1 << _PAGE_BITS


class NumberSet:
    """Whole numbers. A page of memory is there only where there are numbers, so any may come."""

    def __init__(self) -> None:
        self._pages: dict[int, bytearray] = {}

    def update(self, numbers: Iterable[int]) -> None:
        """Add all of these."""
        for number in numbers:
            page = self._pages.get(number >> _PAGE_BITS)
            if page is None:
                page = self._pages[number >> _PAGE_BITS] = bytearray(_PAGE // 8)
            place = number % _PAGE
            page[place >> 3] |= 1 << (place & 7)

    def __contains__(self, number: int) -> bool:
        page = self._pages.get(number >> _PAGE_BITS)
        place = number % _PAGE
        return page is not None and bool(page[place >> 3] >> (place & 7) & 1)
