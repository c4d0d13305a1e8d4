"""LangChain's own suite for sandbox backends, unmodified, on `dutyfree.adapters.deepagents`. Run by test_judges."""

import pytest
from langchain_tests.integration_tests import SandboxIntegrationTests

from dutyfree import Commands, Spec
from dutyfree.adapters.deepagents import Sandbox

PYTHON = Spec(
    stages=(Commands(commands=["mkdir -p /opt/bin && ln -s $(command -v python3) /opt/bin/python"]),),
    env={"PATH": "/opt/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
)
"""Some of its commands call `python`, which Debian does not have by that name."""


class TestSandbox(SandboxIntegrationTests):
    @pytest.fixture(scope="class")
    def sandbox(self):
        with Sandbox(start=PYTHON) as backend:
            yield backend
