-- Remote steps that runs wait for: which step was sent where, until its result is in the journal or nobody wants it.
create table holdfast_dispatches (
    run_id uuid not null,
    -- With the run, the step's id for those who do it: the place of its first dispatch in the journal.
    seq integer not null,
    key text not null,
    engine text not null,
    name text not null,
    grp text not null,
    input text not null,
    attempt integer not null,
    -- How often it was found lost and sent again, and whether somebody asked for it to be sent again.
    lost integer not null,
    again smallint not null,
    sent_at timestamptz not null,
    -- When somebody looks whether it is lost; for an engine that sends messages, when it is to be sent.
    look_at timestamptz,
    primary key (run_id, seq)
) with (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);

create index holdfast_dispatches_look_idx on holdfast_dispatches (engine, look_at);
