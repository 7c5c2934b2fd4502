"""Resources, registries and lifespans, as an application's type checkers see them."""

from collections.abc import AsyncIterator, Iterator

from holdfast import GIVEN, BulkHandler, Handler, Holdfast, Job, Registry, Run

hf = Holdfast("sqlite:///shop.db")
registry = Registry(prefix="billing.")


class Client:
    def get(self, path: str) -> str:
        return path


@hf.on_start
async def client() -> AsyncIterator[Client]:
    yield Client()


@registry.on_start
def nothing() -> Iterator[None]:
    yield


@hf.job(queue="mail")
def fetch(job: Job, path: str, client: Client = GIVEN) -> str:
    return client.get(path)


@registry.job
def charge(job: Job, order_id: int) -> int:
    return order_id


@hf.bulk
async def index(pages: list[str], client: Client = GIVEN) -> None: ...


@registry.workflow
async def fulfil(run: Run, order_id: int) -> int:
    return order_id


# What the worker gives may be left out, and what is left is checked.
fetch.enqueue("a")
fetch.using(priority=3).enqueue(path="a")
charge.enqueue(1)
index.enqueue("page")
fulfil.start(order_id=1)
hf.include(registry, prefix="pay.")
names: list[str] = hf.autodiscover("shop", module="jobs")
handlers: list[Handler[..., object]] = [fetch, charge]
bulks: list[BulkHandler[str, object]] = [index]


async def serve() -> None:
    async with hf.lifespan(worker=True, concurrency=3):
        pass
