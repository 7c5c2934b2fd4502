"""A job that says itself how a failure is tried again, and a handler that serves further queues."""

from datetime import timedelta

from holdfast import Holdfast, Job, Retry, admin
from holdfast.testing.inline import run_due


def test_a_job_is_tried_again_as_it_says_itself() -> None:
    with Holdfast("sqlite:///:memory:") as hf:

        @hf.job(retry=Retry(first_delay=1, jitter=0))
        def fail(job: Job) -> None:
            job.retry = Retry.after(timedelta(hours=2))
            raise ValueError

        enqueued = fail.enqueue()
        assert [one.outcome for one in run_due(hf, raise_errors=False)] == ["retried"]
        row = hf.store.run(admin.show(enqueued.id))
        assert timedelta(minutes=110) < row.available_at - row.created_at < timedelta(minutes=130)


def test_a_handler_may_serve_queues_beside_its_own() -> None:
    with Holdfast("sqlite:///:memory:") as hf:

        @hf.job(queue="mail")
        def send() -> None: ...

        send.serves = ("letters",)
        assert hf.worker().queues == ["mail", "letters"]
        assert hf.worker(queues=["letters"]).queues == ["letters"]
