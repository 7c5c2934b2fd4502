-- Calls that wait for the last of them: which job each key names, and which call said last what that job is.
-- A row is worth nothing once its job was claimed; it stays for a while, so that a repeated call finds itself.
create table holdfast_debounces (
    kind text not null,
    key text not null,
    job_id text not null,
    latest text not null,
    changed_at integer not null,
    primary key (kind, key)
) without rowid;

create index holdfast_debounces_age_idx on holdfast_debounces (changed_at);
