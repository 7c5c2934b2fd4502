-- Holdfast's queries for PostgreSQL: chains, jobs that wait for others, batches.
-- The files beside this one hold the same names in the same order: review them with diff.
-- Times: :now is the server's clock (statement_timestamp()), except where a test tells the time.
-- Locks are taken in this order: jobs that end (or are followed) by id, joins by child, children.
-- A batch is in the order of its ids, in which the place of one is found by halving (width_bucket): see `jobs`.
-- `offset 0` keeps what was read out of a text from being read again for each row.
-- Flags are numbers in a batch and in an answer: a caller's connection may show booleans in a way of its own.

-- joins_add: note that jobs wait for others.
insert into holdfast_joins (child, open, total, sealed, results, on_dead, created_at)
select u.child, u.open, u.total, u.sealed = 1, u.results = 1, u.on_dead, :now
  from unnest(:child::text::uuid[], :open::text::integer[], :total::text::integer[], :sealed::text::integer[],
              :results::text::integer[], :on_dead::text[]) as u (child, open, total, sealed, results, on_dead)
on conflict do nothing;

-- joins_known: tell which of these jobs are noted as waiting for others.
select child::text from holdfast_joins where child = any ((select :ids::text::uuid[])::uuid[]);

-- waits_add: note which jobs a child waits for, and which of those know it already.
insert into holdfast_waits (parent, child, asked, followed)
select u.parent, u.child, u.parent, u.followed = 1
  from unnest(:parent::text::uuid[], :child::text::uuid[], :followed::text::integer[]) as u (parent, child, followed)
on conflict do nothing;

-- follow_free: say of live jobs that nobody holds that their end has one more consequence; the others are left out.
-- In a caller's transaction: a claim passes over a locked row, and nobody waits for it. What wakes a waiting job, or
-- calls the next of a key, would wait, so those are left out; and a REPEATABLE READ would fail at a row that was
-- claimed since it began.
update holdfast_jobs set followers = coalesce(followers, 0) | :bit::integer
 where id = any (array(
    select id from holdfast_jobs
     where id = any ((select :ids::text::uuid[])::uuid[]) and state = 'pending' and key is null
       and current_setting('transaction_isolation') like 'read%'
     order by id
       for update skip locked))
returning id::text;

-- follow_now: say of live jobs that their end has one more consequence; those that somebody has locked are left out.
update holdfast_jobs set followers = coalesce(followers, 0) | :bit::integer
 where id = any (array(
    select id from holdfast_jobs
     where id = any ((select :ids::text::uuid[])::uuid[])
     order by id
       for update skip locked))
returning id::text;

-- waits_unfollowed: read which parents of these children do not know of them yet.
select parent::text, child::text from holdfast_waits
 where child = any ((select :ids::text::uuid[])::uuid[]) and not followed and outcome is null
 order by parent, child;

-- waits_followed: note that parents know of their children now.
update holdfast_waits set followed = true
 where parent = any ((select :parents::text::uuid[])::uuid[]) and child = any ((select :ids::text::uuid[])::uuid[]);

-- waits_moved: let children wait for the jobs that continue their parents, except those that do so already.
update holdfast_waits w
   set parent = (e.next)[width_bucket(w.parent, e.parent)], followed = :followed::integer = 1
  from (select :parent::text::uuid[] as parent, :next::text::uuid[] as next offset 0) e
 where w.parent = any ((select :parent::text::uuid[])::uuid[]) and w.outcome is null
   and w.parent = (e.parent)[width_bucket(w.parent, e.parent)]
   and not exists (select 1 from holdfast_waits x
                    where x.parent = (e.next)[width_bucket(w.parent, e.parent)] and x.child = w.child)
   and w.child = any ((select :children::text::uuid[])::uuid[])  -- when children
;

-- waits_open: read the children that wait for these jobs, and lock the edges.
select parent::text, child::text
  from holdfast_waits
 where parent = any ((select :ids::text::uuid[])::uuid[]) and outcome is null
 order by parent, child
   for update;

-- waits_end: write how parents ended, for all that wait for them, or for these children.
update holdfast_waits w
   set outcome = (e.outcome)[width_bucket(w.parent, e.parent)], result = (e.result)[width_bucket(w.parent, e.parent)]
  from (select :parent::text::uuid[] as parent, :outcome::text[] as outcome, :result::text[] as result offset 0) e
 where w.parent = any ((select :parent::text::uuid[])::uuid[]) and w.outcome is null
   and w.parent = (e.parent)[width_bucket(w.parent, e.parent)]
   and w.child = any ((select :children::text::uuid[])::uuid[])  -- when children
;

-- waits_drop: forget what batches have waited for: of a member that is done nothing is kept.
delete from holdfast_waits
 where parent = any ((select :parents::text::uuid[])::uuid[]) and child = any ((select :ids::text::uuid[])::uuid[])
   and outcome is null;

-- waits_ended: read the edges of jobs that had ended, for those that come back.
select parent::text, child::text, outcome
  from holdfast_waits
 where parent = any ((select :ids::text::uuid[])::uuid[]) and outcome is not null;

-- waits_reopen: let children wait again for jobs that came back.
update holdfast_waits set outcome = null, result = null, followed = true
 where parent = any ((select :parents::text::uuid[])::uuid[]) and child = any ((select :ids::text::uuid[])::uuid[])
   and outcome is not null;

-- joins_lock: lock joins in the order of children and read their counts.
select child::text, open, total, done, dead, cancelled, sealed::integer, doomed_by::text, results::integer, on_dead
  from holdfast_joins
 where child = any ((select :ids::text::uuid[])::uuid[])
 order by child
   for update;

-- joins_write: store the counts of joins whose rows are locked.
update holdfast_joins j
   set open = (u.open)[width_bucket(j.child, u.child)], total = (u.total)[width_bucket(j.child, u.child)],
       done = (u.done)[width_bucket(j.child, u.child)], dead = (u.dead)[width_bucket(j.child, u.child)],
       cancelled = (u.cancelled)[width_bucket(j.child, u.child)],
       sealed = (u.sealed)[width_bucket(j.child, u.child)] = 1,
       doomed_by = (u.doomed_by)[width_bucket(j.child, u.child)]
  from (select :child::text::uuid[] as child, :open::text::integer[] as open, :total::text::integer[] as total,
               :done::text::integer[] as done, :dead::text::integer[] as dead, :cancelled::text::integer[] as cancelled,
               :sealed::text::integer[] as sealed, :doomed_by::text::uuid[] as doomed_by offset 0) u
 where j.child = any ((select :child::text::uuid[])::uuid[])
   and j.child = (u.child)[width_bucket(j.child, u.child)];

-- joins_pardon: let children run after all that were to be cancelled for a parent.
update holdfast_joins set doomed_by = null where child = any ((select :ids::text::uuid[])::uuid[]);

-- parents_ended: read how jobs ended, with their results and what followed.
select id::text, outcome, result::text, followers
  from holdfast_finished
 where id = any ((select :ids::text::uuid[])::uuid[]);

-- joins_drop: forget what children have waited for: their edges, then themselves.
with gone as (delete from holdfast_waits where child = any ((select :ids::text::uuid[])::uuid[]))
delete from holdfast_joins where child = any ((select :ids::text::uuid[])::uuid[])
returning child::text;

-- joins_orphans: read joins whose child is neither alive nor kept as finished, in the order of children.
select j.child::text
  from holdfast_joins j
 where j.created_at < :now - :older_ms::bigint * interval '1 millisecond'
   and not exists (select 1 from holdfast_jobs l where l.id = j.child)
   and not exists (select 1 from holdfast_finished f where f.id = j.child)
   and j.child > :after::text::uuid  -- when after
 order by j.child
 limit :limit;

-- joins_unsealed: read batches that wait for nothing but to be sealed, the oldest first.
select child::text from holdfast_joins
 where not sealed and open = 1 and created_at < :now - :older_ms::bigint * interval '1 millisecond'
 order by child
 limit :limit;

-- join_show: read what a job waits for, or has waited for, in numbers.
select open, total, done, dead, cancelled, sealed::integer, on_dead, doomed_by::text
  from holdfast_joins where child = :id::text::uuid;

-- waits_of: read the parents of a job that are noted, with how they ended.
select asked::text, parent::text, outcome, result
  from holdfast_waits where child = :id::text::uuid order by asked limit :limit;

-- children_of: read which jobs wait for this one, or have waited.
select child::text from holdfast_waits where parent = :id::text::uuid order by child limit :limit;
