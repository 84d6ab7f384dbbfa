"""What fails before the call of a handler is no failure of the handler."""

from __future__ import annotations

import pytest

from gnsqsync.message import Discard, Reject, Requeue, Uncalled
from gnsqsync.outbox.uncalled import unless_called


def test_an_error_before_the_call_is_told_as_such() -> None:
    error = OSError("the database is away")
    with pytest.raises(Uncalled) as caught, unless_called(print):
        raise error
    assert caught.value.__cause__ is error
    assert isinstance(caught.value, Requeue) and caught.value.backoff


@pytest.mark.parametrize("error", [Reject("no key"), Discard(), Requeue(5), KeyboardInterrupt()])
def test_an_error_with_a_meaning_of_its_own_stays(error: BaseException) -> None:
    with pytest.raises(type(error)) as caught, unless_called(print):
        raise error
    assert caught.value is error


def test_an_error_of_the_call_or_after_it_stays() -> None:
    def fail(number: int) -> int:
        return 1 // number

    with pytest.raises(ZeroDivisionError), unless_called(fail) as call:
        call(0)
    with pytest.raises(OSError, match="commit"), unless_called(fail) as call:
        assert call(1) == 1
        raise OSError("at the commit")
