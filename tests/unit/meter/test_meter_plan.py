"""The order of trials: interleaved, fixed by the seed, resumable."""

from collections import Counter
from itertools import groupby

from dutyfree.meter.plan import Cell, plan, remaining

CELLS = [(Cell(substrate=s, tier=t, steps=n), 6) for s in ("a", "b", "c") for t in ("T0", "T1") for n in (0, 10)]


def test_the_same_seed_gives_the_same_order():
    assert list(plan(CELLS, seed=7, warmup=1)) == list(plan(CELLS, seed=7, warmup=1))


def test_another_seed_gives_another_order():
    assert list(plan(CELLS, seed=7)) != list(plan(CELLS, seed=8))


def test_the_order_does_not_depend_on_how_the_cells_were_listed():
    assert list(plan(CELLS, seed=7)) == list(plan(CELLS[::-1], seed=7))


def test_each_block_holds_every_cell_once():
    for _, block in groupby(plan(CELLS, seed=7), key=lambda cohort: cohort[0].block):
        assert Counter(cohort[0].cell for cohort in block) == Counter(cell for cell, _ in CELLS)


def test_blocks_are_shuffled_differently():
    orders = [[c[0].cell for c in block] for _, block in groupby(plan(CELLS, seed=7), key=lambda c: c[0].block)]
    assert len({tuple(order) for order in orders}) > 1


def test_more_trials_extend_the_plan_and_change_nothing_of_its_beginning():
    longer = [(cell, 10) for cell, _ in CELLS]
    short = list(plan(CELLS, seed=7, warmup=1))
    assert list(plan(longer, seed=7, warmup=1))[: len(short)] == short


def test_cohorts_and_rare_cells_are_spread_over_all_blocks():
    crowd, rare = Cell(substrate="a", tier="T0", steps=10, parallel=32), Cell(substrate="b", tier="T0", steps=10)
    order = list(plan([(CELLS[0][0], 100), (crowd, 160), (rare, 4)], seed=3))
    for cell, number in ((crowd, 5), (rare, 4)):
        places = [i / len(order) for i, cohort in enumerate(order) if cohort[0].cell == cell]
        assert len(places) == number
        assert places[0] < 1.1 / number
        assert places[-1] > 1 - 1.1 / number


def test_cells_may_have_different_numbers_of_trials():
    cells = [(CELLS[0][0], 2), (CELLS[1][0], 5)]
    assert Counter(c[0].cell for c in plan(cells, seed=1)) == {CELLS[0][0]: 2, CELLS[1][0]: 5}


def test_parallel_trials_come_as_cohorts_of_one_cell():
    crowd = Cell(substrate="a", tier="T0", steps=10, parallel=4)
    cohorts = list(plan([(crowd, 10)], seed=1))
    assert [len(cohort) for cohort in cohorts] == [4, 4, 4]
    assert all(trial.cell == crowd for cohort in cohorts for trial in cohort)


def test_warm_up_is_the_shortest_trajectory_of_each_substrate_and_tier_and_comes_first():
    first = list(plan(CELLS, seed=7, warmup=1))[:6]
    assert all(trial.warmup and trial.cell.steps == 10 for (trial,) in first)
    assert len({(trial.cell.substrate, trial.cell.tier) for (trial,) in first}) == 6


def test_what_is_done_is_left_out_and_the_rest_keeps_its_order():
    every = list(plan(CELLS, seed=7))
    done = {trial.id for cohort in every[:10] for trial in cohort}
    assert list(remaining(every, done)) == every[10:]


def test_trial_ids_are_unique():
    ids = [trial.id for cohort in plan(CELLS, seed=7, warmup=2) for trial in cohort]
    assert len(set(ids)) == len(ids)
