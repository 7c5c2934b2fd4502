"""How a connector is set up so that its records are those which our own Kafka sink sends, in binary mode."""

from __future__ import annotations

from holdfast.errors import ConfigError
from holdfast.outbox.debezium.table import EventTable
from holdfast.values import urls

FILL_IN = "FILL-IN"
POSTGRES = "io.debezium.connector.postgresql.PostgresConnector"
MYSQL = "io.debezium.connector.mysql.MySqlConnector"
MARIADB = "io.debezium.connector.mariadb.MariaDbConnector"
ROUTER = "io.debezium.transforms.outbox.EventRouter"
# Which column becomes which header.
_HEADERS = {
    "id": "ce_id",
    "type": "ce_type",
    "source": "ce_source",
    "specversion": "ce_specversion",
    "time": "ce_time",
    "subject": "ce_subject",
    "dataschema": "ce_dataschema",
    "dataversion": "ce_dataversion",
    "partitionkey": "ce_partitionkey",
    "traceparent": "ce_traceparent",
    "tracestate": "ce_tracestate",
    "datacontenttype": "content-type",
    "headers": "holdfast_headers",
}


def connector(table: EventTable, url: str, dialect: str, *, name: str, topic: str, schema: str) -> dict[str, str]:
    """Return the settings of a connector; the password is left to be filled in, and of several hosts the one.

    name: of the connector, its replication slot and its publication. topic: with ${routedByValue} for the aggregate.
    """
    at = urls.read(url)
    if isinstance(at, str):
        raise ConfigError("url", at, url)
    # Of several hosts none will do: a connector takes one, and it must be where the primary is.
    [(host, port), *others] = at.addresses or [("", "")]
    settings = {
        "name": name,
        "tasks.max": "1",
        "topic.prefix": name,
        "database.hostname": FILL_IN if others else host if host[:1] not in ("", "/") else "localhost",
        "database.port": port or ("5432" if dialect == "postgres" else "3306"),
        "database.user": at.user or "",
        "database.password": FILL_IN,
        **(_postgres if dialect == "postgres" else _mysql)(table, name, at.database, schema, at.scheme),
        "tombstones.on.delete": "false",
        "key.converter": "org.apache.kafka.connect.storage.StringConverter",
        "value.converter": "org.apache.kafka.connect.storage.StringConverter",
        "header.converter": "org.apache.kafka.connect.storage.SimpleHeaderConverter",
        "transforms": "outbox",
        "transforms.outbox.type": ROUTER,
        "transforms.outbox.route.topic.replacement": topic,
        "transforms.outbox.table.op.invalid.behavior": "error",
        "transforms.outbox.table.fields.additional.placement": ",".join(
            f"{column}:header:{header}" for column, header in _HEADERS.items()
        ),
    }
    return settings


def _postgres(table: EventTable, name: str, database: str, schema: str, scheme: str) -> dict[str, str]:
    return {
        "connector.class": POSTGRES,
        "database.dbname": database,
        "plugin.name": "pgoutput",
        "slot.name": name,
        "publication.name": name,
        "publication.autocreate.mode": "filtered",
        "table.include.list": f"{schema}.{table.table}",
        "snapshot.mode": "no_data",
        # Without it the slot is confirmed by events alone, and keeps the log of all other tables meanwhile.
        "heartbeat.interval.ms": "10000",
    }


def _mysql(table: EventTable, name: str, database: str, schema: str, scheme: str) -> dict[str, str]:
    return {
        "connector.class": MARIADB if scheme.startswith("mariadb") else MYSQL,
        "database.server.id": "5400",
        "database.include.list": database,
        "table.include.list": f"{database}.{table.table}",
        "snapshot.mode": "no_data",
        # Otherwise they go to a topic with the connector's name, which may be that of an aggregate, too.
        "include.schema.changes": "false",
        "schema.history.internal.kafka.topic": f"{name}.schema-history",
        "schema.history.internal.kafka.bootstrap.servers": FILL_IN,
    }
