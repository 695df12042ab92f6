import gc
import threading

import pytest

from bathyal.engine.data.prefetch import THREAD_NAME, count_results_alive, run_ahead

TIMEOUT = 30


def threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith(THREAD_NAME)]


@pytest.mark.parametrize("workers", [1, 2, 5])
@pytest.mark.parametrize("ahead", [1, 3, 50])
def test_results_come_in_order(workers, ahead):
    assert list(run_ahead(lambda item: item * item, range(20), workers, ahead)) == [item * item for item in range(20)]
    assert threads() == []


def test_nothing_to_do():
    assert list(run_ahead(str, [], 2, 2)) == []
    assert threads() == []


def test_the_order_holds_when_later_items_finish_first():
    second_done = threading.Event()

    def work(item):
        if item == 0:
            assert second_done.wait(TIMEOUT)
        elif item == 1:
            second_done.set()
        return item

    assert list(run_ahead(work, range(3), workers=2, ahead=2)) == [0, 1, 2]


def test_no_thread_starts_before_the_first_result_is_asked_for():
    results = run_ahead(str, range(3), 2, 2)
    assert threads() == []
    assert next(results) == "0"
    assert threads() != []
    results.close()
    assert threads() == []


@pytest.mark.parametrize("drops", [True, False])
@pytest.mark.parametrize("ahead", [1, 2, 4])
def test_work_stays_within_the_bound(ahead, drops):
    lock, alive, most = threading.Lock(), 0, 0

    class Result:
        def __init__(self, item):
            nonlocal alive, most
            self.item = item
            with lock:
                alive += 1
                most = max(most, alive)

        def __del__(self):
            nonlocal alive
            with lock:
                alive -= 1

    count = 0
    for result in run_ahead(Result, range(40), workers=3, ahead=ahead):
        assert result.item == count
        count += 1
        if drops:
            del result
    if not drops:
        del result
    assert count == 40 and alive == 0
    assert most <= count_results_alive(ahead) + (not drops)


def test_items_are_drawn_only_when_there_is_room():
    drawn = []

    def items():
        for item in range(100):
            drawn.append(item)
            yield item

    results = run_ahead(str, items(), workers=2, ahead=3)
    for count in range(1, 6):
        next(results)
        assert len(drawn) == count + 3
    results.close()


def test_work_goes_on_while_the_consumer_is_busy():
    started = threading.Event()

    def work(item):
        if item == 1:
            started.set()
        return item

    results = run_ahead(work, range(5), workers=1, ahead=1)
    next(results)
    assert started.wait(TIMEOUT)
    results.close()


def test_an_error_comes_in_its_place_and_ends_the_threads():
    def work(item):
        if item == 2:
            raise ValueError("item 2")
        return item

    results = run_ahead(work, range(10), workers=3, ahead=5)
    assert [next(results), next(results)] == [0, 1]
    with pytest.raises(ValueError, match="item 2"):
        next(results)
    assert threads() == []
    with pytest.raises(StopIteration):
        next(results)


def test_an_error_of_the_items_ends_the_threads():
    def items():
        yield 0
        yield 1
        raise KeyError("no more")

    results = run_ahead(str, items(), workers=1, ahead=1)
    with pytest.raises(KeyError, match="no more"):
        list(results)
    assert threads() == []


def test_leaving_the_loop_ends_the_threads():
    done = []

    def work(item):
        done.append(item)
        return item

    for result in run_ahead(work, range(1000), workers=2, ahead=4):
        if result == 3:
            break
    gc.collect()
    assert threads() == []
    assert len(done) <= 4 + count_results_alive(4)


def test_an_error_of_the_consumer_ends_the_threads():
    results = run_ahead(str, range(1000), 2, 4)
    assert next(results) == "0"
    with pytest.raises(RuntimeError, match="consumer"):
        results.throw(RuntimeError("consumer"))
    assert threads() == []
