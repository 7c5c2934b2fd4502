"""The mypy plugin: `job: Job` in any place is left out of what enqueue asks for."""

import subprocess
import sys

import pytest

SAMPLE = """
from holdfast import GIVEN, Holdfast, Job, Registry, Retry

hf = Holdfast("sqlite://")

@hf.job(queue="mail", retry=Retry(max_attempts=5), lease=30)
async def send_receipt(order_id: int, job: Job) -> None: ...

@hf.job
def remind(order_id: int, job: Job | None = None, note: str = "") -> None: ...

registry = Registry()

@registry.job
def bill(order_id: int, job: Job, client: object = GIVEN) -> None: ...

bill.enqueue(9182)
send_receipt.enqueue(order_id=9182)
send_receipt.using(priority=3).enqueue(9182)
remind.enqueue(1, note="x")
send_receipt.bind(order_id=1)
"""

MISTAKES = """
send_receipt.enqueue(order_id="9182")
send_receipt.enqueue()
remind.enqueue(1, job=None)
"""


RIGHT, WRONG = "right.py", "wrong.py"


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What mypy says of both texts, in one run: reading everything that they import takes nearly all of its time."""
    folder = tmp_path_factory.mktemp("plugin")
    (folder / RIGHT).write_text(SAMPLE)
    (folder / WRONG).write_text(SAMPLE + MISTAKES)
    settings = folder / "mypy.ini"
    settings.write_text("[mypy]\nstrict = True\nplugins = holdfast.mypy\n")
    # A process of its own: inside this one mypy would raise the recursion limit for every test to come.
    words = ["--config-file", str(settings), "--cache-dir", str(folder / "cache"), RIGHT, WRONG]
    command = [sys.executable, "-m", "mypy", *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    return done.stdout


def test_a_job_parameter_in_any_place_is_not_asked_for_at_enqueue(report: str) -> None:
    assert "checked 2 source files" in report
    assert RIGHT not in report


def test_wrong_arguments_are_still_refused(report: str) -> None:
    assert 'Argument "order_id" to "enqueue" of "Handler" has incompatible type "str"; expected "int"' in report
    assert 'Missing positional argument "order_id"' in report
    assert 'Unexpected keyword argument "job"' in report
    assert "Found 3 errors in 1 file (checked 2 source files)" in report
