"""The ring of each test, by its place and the kind of its servers; and two more marks.

``pytest`` runs the first ring, ``pytest -m system`` the second, ``pytest -m campaign`` the third.
Knows the places of tests, and not what they do.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection
from typing import Any

import pytest

FIRST, SYSTEM, CAMPAIGN = RINGS = ("first", "system", "campaign")

# The longest of the lines below with which the name of a test begins decides.
#
# The first ring: parts, scripted servers, histories from known seeds, embedded servers, databases.
# The end of a process, forks and TLS are here, too, because Pythons differ there.
_FIRST = (
    "tests/",
    "tests/chaos/test_accounts.py",
    "tests/chaos/test_faultproxy.py",
    "tests/chaos/test_mutations.py::test_every_mutation_has_a_scenario",
    "tests/chaos/test_scenarios.py::test_the_list_names_every_scenario_and_says_what_it_does",
    "tests/conformance/test_01_identify.py",
    "tests/conformance/test_02_states.py",
    "tests/conformance/test_03_publishing.py",
    "tests/conformance/test_04_delivery.py",
    "tests/conformance/test_08_nsqd_http.py",
    "tests/conformance/test_09_nsqlookupd.py",
    "tests/conformance/test_13_http.py",
)

# The second ring: commands, workers and web servers as processes, their signals, the tools of
# others, browsers, TLS between processes, Java, the servers of NSQ.
_SYSTEM = (
    "tests/chaos/",
    # This scenario is in the ring to notice early if the program itself breaks.
    "tests/chaos/test_scenarios.py::test_nothing_is_lost_and_everything_is_explained[cuts]",
    "tests/component/embedded/test_disk_kills.py",
    "tests/component/embedded/test_nsqd.py",
    "tests/component/embedded/test_process.py",
    "tests/component/embedded/test_pytest_plugin.py",
    "tests/component/reader/test_hostile_nsqd.py",
    "tests/component/spark/test_s3.py",
    "tests/conformance/",
    # Kinds of database and worlds that the first ring does not make meet.
    "tests/integration/django/test_captured.py::test_pytest_django[one-postgres]",
    "tests/integration/django/test_captured.py::test_pytest_django[xdist-postgres]",
    "tests/integration/django/test_captured.py::test_pytest_django[xdist-sqlite]",
    "tests/integration/django/test_captured.py::test_the_runner_of_django[one-postgres]",
    "tests/integration/django/test_captured.py::test_the_runner_of_django[parallel-sqlite]",
    "tests/integration/django/test_commands.py",
    "tests/integration/django/test_connections.py::test_a_persistent_connection_for_each_client",
    "tests/integration/django/test_connections.py"
    "::test_a_pool_serves_more_requests_at_once_than_postgresql_allows",
    "tests/integration/django/test_connections.py"
    "::test_each_process_has_a_pool_of_its_own[1-postgres]",
    "tests/integration/django/test_connections.py"
    "::test_more_greenlets_at_work_than_postgresql_allows[0-postgres]",
    "tests/integration/django/test_connections.py"
    "::test_no_more_connections_than_workers[gevent-0-sqlite]",
    "tests/integration/django/test_connections.py"
    "::test_no_more_connections_than_workers[gevent-null-postgres]",
    "tests/integration/django/test_connections.py"
    "::test_no_more_connections_than_workers[threads-sqlite]",
    "tests/integration/django/test_connections.py"
    "::test_without_persistent_connections_only_requests_have_one",
    "tests/integration/django/test_eager.py::test_the_runner_of_django[sqlite]",
    "tests/integration/django/test_inbox.py"
    "::test_twins_beside_each_other_and_a_kill[mariadb-gevent]",
    "tests/integration/django/test_inbox.py"
    "::test_twins_beside_each_other_and_a_kill[postgres-threads]",
    "tests/integration/django/test_outbox.py::test_nsqd_is_away_for_a_while[embedded-postgres]",
    "tests/integration/django/test_tasks.py",
    "tests/integration/examples/",
    "tests/integration/flask/test_commands.py",
    "tests/integration/sqlalchemy/test_flask_relay.py",
    "tests/integration/test_bench.py",
    "tests/integration/test_cli.py",
    "tests/integration/test_cli_cluster.py",
    "tests/integration/test_cli_consume.py",
    "tests/integration/test_default_log.py",
    "tests/integration/test_docs.py",
    "tests/integration/test_docs_deploy.py",
    "tests/integration/test_docs_operations.py",
    "tests/integration/test_docs_releasing.py::test_two_builds_are_one_wheel",
    "tests/integration/test_docs_site.py",
    "tests/integration/test_docs_small_site.py",
    "tests/integration/test_docs_spark_cluster.py",
    "tests/integration/test_docs_tutorial.py",
    "tests/integration/test_doctor.py",
    "tests/integration/test_durable_calls.py",
    "tests/integration/test_envelope_clients.py",
    "tests/integration/test_exit.py",
    "tests/integration/test_exporter.py",
    "tests/integration/test_first_process.py",
    "tests/integration/test_go_tools.py",
    "tests/integration/test_hangup.py",
    "tests/integration/test_hard_limit.py",
    "tests/integration/test_headers_of_commands.py",
    "tests/integration/test_health.py",
    "tests/integration/test_long_handler.py",
    "tests/integration/test_nsqadmin_browser.py",
    "tests/integration/test_output_of_commands.py",
    "tests/integration/test_packaging.py",
    "tests/integration/test_patched_worlds.py",
    "tests/integration/test_process_limits.py",
    "tests/integration/test_processes.py",
    "tests/integration/test_publish_commands.py",
    "tests/integration/test_quickstarts.py",
    "tests/integration/test_startup.py",
    "tests/integration/test_stop_of_commands.py",
    "tests/integration/test_to_file.py",
    "tests/integration/test_to_file_command.py",
    "tests/integration/test_to_file_ends.py",
    "tests/integration/test_user_code.py",
    "tests/integration/test_web_outage.py",
    "tests/integration/test_web_servers.py",
    "tests/integration/test_workflows.py",
    "tests/integration/test_worlds.py",
    "tests/integration/test_wsgi_servers.py",
    # Seeds with deliberate faults, which take minutes of a processor.
    "tests/simulation/test_simulation.py::test_a_deliberate_fault_is_seen",
    "tests/simulation/test_simulation.py::test_a_failure_gets_smaller",
    "tests/simulation/test_simulation.py::test_new_histories_are_kept_and_run_with_another_chance",
    "tests/spark/",
    "tests/unit/support/test_ci.py",
    "tests/unit/support/test_leftovers.py",
    "tests/unit/support/test_mariadb.py",
    "tests/unit/support/test_postgres.py",
)

# The third ring: kills and faults for minutes, inputs and histories from new seeds, whole suites in
# another world, clusters of Spark, Delta, the benchmark's own programs, and tests that need the
# usual ports or a package index.
_CAMPAIGN = (
    # test_two_nsqds_die_with_their_data, beside it, shows the window; this shows that it is needed.
    "tests/chaos/test_copies.py::test_without_the_window_there_are_twins",
    "tests/chaos/test_load.py",
    "tests/chaos/test_mutations.py",
    "tests/chaos/test_once.py::test_five_minutes",
    # test_everything_is_killed_and_each_effect_is_there_once, beside it, is in the second ring.
    # This shows that its account sees a part that is missing, as the five minutes rely on it.
    "tests/chaos/test_once.py::test_without_one_part_something_is_wrong",
    "tests/chaos/test_restarts.py",
    "tests/chaos/test_scenarios.py::test_nothing_is_lost_and_everything_is_explained",
    "tests/chaos/test_slow_handlers.py",
    # Each runtime and each number of workers is struck in the second ring.
    "tests/chaos/test_strikes.py::test_exceptions_at_random_instructions[gevent-3]",
    "tests/chaos/test_strikes.py::test_exceptions_at_random_instructions[threads-1]",
    "tests/fuzz/test_new_inputs.py",
    "tests/integration/django/test_outbox.py::test_a_relay_that_is_killed_loses_and_invents_nothing",
    "tests/integration/test_bench.py::test_every_row_of_floor_and_ours",
    "tests/integration/test_bench.py::test_gevent_and_both_layouts",
    "tests/integration/test_bench.py::test_ramp_scale_and_what_the_docs_are_made_of",
    "tests/integration/test_bench_waits.py",
    "tests/integration/test_docs_releasing.py::test_the_commands_of_a_release",
    "tests/integration/test_docs_tutorial.py::test_the_tutorial_in_a_clean_folder",
    "tests/integration/test_flow.py::test_a_handler_that_is_too_slow_does_not_fill_the_memory",
    "tests/integration/test_patched_suite.py",
    "tests/integration/test_quickstarts.py::test_newcomer_comes_to_the_end_of_the_page",
    "tests/simulation/test_new_histories.py",
    "tests/unit/embedded/disk/test_damage.py"
    "::test_every_flipped_byte_and_every_truncation[True-others]",
    "tests/unit/embedded/disk/test_damage.py"
    "::test_every_flipped_byte_and_every_truncation[False-others]",
    "tests/simulation/test_scenarios_at_full_size.py",
    "tests/spark/test_archive.py::test_archive_dies_before_each_change",
    "tests/spark/test_archive.py::test_kill_nine_in_the_middle",
    "tests/spark/test_avro.py::test_columns_of_avro",
    # tests/integration/test_docs_spark_cluster.py reads the page's commands and manifests in the
    # second ring; tests/spark/test_archive.py runs spark-submit.
    "tests/spark/test_cluster.py",
    "tests/spark/test_delta.py::test_a_batch_is_in_the_table_once",
    "tests/spark/test_delta.py::test_a_real_table_is_refused",
    "tests/spark/test_delta.py::test_a_redelivery_is_left_out",
    "tests/spark/test_delta.py::test_an_empty_batch",
    "tests/spark/test_delta.py::test_every_number_is_in_the_table_once_under_kill_9",
    "tests/spark/test_delta.py::test_the_command",
    "tests/spark/test_delta.py::test_the_job",
    "tests/spark/test_delta.py::test_writers_beside_each_other_and_a_compaction",
    # The other moment of the same test is in the second ring.
    "tests/spark/test_demo.py::test_ctrl_c_leaves_nothing[starting Spark]",
    "tests/spark/test_kills.py",
    # test_a_failed_run_is_gone_on_with, beside it, goes on from the same records.
    "tests/spark/test_replay.py::test_killed_in_the_middle_and_gone_on_with",
    "tests/spark/test_speculation.py",
)

# Folders whose tests on the real servers are in the first ring, too: twenty seconds of conformance.
_REAL = ("tests/conformance/",)

# Tests of Django and Flask. Each Python gets the newest Django that runs on it.
_INTEGRATIONS = (
    "tests/integration/django/",
    "tests/integration/examples/",
    "tests/integration/flask/",
    "tests/integration/test_default_log.py",
    "tests/integration/test_docs_tutorial.py",
    "tests/integration/test_output_of_commands.py",
    "tests/integration/test_publish_commands.py",
    "tests/integration/test_quickstarts.py",
    "tests/integration/test_stop_of_commands.py",
)

# Tests that run without coverage: exceptions that strike at any instruction leave its locks taken.
_STRUCK = (
    "tests/component/connection/test_publishes.py::test_a_reader_that_is_killed",
    "tests/component/connection/test_publishes.py"
    "::test_followers_that_are_killed_and_followers_out_of_time",
    "tests/component/reader/test_time_limit.py",
    "tests/component/reader/test_worker_reads.py::test_messages_of_a_killed_worker_are_not_lost",
    "tests/integration/test_time_limit.py",
    "tests/unit/runtime/test_time_limit.py",
)

_RING_OF = {
    line: ring
    for ring, lines in zip(RINGS, (_FIRST, _SYSTEM, _CAMPAIGN), strict=True)
    for line in lines
}
# The parameter of a test that runs with a few examples in its own ring: see ``few_and_many``.
_MANY = re.compile(r"[\[-]many[\]-]")
_left_out = pytest.StashKey[dict[str, int]]()


def few_and_many(few: int, many: int) -> pytest.MarkDecorator:
    """Give a test ``count``: ``few`` in its own ring, ``many`` in the third."""
    values = [pytest.param(few, id="few"), pytest.param(many, id="many")]
    return pytest.mark.parametrize("count", values)


def lines_of(name: str) -> list[str]:
    """Return what a line of the lists above may say to name this test, the longest text first."""
    file, _, function = name.partition("::")
    lines = [name, f"{file}::{function.partition('[')[0]}", file]
    folder = file.rpartition("/")[0]
    while folder:
        lines.append(f"{folder}/")
        folder = folder.rpartition("/")[0]
    return lines


def begins(name: str, lines: Collection[str]) -> bool:
    """Return True if one of the lines names this test, alone or among others."""
    return any(line in lines for line in lines_of(name))


def ring_of(name: str, *, on_real_servers: bool = False, waits: bool = False) -> str:
    """Return the ring of a test. ``waits``: a row of conformance that mostly waits."""
    if _MANY.search(name):
        return CAMPAIGN
    # Ten thousand tests ask, in each process: the lines are looked up and not tried one by one.
    ring = next((_RING_OF[line] for line in lines_of(name) if line in _RING_OF), FIRST)
    if ring != FIRST or waits:
        return max(ring, SYSTEM, key=RINGS.index)
    if on_real_servers and not begins(name, _REAL):
        return SYSTEM
    return FIRST


def _need_of(item: pytest.Item) -> str:
    """Return the need of the test that the first ring hardly has."""
    if item.nodeid.startswith("tests/spark/"):
        return "Java"
    if "browser" in getattr(item, "fixturenames", ()):
        return "browsers"
    return "the real nsqd" if _is_on_real_servers(item) else "processes"


def _is_on_real_servers(item: pytest.Item) -> bool:
    callspec: Any = getattr(item, "callspec", None)
    return callspec is not None and callspec.params.get("server_kind") == "real"


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_left_out] = {}


# This hook runs after that of tests.support.servers, which removes tests, and before pytest's own,
# which chooses by marks.
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    left_out: Counter[str] = Counter()
    for item in items:
        name = item.nodeid
        waits = hasattr(getattr(item, "function", None), "waiting_body")
        ring = ring_of(name, on_real_servers=_is_on_real_servers(item), waits=waits)
        item.add_marker(ring)
        if begins(name, _INTEGRATIONS):
            item.add_marker("integrations")
        if begins(name, _STRUCK):
            item.add_marker("struck")
        if ring != FIRST:
            left_out[CAMPAIGN if ring == CAMPAIGN else _need_of(item)] += 1
    if config.option.markexpr == FIRST and not config.option.keyword:
        config.stash[_left_out] = dict(left_out)
    if getattr(config.option, "cov_source", None):
        struck = [item for item in items if item.get_closest_marker("struck")]
        config.hook.pytest_deselected(items=struck)
        items[:] = [item for item in items if not item.get_closest_marker("struck")]


def pytest_sessionfinish(session: pytest.Session) -> None:
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["left_out"] = session.config.stash[_left_out]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take the counts of a worker. Each worker has the same; a worker that died has none."""
    output = getattr(node, "workeroutput", {})
    if left_out := output.get("left_out"):
        node.config.stash[_left_out] = left_out


def line_of(left_out: dict[str, int]) -> str:
    """Return the sentence on the tests of the other rings, or "" if there are none."""
    system = [f"{count:,} of {need}" for need, count in left_out.items() if need != CAMPAIGN]
    parts = [f"{', '.join(sorted(system))}: pytest -m {SYSTEM}"] if system else []
    if campaigns := left_out.get(CAMPAIGN):
        parts.append(f"{campaigns:,} campaigns: pytest -m {CAMPAIGN}")
    return f"Tests of the other rings that did not run: {'; '.join(parts)}" if parts else ""


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    line = line_of(config.stash[_left_out])
    if line and not config.option.collectonly:
        terminalreporter.write_line(line)
