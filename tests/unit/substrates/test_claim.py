"""Claims without a cluster: what a template means, and what is said of a cluster that has none."""

import asyncio
import json
from contextlib import asynccontextmanager

import pytest

pytest.importorskip("kubernetes_asyncio", reason="enable: pip install 'dutyfree[kubernetes]'")

from aiohttp import web

from dutyfree.core.errors import Misuse, Unavailable
from dutyfree.substrates.claim.substrate import claim_capabilities
from dutyfree.substrates.claim.template import read_template
from dutyfree.substrates.registry import connect

GROUP = "/apis/extensions.agents.x-k8s.io"
TEMPLATES = f"{GROUP}/v1beta1/namespaces/default/sandboxtemplates"


def resource(*containers, annotations=None, **spec):
    pod = {"spec": {"containers": list(containers), **spec}, "metadata": {"annotations": annotations or {}}}
    return {"metadata": {"name": "t"}, "spec": {"podTemplate": pod}}


def container(name="first", **fields):
    return {"name": name, "image": f"{name}:1", **fields}


@asynccontextmanager
async def cluster(tmp_path, **answers):
    """A kubeconfig of a server that answers as a cluster would, for the paths given; 404 for all others."""
    known = {
        "/version": {"gitVersion": "v1.34.4"},
        "/api/v1/namespaces/default": {"metadata": {"name": "default"}},
        **answers,
    }

    async def answer(request):
        body = known.get(request.path)
        return web.json_response(body or {"message": "not found"}, status=200 if body else 404)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    path = tmp_path / "kubeconfig"
    config = {
        "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    path.write_text(json.dumps(config))
    try:
        yield str(path)
    finally:
        await runner.cleanup()


def refusal(tmp_path, kind, answers, **options):
    async def main():
        async with cluster(tmp_path, **answers) as path:
            with pytest.raises(kind) as caught:
                await connect("kubernetes-claim", kubeconfig=path, **options)
            return caught.value

    return asyncio.run(main())


def served(*versions):
    return {GROUP: {"versions": [{"version": version} for version in versions]}}


def listed(*names):
    return {TEMPLATES: {"items": [{"metadata": {"name": name}} for name in names]}}


def test_the_first_container_is_the_sandbox_unless_the_template_names_another():
    assert read_template(resource(container(), container("second"))).container == "first"
    named = {"kubectl.kubernetes.io/default-container": "second"}
    found = read_template(resource(container(), container("second"), annotations=named))
    assert (found.container, found.image) == ("second", "second:1")


def test_a_template_that_shares_the_nodes_processes_is_refused():
    with pytest.raises(Misuse, match="hostPID"):
        read_template(resource(container(), hostPID=True))


def test_limits_and_the_root_are_declared_as_the_templates():
    limits = {"limits": {"cpu": "2", "memory": "1Gi"}}
    template = read_template(resource(container(resources=limits, securityContext={"readOnlyRootFilesystem": True})))
    found = claim_capabilities(frozenset({"none"}), "agent", template)
    assert found.limits == frozenset()
    assert "cpu 2, memory 1Gi" in found.notes["limits"]
    assert found.storages == frozenset({"memory"})


def test_a_cluster_without_agent_sandbox_is_unavailable_and_says_what_to_apply(tmp_path):
    error = refusal(tmp_path, Unavailable, {})
    assert "no SandboxClaim" in error.message
    assert "kubectl apply" in error.enable
    assert "make claims-build" in error.enable


def test_a_cluster_that_serves_older_claims_only_is_unavailable(tmp_path):
    assert "v1alpha1 only" in refusal(tmp_path, Unavailable, served("v1alpha1")).message


def test_without_a_template_there_is_nothing_to_claim_and_with_several_one_is_named(tmp_path):
    none = refusal(tmp_path, Unavailable, {**served("v1beta1"), **listed()})
    assert "no SandboxTemplate" not in (none.enable or "")
    assert "no SandboxTemplate" in none.message
    several = refusal(tmp_path, Misuse, {**served("v1beta1"), **listed("a", "b")})
    assert "template: must be one of a, b" in several.message


def test_options_are_checked_before_anything_is_asked():
    async def main():
        with pytest.raises(Misuse, match="warm"):
            await connect("kubernetes-claim", warm="many")
        with pytest.raises(Misuse, match="pool"):
            await connect("kubernetes-claim", pool="p", template="t")
        with pytest.raises(Misuse, match="colour"):
            await connect("kubernetes-claim", colour="red")

    asyncio.run(main())
