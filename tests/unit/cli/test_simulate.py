"""`dutyfree simulate`: its table, its document, its refusals."""

import json

from dutyfree.cli.main import main

FEW = ["simulate", "--nodes", "4", "--tasks", "10", "--groups", "20", "--group", "2"]


def test_it_shows_a_row_for_each_policy(capsys):
    assert main(FEW) == 0
    out = capsys.readouterr().out
    for policy in ("nearest", "exact-match", "least-loaded", "round-robin", "random"):
        assert f"| {policy}" in out


def test_json_holds_the_scenario_and_is_the_same_for_a_seed(capsys):
    main([*FEW, "--json", "--policy", "nearest,round-robin", "--seed", "5"])
    first = capsys.readouterr().out
    main([*FEW, "--json", "--policy", "nearest,round-robin", "--seed", "5"])
    assert capsys.readouterr().out == first
    found = json.loads(first)
    assert found["scenario"]["nodes"] == 4
    assert [one["policy"] for one in found["policies"]] == ["nearest", "round-robin"]
    assert found["policies"][1]["times_less"] == 1.0


def test_options_go_before_the_scenario_file(tmp_path, capsys):
    file = tmp_path / "scenario.json"
    file.write_text(json.dumps({"nodes": 9, "tasks": 7, "stages": [{"name": "all", "seconds": 3}]}))
    assert main([*FEW, "--scenario", str(file), "--json", "--policy", "nearest"]) == 0
    scenario = json.loads(capsys.readouterr().out)["scenario"]
    assert (scenario["nodes"], scenario["tasks"], len(scenario["stages"])) == (4, 10, 1)


def test_what_makes_no_sense_is_refused(tmp_path, capsys):
    assert main(["simulate", "--policy", "luck"]) != 0
    assert "policy" in capsys.readouterr().err
    assert main(["simulate", "--nodes", "0"]) != 0
    assert "nodes" in capsys.readouterr().err
    assert main(["simulate", "--scenario", str(tmp_path / "none.json")]) != 0
    assert "--scenario" in capsys.readouterr().err
