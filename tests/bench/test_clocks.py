from equipoise.bench.clocks import clock, interleave


def test_an_action_is_done_as_often_as_asked():
    done = []
    taken = clock(lambda: done.append(1))(4)
    assert len(done) == len(taken) == 4
    assert min(taken) >= 0


def test_contestants_take_turns_and_a_first_round_does_not_count():
    order = []

    def contestant(name):
        def run(times):
            order.append((name, times))
            return [float(len(order))] * times

        return run

    samples = interleave({"a": contestant("a"), "b": contestant("b")}, rounds=2, times=3)
    assert order == [("a", 1), ("b", 1), ("a", 3), ("b", 3), ("a", 3), ("b", 3)]
    assert samples == {"a": [3.0] * 3 + [5.0] * 3, "b": [4.0] * 3 + [6.0] * 3}
