-- Holdfast's queries for SQLite: chains, jobs that wait for others, batches.
-- The files beside this one hold the same names in the same order: review them with diff.
-- Times: :now is the host's clock, except where a test tells the time.
-- Locks are taken in this order: jobs that end (or are followed) by id, joins by child, children.
-- Differs throughout: one writer at a time, so nothing is locked; lists and batches are read out of JSON texts.
-- Flags are numbers in a batch and in an answer: a caller's connection may show booleans in a way of its own.

-- joins_add: note that jobs wait for others.
-- Differs: run once per row.
-- bind: rows
insert into holdfast_joins (child, open, total, sealed, results, on_dead, created_at)
values (:child, :open, :total, :sealed, :results, :on_dead, :now)
on conflict do nothing;

-- joins_known: tell which of these jobs are noted as waiting for others.
select child from holdfast_joins where child in (select value from json_each(:ids));

-- waits_add: note which jobs a child waits for, and which of those know it already.
-- Differs: run once per row.
-- bind: rows
insert into holdfast_waits (parent, child, asked, followed) values (:parent, :child, :parent, :followed)
on conflict do nothing;

-- follow_free: say of live jobs that their end has one more consequence.
-- Differs: leased ones too; nobody can end them while this transaction is open.
update holdfast_jobs set followers = coalesce(followers, 0) | :bit
 where id in (select value from json_each(:ids))
returning id;

-- follow_now: say of live jobs that their end has one more consequence.
-- Differs: nothing is locked.
update holdfast_jobs set followers = coalesce(followers, 0) | :bit
 where id in (select value from json_each(:ids))
returning id;

-- waits_unfollowed: read which parents of these children do not know of them yet.
select parent, child from holdfast_waits
 where child in (select value from json_each(:ids)) and not followed and outcome is null
 order by parent, child;

-- waits_followed: note that parents know of their children now.
-- Differs: a flag is a number.
update holdfast_waits set followed = 1
 where parent in (select value from json_each(:parents)) and child in (select value from json_each(:ids));

-- waits_moved: let children wait for the jobs that continue their parents, except those that do so already.
-- Differs: joined with the batch, which this planner begins with.
update holdfast_waits
   set parent = u.next, followed = :followed
  from (select json_extract(value, '$[0]') as parent, json_extract(value, '$[1]') as next from json_each(:batch)) u
 where holdfast_waits.parent = u.parent and outcome is null
   and not exists (select 1 from holdfast_waits x where x.parent = u.next and x.child = holdfast_waits.child)
   and child in (select value from json_each(:children))  -- when children
;

-- waits_open: read the children that wait for these jobs.
-- Differs: nothing to lock.
select parent, child
  from holdfast_waits
 where parent in (select value from json_each(:ids)) and outcome is null
 order by parent, child;

-- waits_end: write how parents ended, for all that wait for them, or for these children.
-- Differs: joined with the batch, which this planner begins with.
update holdfast_waits
   set outcome = u.outcome, result = u.result
  from (select json_extract(value, '$[0]') as parent, json_extract(value, '$[1]') as outcome,
               json_extract(value, '$[2]') as result from json_each(:batch)) u
 where holdfast_waits.parent = u.parent and holdfast_waits.outcome is null
   and child in (select value from json_each(:children))  -- when children
;

-- waits_drop: forget what batches have waited for: of a member that is done nothing is kept.
delete from holdfast_waits
 where parent in (select value from json_each(:parents)) and child in (select value from json_each(:ids))
   and outcome is null;

-- waits_ended: read the edges of jobs that had ended, for those that come back.
select parent, child, outcome
  from holdfast_waits
 where parent in (select value from json_each(:ids)) and outcome is not null;

-- waits_reopen: let children wait again for jobs that came back.
-- Differs: a flag is a number.
update holdfast_waits set outcome = null, result = null, followed = 1
 where parent in (select value from json_each(:parents)) and child in (select value from json_each(:ids))
   and outcome is not null;

-- joins_lock: read the counts of joins, in the order of children.
select child, open, total, done, dead, cancelled, sealed, doomed_by, results, on_dead
  from holdfast_joins
 where child in (select value from json_each(:ids))
 order by child;

-- joins_write: store the counts of joins.
-- Differs: run once per row.
-- bind: rows
update holdfast_joins
   set open = :open, total = :total, done = :done, dead = :dead, cancelled = :cancelled, sealed = :sealed,
       doomed_by = :doomed_by
 where child = :child;

-- joins_pardon: let children run after all that were to be cancelled for a parent.
update holdfast_joins set doomed_by = null where child in (select value from json_each(:ids));

-- parents_ended: read how jobs ended, with their results and what followed.
select id, outcome, result, followers
  from holdfast_finished
 where id in (select value from json_each(:ids));

-- joins_drop: forget what children have waited for: their edges, then themselves.
-- Differs: two statements.
delete from holdfast_waits where child in (select value from json_each(:ids));
delete from holdfast_joins where child in (select value from json_each(:ids));

-- joins_orphans: read joins whose child is neither alive nor kept as finished, in the order of children.
select j.child
  from holdfast_joins j
 where j.created_at < :now - :older_ms * 1000
   and not exists (select 1 from holdfast_jobs l where l.id = j.child)
   and not exists (select 1 from holdfast_finished f where f.id = j.child)
   and j.child > :after  -- when after
 order by j.child
 limit :limit;

-- joins_unsealed: read batches that wait for nothing but to be sealed, the oldest first.
select child from holdfast_joins
 where not sealed and open = 1 and created_at < :now - :older_ms * 1000
 order by child
 limit :limit;

-- join_show: read what a job waits for, or has waited for, in numbers.
select open, total, done, dead, cancelled, sealed, on_dead, doomed_by
  from holdfast_joins where child = :id;

-- waits_of: read the parents of a job that are noted, with how they ended.
select asked, parent, outcome, result from holdfast_waits where child = :id order by asked limit :limit;

-- children_of: read which jobs wait for this one, or have waited.
select child from holdfast_waits where parent = :id order by child limit :limit;
