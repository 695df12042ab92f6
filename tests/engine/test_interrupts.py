"""Ctrl-C between steps."""

import signal
import threading

import pytest

from bathyal.engine.interrupts import hold_back_interrupts

pytestmark = pytest.mark.usefixtures("python_interrupts")


def test_a_first_interrupt_waits_and_a_second_one_does_not():
    reached = []
    with pytest.raises(KeyboardInterrupt), hold_back_interrupts():
        signal.raise_signal(signal.SIGINT)
        reached.append("after the first")
        signal.raise_signal(signal.SIGINT)
        reached.append("after the second")
    assert reached == ["after the first"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_interrupt_does_not_hide_an_error():
    with pytest.raises(ValueError), hold_back_interrupts():
        signal.raise_signal(signal.SIGINT)
        raise ValueError


def test_a_handler_of_the_program_is_kept():
    seen = []
    earlier = signal.signal(signal.SIGINT, lambda number, frame: seen.append(number))
    try:
        with hold_back_interrupts():
            signal.raise_signal(signal.SIGINT)
            assert seen == [signal.SIGINT]
    finally:
        signal.signal(signal.SIGINT, earlier)


def test_other_threads_are_left_alone():
    done = []

    def work():
        with hold_back_interrupts():
            done.append(True)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert done == [True]
