"""Inspect's own conformance suite on `dutyfree.adapters.inspect`, unmodified, as a user who is not root. Run by test_judges."""

import os

import pytest_asyncio
from inspect_ai.util._sandbox.self_check import *  # noqa: F403

from dutyfree.adapters.inspect import Environment, Settings

os.umask(0o022)


@pytest_asyncio.fixture
async def sandbox_env():
    settings = Settings(start=os.environ["DUTYFREE_JUDGE_START"])
    environments = await Environment.sample_init("self_check", settings, {})
    yield environments["default"]
    await Environment.sample_cleanup("self_check", settings, environments, False)
