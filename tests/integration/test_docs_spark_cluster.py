"""The part of docs/spark/cluster on Kubernetes: its files are valid, and its commands exist.

``kubernetes-validate`` checks the manifests where it is installed. tests/spark/test_cluster.py runs
the first lines of the page.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from gnsqsync.cli.archive import archive
from tests.support.texts import DOCS, ROOT, code_blocks

PAGE = DOCS / "spark" / "cluster.rst"
PACKED, SUBMITTED, *_ = code_blocks(PAGE, "console")
(DOCKERFILE,) = code_blocks(PAGE, "dockerfile")
ACCOUNT, SCHEDULE = code_blocks(PAGE, "yaml")
MANIFESTS: list[Any] = [*yaml.safe_load_all(ACCOUNT), yaml.safe_load(SCHEDULE)]
POD: Any = MANIFESTS[-1]["spec"]["jobTemplate"]["spec"]["template"]["spec"]
(CONTAINER,) = POD["containers"]
SITE_PACKAGES = re.compile(r"^(?:local://)?/usr/local/lib/python([\d.]+)/site-packages/")


def submitted() -> list[str]:
    return shlex.split(SUBMITTED.replace("\\\n", " ").removeprefix("$ "))


def packages(text: str) -> set[str]:
    """What a pip line of the page installs."""
    (line,) = re.findall(r"pip install (.*)", text)
    return {word for word in shlex.split(line) if not word.startswith("-")}


@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda each: str(each["kind"]))
def test_each_manifest_is_valid(manifest: Any) -> None:
    kubernetes = pytest.importorskip("kubernetes_validate")
    newest = kubernetes.latest_version()
    kubernetes.validate(manifest, newest, strict=True)
    with pytest.raises(kubernetes.ValidationError):
        kubernetes.validate({**manifest, "wrong": 1}, newest, strict=True)


def test_the_image_has_what_is_packed_elsewhere() -> None:
    """tests/spark/test_cluster.py installs the packed ones."""
    assert packages(DOCKERFILE) == packages(PACKED) - {"venv-pack"}


@pytest.mark.parametrize("words", [submitted(), CONTAINER["args"]], ids=["by hand", "schedule"])
def test_each_job_is_a_job_of_ours(words: list[str]) -> None:
    (at,) = [n for n, word in enumerate(words) if SITE_PACKAGES.match(word)]
    found = SITE_PACKAGES.match(words[at])
    assert found is not None
    assert f"FROM python:{found[1]}-" in DOCKERFILE
    script = Path(words[at][found.end() :])
    assert (ROOT / script).is_file()
    name, *rest = words[at + 1 :]
    assert name == "archive"
    context = archive.make_context(name, rest)
    assert context.params["once"] is True
    # What is on the shared disk, for the driver and for the executors.
    folder = context.params["path"].rpartition("/")[0]
    mounts = [word for word in words if word.endswith(f"nsq.mount.path={folder}")]
    assert any(".executor." in word for word in mounts)
    here = [mount["mountPath"] for mount in CONTAINER["volumeMounts"]]
    assert any(".driver." in word for word in mounts) or folder in here


def test_the_account_the_image_and_the_disk_have_one_name() -> None:
    kinds = {each["kind"]: each for each in MANIFESTS}
    name = kinds["ServiceAccount"]["metadata"]["name"]
    assert POD["serviceAccountName"] == name
    assert kinds["RoleBinding"]["subjects"] == [{"kind": "ServiceAccount", "name": name}]
    assert kinds["RoleBinding"]["roleRef"]["name"] == kinds["Role"]["metadata"]["name"]
    words = [*submitted(), *CONTAINER["args"]]
    assert f"spark.kubernetes.authenticate.driver.serviceAccountName={name}" in words
    images = {w.partition("=")[2] for w in words if "kubernetes.container.image=" in w}
    assert images == {CONTAINER["image"]}
    claim = kinds["PersistentVolumeClaim"]["metadata"]["name"]
    claims = {w.partition("=")[2] for w in words if ".claimName=" in w}
    assert claims == {claim} == {v["persistentVolumeClaim"]["claimName"] for v in POD["volumes"]}
