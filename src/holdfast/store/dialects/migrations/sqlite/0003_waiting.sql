-- Jobs that gave their lease back and wait for something (`waits_for` says what), and jobs whose end has consequences
-- (`followers`: a bit for each surface that has some; null where nothing follows, as in nearly all rows).
-- Differs: a rule of a table cannot be changed, so the live table is made anew and its rows are copied.
-- What each settle looks at stands in front: a column is found by reading the sizes of those before it.
-- The rule on states is not an "in": for a list of three SQLite fills a table of its own at every insert (a third of its time).
create table holdfast_jobs_with_waiting (
    id text primary key,
    fence integer not null default 0,
    followers integer,
    available_at integer not null,
    created_at integer not null,
    leased_at integer,
    lease_expires_at integer,
    attempts integer not null default 0,
    max_attempts integer not null,
    lease_ms integer,
    replays integer not null default 0,
    priority integer not null default 0,
    bucket integer,
    cancel_requested integer not null default 0,
    state text not null default 'pending' check (state = 'pending' or state = 'leased' or state = 'waiting'),
    queue text not null,
    kind text not null,
    key text,
    unique_key text,
    leased_by text,
    payload text not null,
    headers text,
    progress text,
    errors text,
    began integer not null default 0,
    lapses integer not null default 0,
    waits_for text
) without rowid;

insert into holdfast_jobs_with_waiting
    (id, fence, available_at, created_at, leased_at, lease_expires_at, attempts, max_attempts, lease_ms, replays, priority, bucket,
     cancel_requested, state, queue, kind, key, unique_key, leased_by, payload, headers, progress, errors, began, lapses)
select id, fence, available_at, created_at, leased_at, lease_expires_at, attempts, max_attempts, lease_ms, replays, priority, bucket,
       cancel_requested, state, queue, kind, key, unique_key, leased_by, payload, headers, progress, errors, began, lapses
  from holdfast_jobs;

drop table holdfast_jobs;

alter table holdfast_jobs_with_waiting rename to holdfast_jobs;

create index holdfast_jobs_claim_idx on holdfast_jobs (queue, priority desc, available_at, id) where state = 'pending';
create index holdfast_jobs_lease_idx on holdfast_jobs (lease_expires_at) where state = 'leased';
create unique index holdfast_jobs_unique_idx on holdfast_jobs (kind, unique_key) where unique_key is not null;
create index holdfast_jobs_key_idx on holdfast_jobs (key) where key is not null;

-- A dead letter that comes back still has what follows it.
alter table holdfast_finished add column followers integer;
