-- Jobs that wait for others to end: the child, with a count of the parents that have not ended, and an edge to each parent.
-- `open` is one more while members may still be added to a batch. An edge has an outcome once its parent has ended; that of a
-- member which is done goes at once, because a batch keeps no results.
-- `asked` is the parent that the child was given; where that one is continued, the edge moves along its chain.
create table holdfast_joins (
    child text primary key,
    open integer not null,
    total integer not null,
    done integer not null default 0,
    dead integer not null default 0,
    cancelled integer not null default 0,
    sealed integer not null default 1,
    results integer not null default 1,
    on_dead text not null default 'run' check (on_dead in ('run', 'cancel')),
    doomed_by text,
    created_at integer not null
) without rowid;

create table holdfast_waits (
    parent text not null,
    child text not null,
    asked text not null,
    followed integer not null default 0,
    outcome text check (outcome in ('done', 'dead', 'cancelled', 'gone')),
    result text,
    primary key (parent, child)
) without rowid;

create index holdfast_waits_child_idx on holdfast_waits (child, parent);
