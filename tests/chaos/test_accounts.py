"""The accounting by itself: journals written by hand, and what must be found in them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.chaos import accounts, journal
from tests.chaos.accounts import Account, Facts, Fault, Ledger

NSQD = "127.0.0.1:4150"
TIMEOUT = 3.0
ID = "0123456789abcdef"


class Story:
    """What one client did, told in seconds from 100."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.faults: list[Fault] = []
        self._notes = journal.Journal(path)
        self._calls = 0

    def note(self, at: float, kind: str, *fields: object) -> Story:
        self._notes.note(kind, *fields, at=100 + at)
        return self

    def published(self, number: int, outcome: str = accounts.OK, at: float = 0.0) -> Story:
        self.note(at, journal.BEGUN, number, "one")
        return self.note(at + 0.01, journal.ENDED, number, outcome)

    def handled(
        self,
        number: object,
        at: float = 0.1,
        *,
        until: float | None = None,
        how: str = "fin",
        id: str = ID,
    ) -> Story:
        self._calls += 1
        deadline = 100 + at + TIMEOUT
        self.note(at, journal.CALLED, self._calls, number, NSQD, id, deadline)
        return self.note(at if until is None else until, journal.RETURNED, self._calls, how)

    def begun(self, number: int, at: float) -> Story:
        """A handler that never came back."""
        self._calls += 1
        return self.note(at, journal.CALLED, self._calls, number, NSQD, ID, 100 + at + TIMEOUT)

    def fault(self, kind: str, began: float, ended: float) -> Story:
        self.faults.append(Fault(kind, 0, 100 + began, 100 + ended))
        return self

    def judged(self, *, killed_at: float | None = None, leaks: tuple[str, ...] = ()) -> Account:
        if killed_at is None:
            self.note(1000, journal.SUMMARY, json.dumps({"leaks": leaks}))
        self._notes.close()
        ledger = Ledger("threads", Facts({NSQD: 0}, self.faults, TIMEOUT))
        ledger.read(self.path, killed_at=None if killed_at is None else 100 + killed_at)
        return ledger.close()


@pytest.fixture
def story(tmp_path: Path) -> Story:
    return Story(tmp_path / "journal")


def test_published_and_handled_once(story: Story) -> None:
    account = story.published(1).handled(1).published(2, accounts.NOT_SENT).judged()
    assert account.is_right
    assert (account.published, account.handled, account.repeats) == (2, 1, 0)


def test_acknowledged_and_never_handled_is_lost(story: Story) -> None:
    assert story.published(1).published(2).handled(2).judged().lost == [1]


@pytest.mark.parametrize("outcome", [accounts.NOT_KNOWN, accounts.IN_PART])
def test_a_publish_that_nobody_knows_of_may_be_handled_or_not(story: Story, outcome: str) -> None:
    story.published(1, outcome).published(2, outcome).handled(2)
    assert story.judged().is_right


@pytest.mark.parametrize("outcome", [accounts.NOT_SENT, accounts.REFUSED, accounts.CLOSED])
def test_a_message_that_was_not_published_must_not_be_handled(story: Story, outcome: str) -> None:
    assert len(story.published(1, outcome).handled(1).judged().phantoms) == 1


def test_a_body_of_nobody_may_not_be_handled(story: Story) -> None:
    assert len(story.handled(None).judged().phantoms) == 1
    assert len(journal.body_of(12, 500)) == 500
    assert journal.number_of(journal.body_of(12, 500)) == 12
    for damaged in (b"", b"x", b"12", b"12:500:", journal.body_of(12, 500)[:-1] + b"x"):
        assert journal.number_of(damaged) is None


def test_twice_without_a_cause_is_not_explained(story: Story) -> None:
    account = story.published(1).handled(1).handled(1, 5.0).judged()
    assert len(account.unexplained) == 1
    assert not account.is_right
    assert "unexplained duplicate: number 1" in account.complaints()[0]


def test_a_requeue_brings_it_back(story: Story) -> None:
    account = story.published(1).handled(1, how="requeue").handled(1, 1.0).judged()
    assert account.is_right
    assert account.repeated == {accounts.REQUEUED: 1}


def test_a_handler_that_is_late(story: Story) -> None:
    account = story.published(1).handled(1, 0.1, until=4.0).handled(1, 3.2).judged()
    assert account.is_right
    assert account.repeated == {accounts.TIMED_OUT: 1}


def test_a_refused_fin_is_no_excuse_by_itself(story: Story) -> None:
    story.published(1).handled(1).note(0.2, journal.ANSWER_FAILED, NSQD, ID, "E_FIN_FAILED")
    assert len(story.handled(1, 3.5).judged().unexplained) == 1


def test_a_refused_fin_of_a_message_that_was_held_up(story: Story) -> None:
    story.fault("stall", -3.5, 0.0).published(1).handled(1)
    story.note(0.2, journal.ANSWER_FAILED, NSQD, ID, "E_FIN_FAILED").handled(1, 0.3)
    assert story.judged().repeated == {accounts.TIMED_OUT: 1}


def test_a_connection_lost_behind_the_answer(story: Story) -> None:
    story.published(1).handled(1).note(0.3, journal.LOST, NSQD, "reset").handled(1, 3.2)
    assert story.judged().repeated == {accounts.CONNECTION: 1}


def test_a_connection_lost_long_behind_the_answer(story: Story) -> None:
    story.published(1).handled(1).note(2.5, journal.LOST, NSQD, "reset").handled(1, 3.2)
    assert len(story.judged().unexplained) == 1


def test_nsqd_may_have_read_nothing_since_the_fault_began(story: Story) -> None:
    story.fault("SIGSTOP", 0.0, 3.0).published(1).handled(1)
    story.note(2.5, journal.LOST, NSQD, "silent").handled(1, 3.2)
    assert story.judged().repeated == {accounts.CONNECTION: 1}


def test_an_end_that_was_wanted_excuses_nothing(story: Story) -> None:
    story.published(1).handled(1).note(0.3, journal.CLOSED, NSQD, "closed").handled(1, 3.2)
    assert len(story.judged().unexplained) == 1


def test_an_end_that_was_wanted_on_a_connection_that_was_cut(story: Story) -> None:
    story.fault("cut", 0.2, 3.2).published(1).handled(1)
    story.note(0.3, journal.CLOSED, NSQD, "closed").handled(1, 3.2)
    assert story.judged().repeated == {accounts.CONNECTION: 1}


def test_a_handler_that_never_came_back(story: Story) -> None:
    story.published(1).begun(1, 0.1).handled(1, 3.2)
    assert story.judged().repeated == {accounts.UNANSWERED: 1}


def test_a_killed_nsqd_delivers_again_what_is_in_two_queues(story: Story) -> None:
    story.fault("kill", 5.0, 8.0).published(1).handled(1).handled(1, 6.0).handled(1, 6.1)
    assert story.judged().repeated == {accounts.KILLED: 2}


def test_a_delivery_before_the_kill_that_no_handler_saw_is_a_record_more(story: Story) -> None:
    story.fault("kill", 5.0, 5.1).published(1).note(1.0, journal.LOST, NSQD, "reset")
    story.handled(1, 6.0).handled(1, 6.1).handled(1, 6.2)
    assert story.judged().repeated == {accounts.KILLED: 2}


def test_but_not_three_times(story: Story) -> None:
    story.fault("kill", 5.0, 5.1).published(1).handled(1).handled(1, 20.0).handled(1, 30.0)
    assert len(story.handled(1, 40.0).judged().unexplained) == 1


def test_a_requeue_before_the_kill_is_a_record_more(story: Story) -> None:
    story.fault("kill", 5.0, 5.1).published(1).handled(1, how="requeue").handled(1, 0.3)
    story.handled(1, 6.0).handled(1, 6.1).handled(1, 6.2)
    assert story.judged().repeated == {accounts.REQUEUED: 1, accounts.KILLED: 3}


def test_a_kill_before_the_publish_explains_nothing(story: Story) -> None:
    story.fault("kill", -20.0, -19.0).published(1).handled(1).handled(1, 1.5)
    assert len(story.judged().unexplained) == 1


def test_a_publish_that_was_sent_again(story: Story) -> None:
    story.published(1, accounts.NOT_KNOWN).published(1, at=1.0)
    story.handled(1, 0.5).handled(1, 1.5, id="f" * 16)
    assert story.judged().repeated == {accounts.UNKNOWN: 1}


def test_two_copies_of_one_publish_are_not_explained(story: Story) -> None:
    story.published(1).handled(1).handled(1, 0.2, id="f" * 16)
    assert len(story.judged().unexplained) == 1


def test_a_client_that_was_killed(story: Story, tmp_path: Path) -> None:
    story.note(0.0, journal.BEGUN, 1, "one").handled(1, 0.1)
    story.published(2).handled(2, 0.1, id="f" * 16).handled(2, 3.2, id="f" * 16)
    account = story.judged(killed_at=0.5)
    assert account.is_right
    assert account.repeated == {accounts.CONNECTION: 1}


def test_a_client_that_did_not_come_to_its_end(story: Story) -> None:
    ledger = Ledger("threads", Facts({NSQD: 0}, [], TIMEOUT))
    ledger.read(story.published(1).handled(1).path)
    story.judged()
    assert ledger.close().wrong == ["the client did not come to its end"]


def test_a_greenlet_that_a_fork_has_copied(story: Story) -> None:
    story.published(1).note(0.02, journal.ENDED, 1, accounts.CLOSED).handled(1)
    assert story.judged().is_right


def test_leaks_and_what_was_wrong_are_told(story: Story) -> None:
    story.note(1.0, journal.WRONG, "log: something")
    account = story.judged(leaks=("thread nsq-read",))
    assert not account.is_right
    assert account.complaints() == [
        "threads: leaked: thread nsq-read",
        "threads: wrong: log: something",
    ]
