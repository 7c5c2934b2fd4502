-- What workers claim nothing of: a row for each queue and each kind that somebody has paused.
create table holdfast_pauses (
    scope text not null check (scope in ('queue', 'kind')),
    name text not null,
    since timestamptz not null,
    paused_by text,
    reason text,
    primary key (scope, name)
);

-- Audit lines are deleted by age from now on.
create index holdfast_audit_at_idx on holdfast_audit (at);
