"""What runs later: in the worker, on threads, because it is not async."""

from sqlalchemy.orm import Session, sessionmaker

from holdfast import GIVEN, Job
from shop.database import Subscriber
from shop.work import hf


@hf.job(queue="mail")
def confirm(job: Job, email: str, sessions: sessionmaker[Session] = GIVEN) -> None:
    # That it is confirmed, and that the job is done, are one commit.
    with sessions.begin() as session:
        session.get_one(Subscriber, email).confirmed = True
        session.flush()
        job.complete(tx=session)
