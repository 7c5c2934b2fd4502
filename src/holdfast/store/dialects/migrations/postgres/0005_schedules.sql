-- Jobs that come again and again: one row for each schedule, with all that a tick needs, so that any worker can do it.
-- `revision` rises with every change of the row, ticks included: who has seen it may change the row, and one only.
create table holdfast_schedules (
    name text primary key,
    kind text not null,
    queue text not null,
    payload json not null,
    options json not null,
    cron text,
    every_ms bigint,
    timezone text not null default 'UTC',
    catch_up text not null default 'one' check (catch_up in ('skip', 'one', 'all')),
    next_at timestamptz not null,
    last_at timestamptz,
    paused_at timestamptz,
    revision bigint not null default 1,
    fingerprint text not null,
    replaced json not null,
    declared_by text not null check (declared_by in ('worker', 'sync', 'hand')),
    created_at timestamptz not null,
    changed_at timestamptz not null,
    check ((cron is null) <> (every_ms is null))
);

create index holdfast_schedules_next_idx on holdfast_schedules (next_at) where paused_at is null;
