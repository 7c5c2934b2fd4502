-- Jobs that wait for others to end: the child, with a count of the parents that have not ended, and an edge to each parent.
-- `open` is one more while members may still be added to a batch. An edge has an outcome once its parent has ended; that of a
-- member which is done goes at once, because a batch keeps no results.
-- `asked` is the parent that the child was given; where that one is continued, the edge moves along its chain.
create table holdfast_joins (
    child uuid primary key,
    open integer not null,
    total integer not null,
    done integer not null default 0,
    dead integer not null default 0,
    cancelled integer not null default 0,
    sealed boolean not null default true,
    results boolean not null default true,
    on_dead text not null default 'run' check (on_dead in ('run', 'cancel')),
    doomed_by uuid,
    created_at timestamptz not null
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 100, autovacuum_vacuum_cost_delay = 0);

create table holdfast_waits (
    parent uuid not null,
    child uuid not null,
    asked uuid not null,
    followed boolean not null default false,
    outcome text check (outcome in ('done', 'dead', 'cancelled', 'gone')),
    result text,
    primary key (parent, child)
) with (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);

create index holdfast_waits_child_idx on holdfast_waits (child, parent);
