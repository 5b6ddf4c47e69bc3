import sys

import numpy as np
import pytest

from equipoise.bench.memory import peak, reset_peak


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux forgets a peak")
def test_the_peak_is_that_of_what_follows_a_reset():
    np.ones(2**25, np.uint8)
    reset_peak()
    before = peak()
    np.ones(2**26, np.uint8)
    grown = peak() - before
    assert 2**25 < grown < 2**27
