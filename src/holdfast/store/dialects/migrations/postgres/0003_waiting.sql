-- Jobs that gave their lease back and wait for something (`waits_for` says what), and jobs whose end has consequences
-- (`followers`: a bit for each surface that has some; null where nothing follows, as in nearly all rows).
-- Null takes no room in a row and needs no rewrite. The wider rule on states is not checked on old rows: they kept the
-- narrower one, and reading them all would hold the table.
alter table holdfast_jobs
    add column waits_for text,
    add column followers integer,
    drop constraint if exists holdfast_jobs_state_check;

-- By itself: Citus takes a constraint in no other way.
alter table holdfast_jobs
    add constraint holdfast_jobs_state_check check (state in ('pending', 'leased', 'waiting')) not valid;

-- A dead letter that comes back still has what follows it.
alter table holdfast_finished add column followers integer;
