"""The ring of each test, by its place and the kind of its servers; and two more marks.

``pytest`` runs the first ring, ``pytest -m system`` the second, ``pytest -m campaign`` the third.
The module knows where tests lie, and knows nothing of what they do.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import pytest

FIRST, SYSTEM, CAMPAIGN = RINGS = ("first", "system", "campaign")

# The longest of the lines below that begins the name of a test decides.
#
# Parts, scripted servers, histories from known seeds, embedded servers, databases; and, as Pythons
# differ there, the end of a process, forks and TLS.
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

# Commands, workers and web servers as processes, their signals, the tools of others, browsers, TLS
# between processes, Java, the servers of NSQ.
_SYSTEM = (
    "tests/chaos/",
    # One of the scenarios, so that the program itself does not rot unseen.
    "tests/chaos/test_scenarios.py::test_nothing_is_lost_and_everything_is_explained[cuts]",
    "tests/component/embedded/test_disk_kills.py",
    "tests/component/embedded/test_nsqd.py",
    "tests/component/embedded/test_process.py",
    "tests/component/embedded/test_pytest_plugin.py",
    "tests/component/reader/test_hostile_nsqd.py",
    "tests/component/spark/test_s3.py",
    "tests/conformance/",
    "tests/integration/django/test_commands.py",
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
    "tests/simulation/test_simulation.py::test_what_is_new_is_kept_and_run_with_another_chance",
    "tests/spark/",
    "tests/unit/support/test_ci.py",
    "tests/unit/support/test_leftovers.py",
    "tests/unit/support/test_mariadb.py",
    "tests/unit/support/test_postgres.py",
)

# Kills and faults for minutes, inputs and histories from new seeds, whole suites once more in
# another world, clusters of Spark, Delta, the benchmark's own programs, and what needs the usual
# ports or a package index.
_CAMPAIGN = (
    "tests/chaos/test_load.py",
    "tests/chaos/test_mutations.py",
    "tests/chaos/test_once.py::test_five_minutes",
    "tests/chaos/test_restarts.py",
    "tests/chaos/test_scenarios.py::test_nothing_is_lost_and_everything_is_explained",
    "tests/chaos/test_slow_handlers.py",
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
    "tests/integration/test_quickstarts.py::test_as_a_newcomer",
    "tests/simulation/test_new_histories.py",
    "tests/simulation/test_scenarios_at_full_size.py",
    "tests/spark/test_archive.py::test_it_dies_before_each_change",
    "tests/spark/test_archive.py::test_kill_nine_in_the_middle",
    "tests/spark/test_avro.py::test_columns_of_avro",
    "tests/spark/test_cluster.py::test_deaths_with_messages_in_flight",
    "tests/spark/test_delta.py::test_a_batch_is_in_the_table_once",
    "tests/spark/test_delta.py::test_a_real_table_is_refused",
    "tests/spark/test_delta.py::test_a_redelivery_is_left_out",
    "tests/spark/test_delta.py::test_an_empty_batch",
    "tests/spark/test_delta.py::test_every_number_is_in_the_table_once_under_kill_9",
    "tests/spark/test_delta.py::test_the_command",
    "tests/spark/test_delta.py::test_the_job",
    "tests/spark/test_delta.py::test_writers_beside_each_other_and_a_compaction",
    "tests/spark/test_kills.py",
    "tests/spark/test_speculation.py",
)

# Where tests on the real servers, too, are in the first ring: conformance, twenty seconds of it.
_REAL = ("tests/conformance/",)

# Django and Flask as users have them. Each Python gets the newest Django that runs on it.
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

# Exceptions that strike at any instruction leave locks of the coverage tool taken.
_STRUCK = (
    "tests/component/connection/test_publishes.py::test_a_reader_that_is_killed",
    "tests/component/connection/test_publishes.py"
    "::test_followers_that_are_killed_and_followers_out_of_time",
    "tests/component/reader/test_time_limit.py",
    "tests/component/reader/test_worker_reads.py"
    "::test_what_a_killed_worker_had_received_is_not_lost",
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


def begins(name: str, line: str) -> bool:
    """Return True if a line of the lists above names this test, alone or among others."""
    return name == line or name.startswith(
        line if line.endswith("/") else (f"{line}::", f"{line}[")
    )


def ring_of(name: str, *, on_real_servers: bool = False, waits: bool = False) -> str:
    """Return the ring of a test. ``waits``: a row of conformance that mostly waits."""
    if _MANY.search(name):
        return CAMPAIGN
    ring = _RING_OF[
        max((line for line in _RING_OF if begins(name, line)), key=len, default="tests/")
    ]
    if ring != FIRST or waits:
        return max(ring, SYSTEM, key=RINGS.index)
    if on_real_servers and not any(begins(name, line) for line in _REAL):
        return SYSTEM
    return FIRST


def _need_of(item: pytest.Item) -> str:
    """Return what the test needs that the first ring has little or nothing of."""
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


# Behind the hook of tests.support.servers, which takes out what is no test here at all; ahead of
# pytest's own, which chooses by the marks.
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    left_out: Counter[str] = Counter()
    for item in items:
        name = item.nodeid
        waits = hasattr(getattr(item, "function", None), "waiting_body")
        ring = ring_of(name, on_real_servers=_is_on_real_servers(item), waits=waits)
        item.add_marker(ring)
        if any(begins(name, line) for line in _INTEGRATIONS):
            item.add_marker("integrations")
        if any(begins(name, line) for line in _STRUCK):
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
    """Take the counts of a worker, which are the same in each; a worker that died has none."""
    output = getattr(node, "workeroutput", {})
    if left_out := output.get("left_out"):
        node.config.stash[_left_out] = left_out


def line_of(left_out: dict[str, int]) -> str:
    """Return the sentence on the tests of the other rings, or nothing if there are none."""
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
