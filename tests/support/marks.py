"""The marks that a test has by its place: ``quick``, ``campaign``, ``integrations``, ``extras``."""

from __future__ import annotations

import pytest

_QUICK = (
    "tests/unit/",
    "tests/component/",
    # Django's side is covered by what a project tests.
    "tests/integration/django/test_commands.py::test_the_tests_of_the_project[sqlite",
)

# They start processes: each takes many seconds, or a server to be installed.
_NOT_QUICK = (
    # Exceptions that strike at any instruction leave locks of the coverage tool taken.
    "tests/component/reader/test_time_limit.py",
    "tests/unit/runtime/test_time_limit.py",
    "tests/unit/support/test_ci.py",
    "tests/unit/support/test_leftovers.py",
    "tests/unit/support/test_mariadb.py",
    "tests/unit/support/test_postgres.py",
    "tests/component/embedded/test_limits.py",
    "tests/component/embedded/test_nsqd.py",
    "tests/component/embedded/test_process.py",
    "tests/component/embedded/test_pytest_plugin.py",
    "tests/component/reader/test_hostile_nsqd.py",
    "tests/component/runtime/test_exit.py",
    "tests/component/runtime/test_fork.py",
    "tests/component/runtime/test_short_of_threads.py",
    "tests/component/spark/test_s3.py",
)

# Whole suites once more in another world, programs that work under faults for minutes, benchmarks.
_CAMPAIGNS = (
    "tests/chaos/test_load.py",
    "tests/chaos/test_mutations.py::test_a_deliberate_bug_is_reported",
    "tests/chaos/test_once.py::test_five_minutes",
    "tests/chaos/test_restarts.py",
    "tests/chaos/test_scenarios.py::test_nothing_is_lost_and_everything_is_explained",
    "tests/chaos/test_slow_handlers.py",
    "tests/integration/django/test_outbox.py::test_a_relay_that_is_killed_loses_and_invents_nothing",
    "tests/integration/test_bench.py::test_every_row_of_floor_and_ours",
    "tests/integration/test_bench.py::test_gevent_and_both_layouts",
    "tests/integration/test_bench.py::test_ramp_scale_and_what_the_docs_are_made_of",
    "tests/integration/test_bench_waits.py",
    "tests/integration/test_patched_suite.py",
    "tests/spark/test_cluster.py::test_deaths_with_messages_in_flight",
    "tests/spark/test_kills.py",
)
# One of them belongs to all tests, so that the program itself does not rot unseen.
_SAMPLE = "tests/chaos/test_scenarios.py::test_nothing_is_lost_and_everything_is_explained[cuts]"

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

# Tests that need more packages than the extra ``test`` brings. The README's command skips them.
_EXTRAS = (
    "tests/component/spark/",
    "tests/integration/test_bench.py",
    "tests/integration/test_bench_waits.py",
    "tests/integration/test_docs.py",
    "tests/integration/test_docs_deploy.py",
    "tests/integration/test_docs_names.py",
    "tests/integration/test_docs_operations.py",
    "tests/integration/test_docs_site.py",
    "tests/integration/test_docs_spark_cluster.py",
    "tests/integration/test_packaging.py::test_the_wheel_has_nothing_that_does_not_belong_there",
    "tests/integration/test_user_code.py::test_every_exported_name_has_a_known_type",
    "tests/spark/",
    "tests/unit/bench/test_waits.py::test_the_picture_has_each_wait_with_a_goal",
    "tests/unit/spark/",
    "tests/unit/support/test_behaviour_pictures.py",
    "tests/unit/support/test_read_faults.py",
)


# Before pytest itself chooses by the marks.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        name = item.nodeid
        if name.startswith(_INTEGRATIONS):
            item.add_marker("integrations")
        if name.startswith(_EXTRAS):
            item.add_marker("extras")
        if name.startswith(_CAMPAIGNS) and name != _SAMPLE:
            item.add_marker("campaign")
        elif (
            name.startswith(_QUICK)
            and not name.startswith(_NOT_QUICK)
            and not item.get_closest_marker("slow")
        ):
            item.add_marker("quick")
