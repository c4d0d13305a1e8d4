"""Gymnasium's own checker on `dutyfree.adapters.gym`, and many episodes at once. Run by test_judges."""

import warnings

import gymnasium
import pytest
from gymnasium.utils.env_checker import check_env

from dutyfree.adapters.gym import SUBMIT, Environment, Environments
from dutyfree.core.errors import SandboxLost


def solved(box) -> float:
    return float(box.run('test "$(cat answer)" = 42').ok)


def test_gymnasium_finds_nothing_wrong() -> None:
    env = Environment(substrate="host")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(env, skip_render_check=True)
    env.close()


def test_an_episode_is_rewarded_for_the_state_it_ends_in() -> None:
    env = Environment(substrate="host", reward=solved, turns=3)
    for answer, reward in (("42", 1.0), ("41", 0.0)):
        observation, info = env.reset()
        assert (observation, info) == ("", {})
        observation, earned, ended, cut, info = env.step(f"echo {answer} | tee answer; ls nothing-here")
        assert observation.startswith(f"{answer}\n")
        assert (earned, ended, cut, info["exit_status"]) == (0.0, False, False, 2)
        assert env.step(SUBMIT)[1:4] == (reward, True, False)
    env.reset()
    assert [env.step("true")[3] for _ in range(3)] == [False, False, True]
    env.close()
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step("true")


def test_a_lost_sandbox_is_raised_and_no_reward() -> None:
    env = Environment(substrate="host", reward=solved)
    env.reset()
    env.box.destroy()
    with pytest.raises(SandboxLost):
        env.step("true")
    with pytest.raises(SandboxLost):
        env.step(SUBMIT)
    env.close()


def test_many_episodes_take_their_steps_at_once_and_apart() -> None:
    envs = Environments(8, substrate="host", reward=solved, turns=2)
    for _ in range(2):
        envs.reset()
        said = envs.step([f"echo {40 + n} | tee answer" for n in range(8)])[0]
        assert said == [f"{40 + n}\n" for n in range(8)]
        assert envs.step([SUBMIT] * 8)[1] == [float(n == 2) for n in range(8)]
    envs.close()
