-- Holdfast's queries for PostgreSQL: durable runs, their journals, what is sent to them, what they say of themselves.
-- The files beside this one hold the same names in the same order: review them with diff.
-- Times: :now is the server's clock (statement_timestamp()), except where a test tells the time. A journal gives its
-- times as microseconds since 1970: a replay must read them as the first run did, to the last digit.
-- Locks are taken in this order: the run's row in holdfast_jobs, its parent's, what belongs to them here.
-- Flags are numbers in a batch and in an answer: a caller's connection may show booleans in a way of its own.

-- checkpoint: add rows to journals whose run is still held with its fence, and answer with those that were added.
-- The runs are locked for it, so that one that a reaper is taking back is waited for and then found with another fence:
-- a plain look at the fence would let the row slip in behind the reaper's back.
-- What is the same for all comes as an array of one, or of none for NULL. Where all were added, one row without a run
-- answers for them.
-- bind: once kind, ok, attempt
with mine as materialized (
    select :held::text::uuid[] as id, :fences::text::bigint[] as fence, cardinality(:seq::text::integer[]) as size,
           (:kind::text[])[1] as kind, (:ok::text::smallint[])[1] as ok, (:attempt::text::integer[])[1] as attempt),
held as materialized (
    select j.id
      from holdfast_jobs j
     where j.id = any ((select id from mine)::uuid[])
       and j.id = ((select id from mine))[width_bucket(j.id, (select id from mine))]
       and j.fence = ((select fence from mine))[width_bucket(j.id, (select id from mine))]
     order by j.id
       for share),
added as (
    insert into holdfast_steps (run_id, seq, key, kind, ok, value, digest, attempt, worker, took_ms, ref, at)
    select u.run_id, u.seq, u.key, coalesce(u.kind, (select kind from mine)), coalesce(u.ok, (select ok from mine)),
           u.value, u.digest, coalesce(u.attempt, (select attempt from mine)), :worker, u.took_ms, u.ref, :now
      from unnest(:run_id::text::uuid[], :seq::text::integer[], :key::text[], :kind::text[], :ok::text::smallint[],
                  :value::text[], :digest::text::bigint[], :attempt::text::integer[], :took_ms::text::integer[],
                  :ref::text[])
           as u (run_id, seq, key, kind, ok, value, digest, attempt, took_ms, ref)
     where u.run_id in (select id from held)
    on conflict do nothing
    returning run_id, seq, at)
select run_id::text, seq, (extract(epoch from at) * 1000000)::bigint
  from added
 where (select count(*) from added) < (select size from mine)
union all
select null, null, (extract(epoch from max(at)) * 1000000)::bigint
  from added
having count(*) = (select size from mine);

-- checkpoint_one: as checkpoint, for one row.
insert into holdfast_steps (run_id, seq, key, kind, ok, value, digest, attempt, worker, took_ms, ref, at)
select j.id, :seq::integer, :key::text, :kind::text, :ok::smallint, :value::text, :digest::bigint, :attempt::integer,
       :worker::text, :took_ms::integer, :ref::text, :now
  from holdfast_jobs j
 where j.id = :id::text::uuid and j.fence = :fence::bigint
   for share
on conflict do nothing
returning run_id::text, seq, (extract(epoch from at at time zone interval '0') * 1000000)::bigint;

-- checkpoint_look: tell which of these rows an earlier try has added, of runs that are still held with their fence.
select s.run_id::text, s.seq, (extract(epoch from s.at) * 1000000)::bigint
  from unnest(:run_id::text::uuid[], :fence::text::bigint[], :seq::text::integer[]) as u (run_id, fence, seq)
  join holdfast_steps s on s.run_id = u.run_id and s.seq = u.seq
  join holdfast_jobs j on j.id = u.run_id and j.fence = u.fence;

-- journal_read: read a run's journal, from a place on, in its order.
select seq, key, kind, ok, value, digest, attempt, worker, took_ms, ref, (extract(epoch from at) * 1000000)::bigint
  from holdfast_steps
 where run_id = :id::text::uuid and seq >= :first
   and seq <= :last  -- when last
 order by seq;

-- journal_at: read what stands at a place of a run that is still held with its fence.
select s.seq, s.key, s.kind, s.ok, s.value, s.digest, s.attempt, s.worker, s.took_ms, s.ref,
       (extract(epoch from s.at) * 1000000)::bigint
  from holdfast_steps s
  join holdfast_jobs j on j.id = s.run_id and j.fence = :fence::bigint
 where s.run_id = :id::text::uuid and s.seq = :seq::integer;

-- run_read: read what is known of a run beside its journal.
select id::text, workflow, run_key, parent_id::text, parent_key, outcome, stuck
  from holdfast_runs where id = :id::text::uuid;

-- run_hold: lock a run that is held with this fence.
select id::text from holdfast_jobs where id = :id::text::uuid and fence = :fence::bigint for update;

-- run_free: lock a run that nobody holds, unless somebody else has locked it; in a caller's transaction.
-- A worker renews what it holds, and must not wait for a caller: a run that is held is left alone.
select id::text from holdfast_jobs where id = :id::text::uuid and state <> 'leased' for update skip locked;

-- run_calm: note that a request to cancel has reached the run.
update holdfast_jobs set cancel_requested = false where id = :id::text::uuid and fence = :fence::bigint;

-- runs_asked: note that runs are asked to stop: the next to claim one of them looks for the request first.
update holdfast_jobs set cancel_requested = true where id = any ((select :ids::text::uuid[])::uuid[]);

-- run_migrate: let a run that is locked and that nobody holds go on as another version, at once.
update holdfast_jobs set kind = :kind, state = 'pending', waits_for = null, available_at = least(available_at, :now)
 where id = :id::text::uuid;

-- runs_add: note new runs, except where a run of this workflow has the key; answers with those that were added.
insert into holdfast_runs (id, workflow, run_key, digest, parent_id, parent_key, created_at)
select u.id, u.workflow, u.run_key, u.digest, u.parent_id, u.parent_key, :now
  from unnest(:id::text::uuid[], :workflow::text[], :run_key::text[], :digest::text::bigint[],
              :parent_id::text::uuid[], :parent_key::text[])
       as u (id, workflow, run_key, digest, parent_id, parent_key)
on conflict do nothing
returning id::text;

-- runs_find: read the runs that have these keys, with the place of each in the batch.
select u.n, r.id::text, r.digest, r.outcome, r.parent_id::text
  from unnest(:workflow::text[], :run_key::text[]) with ordinality as u (workflow, run_key, n)
  join holdfast_runs r on r.run_key = u.run_key and r.workflow = u.workflow;

-- runs_named: read the runs with this key, of one workflow or of any.
select id::text, workflow, outcome
  from holdfast_runs
 where run_key = :run_key
   and workflow = :workflow  -- when workflow
 order by id
 limit 2;

-- runs_keyed: read the runs that have these keys.
select run_key, id::text, workflow from holdfast_runs where run_key = any (:keys::text[]) order by id;

-- runs_unbegun: tell which of these runs have nothing behind them; one that continues another has no digest.
select id::text from holdfast_runs where id = any ((select :ids::text::uuid[])::uuid[]) and digest is not null;

-- runs_rename: let a run that is over give its key away.
update holdfast_runs set run_key = left(run_key, 250) || '~' || id::text
 where id = any ((select :ids::text::uuid[])::uuid[])
returning id::text;

-- runs_follow_on: note the runs that continue others, under the keys of these, which are renamed already.
insert into holdfast_runs (id, workflow, run_key, digest, parent_id, parent_key, created_at)
select u.next, r.workflow, left(r.run_key, length(r.run_key) - 37), null, r.parent_id, r.parent_key, :now
  from unnest(:id::text::uuid[], :next::text::uuid[]) as u (id, next)
  join holdfast_runs r on r.id = u.id
on conflict do nothing;

-- runs_ended: note how runs ended, or that they go on.
update holdfast_runs r
   set outcome = u.outcome, ended_at = u.ended_at, stuck = null, stuck_at = null
  from (select u.id, u.outcome, case when u.outcome is null then null else :now end as ended_at
          from unnest(:id::text::uuid[], :outcome::text[]) as u (id, outcome)
        offset 0) u
 where r.id = u.id;

-- runs_parents: read whose children these runs are, and under which key.
select id::text, parent_id::text, parent_key
  from holdfast_runs
 where id = any ((select :ids::text::uuid[])::uuid[]) and parent_id is not null
 order by parent_id, id;

-- runs_children: read the children of these runs that are not over.
select id::text
  from holdfast_runs
 where parent_id = any ((select :ids::text::uuid[])::uuid[]) and outcome is null
 order by id;

-- runs_children_over: read how children of these runs ended, where their parents' journals do not tell of it.
-- One that was continued has not ended: its followers hold 64.
select r.id::text, r.parent_id::text, r.parent_key, f.outcome, f.result::text
  from holdfast_runs r
  join holdfast_finished f on f.id = r.id
 where r.parent_id = any ((select :ids::text::uuid[])::uuid[]) and r.outcome is not null
   and coalesce(f.followers, 0) & 64 = 0
   and not exists (select 1 from holdfast_steps s
                    where s.run_id = r.parent_id and s.kind = 'child' and s.key = r.parent_key)
 order by r.id;

-- runs_adopt: make runs that were started by themselves the children of one that asks for them.
update holdfast_runs r
   set parent_id = u.parent_id, parent_key = u.parent_key
  from unnest(:id::text::uuid[], :parent_id::text::uuid[], :parent_key::text[]) as u (id, parent_id, parent_key)
 where r.id = u.id and r.parent_id is null;

-- runs_ends: read how these children ended, where it is not in their parents' inboxes.
select r.id::text, r.parent_id::text, r.parent_key, f.outcome, f.result::text
  from holdfast_runs r
  join holdfast_finished f on f.id = r.id
 where r.id = any ((select :ids::text::uuid[])::uuid[]) and r.outcome is not null
   and coalesce(f.followers, 0) & 64 = 0
   and not exists (select 1 from holdfast_signals s where s.id = r.id)
 order by r.id;

-- run_stuck: note why a held run cannot go on, or that it can; since when stays as it was.
update holdfast_runs
   set stuck = :reason::text, stuck_at = case when :reason::text is null then null else coalesce(stuck_at, c.now) end
  from (select :now as now offset 0) c
 where id = :id::text::uuid
   and exists (select 1 from holdfast_jobs j where j.id = :id::text::uuid and j.fence = :fence::bigint);

-- runs_progressed: tell which of these leases have seen a row in the journal of their run.
select j.id::text
  from holdfast_jobs j
 where j.id = any ((select :ids::text::uuid[])::uuid[])
   and (select s.at from holdfast_steps s where s.run_id = j.id order by s.seq desc limit 1) >= j.leased_at;

-- signals_add: put something into the inboxes of runs.
insert into holdfast_signals (id, run_id, name, payload, told, created_at)
select u.id, u.run_id, u.name, u.payload, :told, :now
  from unnest(:id::text::uuid[], :run_id::text::uuid[], :name::text[], :payload::text[])
       as u (id, run_id, name, payload)
on conflict do nothing;

-- signals_next: read the oldest that a run has got by a name.
select id::text, name, payload
  from holdfast_signals
 where run_id = :id::text::uuid and name = :name::text
 order by created_at, id
 limit :limit;

-- signals_first: read the oldest that a run has got by each of these names.
select s.id, u.name, s.payload
  from unnest(:names::text[]) as u (name)
 cross join lateral (
       select o.id::text as id, o.payload
         from holdfast_signals o
        where o.run_id = :id::text::uuid and o.name = u.name
        order by o.created_at, o.id
        limit 1) s;

-- signals_read: read what is in inboxes under these ids.
select id::text, payload from holdfast_signals where id = any ((select :ids::text::uuid[])::uuid[]);

-- signals_drop: delete what a run has taken.
delete from holdfast_signals where id = any ((select :ids::text::uuid[])::uuid[]);

-- signals_known: tell whether a signal was sent before: it is there, or was taken.
select 1 from holdfast_signals where id = :id::text::uuid
union all
select 1 from holdfast_steps where run_id = :run::text::uuid and ref = :id;

-- signals_move: hand over to the next run of a chain what the one before has not taken.
-- Not what is of its own children and steps: the next run has others, by the same keys.
update holdfast_signals s
   set run_id = u.next
  from unnest(:id::text::uuid[], :next::text::uuid[]) as u (id, next)
 where s.run_id = u.id and s.name not in ('!child', '!remote');

-- signals_there: tell for which of these runs and names there is something.
select u.run_id::text, u.name
  from unnest(:run_id::text::uuid[], :name::text[]) as u (run_id, name)
 cross join lateral (
       select 1 from holdfast_signals s where s.run_id = u.run_id and s.name = u.name limit 1) f;

-- runs_waits: read what runs wait for that are locked and that nobody holds.
select id::text, waits_for
  from holdfast_jobs
 where id = any ((select :ids::text::uuid[])::uuid[]) and state <> 'leased' and waits_for is not null;

-- signals_untold: read signals of which nobody has told the run.
select id::text, run_id::text, name from holdfast_signals where told = 0 order by created_at limit :limit;

-- signals_told: note that runs were told of signals.
update holdfast_signals set told = 1 where id = any ((select :ids::text::uuid[])::uuid[]);

-- attributes_set: write what runs say of themselves.
insert into holdfast_attributes (run_id, name, value)
select u.run_id, u.name, u.value
  from unnest(:run_id::text::uuid[], :name::text[], :value::text[]) as u (run_id, name, value)
on conflict (run_id, name) do update set value = excluded.value;

-- attributes_read: read what runs say of themselves.
select run_id::text, name, value
  from holdfast_attributes
 where run_id = any ((select :ids::text::uuid[])::uuid[])
 order by run_id, name;

-- runs_list: read runs with the state of their jobs, the newest first.
-- What runs say of themselves is read of each run as a value, of which no planner makes a join, because very many may
-- say the same. With `few`, no more of them do than a look may read, and it begins with those.
-- An outcome and ids are asked for as one range of both, and the outcome leads the order, which only
-- holdfast_runs_outcome_idx has then: it is read from one id to the other and no further. Were the outcome one value,
-- the planner might walk over all runs by their id instead, in the hope of a match before long; beside a range of
-- outcomes alone, servers before 18 read all of them. Ids alone are asked for with `by_id`, where they are few, or all
-- there is.
-- Differs: jobs are looked up one by one, because they may be very many more than runs: a merge of both by id reads
-- those between two runs, too.
select r.id::text, r.workflow, r.run_key, coalesce(j.kind, f.kind), coalesce(j.state, f.outcome, r.outcome),
       j.waits_for, r.stuck, r.parent_id::text, r.created_at, r.ended_at, coalesce(j.attempts, f.attempts, 0),
       j.available_at, r.stuck_at
  from holdfast_runs r
  left join lateral (select kind, state, waits_for, attempts, available_at
                       from holdfast_jobs
                      where id = r.id
                     offset 0) j on true
  left join lateral (select kind, outcome, attempts from holdfast_finished where id = r.id offset 0) f on true
 where true
   -- when few:
   and r.id = any (array(select a.run_id
                           from holdfast_attributes a
                          where a.name = :attribute and a.value = :value))
   -- end
   and r.id = :id::text::uuid  -- when id
   and r.run_key = :run_key  -- when run_key
   and r.workflow = :workflow  -- when workflow
   and r.parent_id = :parent::text::uuid  -- when parent
   and coalesce(j.kind, f.kind) = :kind  -- when kind
   -- when outcome:
   and r.outcome is not null
   and (r.outcome, r.id) < (:outcome, :older_than::text::uuid) and (r.outcome, r.id) >= (:outcome, :from_id::text::uuid)
   -- end
   and r.stuck_at is not null  -- when stuck
   -- when attribute:
   and (select s.value from holdfast_attributes s where s.run_id = r.id and s.name = :attribute) = :value
   -- end
   -- when by_id:
   and r.id < :older_than::text::uuid  -- when older_than
   and r.id >= :from_id::text::uuid  -- when from_id
   -- end
 order by
       r.outcome desc,  -- when outcome
       r.id desc
 limit :limit;

-- runs_horizon: name the run that is the last of this many, the newest first, and the one behind it, if there is one.
-- With `outcome`, among those that ended so, as one range of both; see runs_list.
select r.id::text
  from holdfast_runs r
 where true
   and r.outcome >= :outcome and (r.outcome, r.id) < (:outcome, :older_than::text::uuid)  -- when outcome
   -- when by_id:
   and r.id < :older_than::text::uuid  -- when older_than
   -- end
 order by
       r.outcome desc,  -- when outcome
       r.id desc
 limit 2 offset :skipped;

-- attributes_count: count the runs that say this of themselves, no more than :most.
select count(*)
  from (select 1
          from holdfast_attributes
         where name = :attribute and value = :value
         limit :most) c;

-- runs_live: read runs whose jobs are live, as runs_list. By the jobs: runs that are over may be very many.
-- Apart from the runs, so that the planner begins with the jobs.
select r.id::text, r.workflow, r.run_key, j.kind, j.state, j.waits_for, r.stuck, r.parent_id::text, r.created_at,
       r.ended_at, j.attempts, j.available_at, r.stuck_at
  from (select id, kind, state, waits_for, attempts, available_at
          from holdfast_jobs j
         where followers is not null and followers & 128 <> 0
           and j.state = any (:states::text[])  -- when states
           and kind = :kind  -- when kind
           and j.waits_for like '%' || :waits_for || '%'  -- when waits_for
           and id < :older_than::text::uuid  -- when older_than
         order by id desc
        offset 0) j
  join holdfast_runs r on r.id = j.id
 where true
   and r.workflow = :workflow  -- when workflow
   and r.parent_id = :parent::text::uuid  -- when parent
   -- when attribute:
   and (select s.value from holdfast_attributes s where s.run_id = r.id and s.name = :attribute) = :value
   -- end
 order by j.id desc
 limit :limit;

-- runs_long: read runs that are not over and whose journal has become long, with the number of its rows.
-- By their live jobs: those that are over may be very many.
-- Places may be left out, so that the last one is at least that number: rows are counted where it is high enough only.
select id, run_key, number
  from (select r.id::text as id, r.run_key, (select count(*) from holdfast_steps s where s.run_id = r.id) as number
          from holdfast_jobs j
          join holdfast_runs r on r.id = j.id
         where j.followers is not null and j.followers & 128 <> 0 and r.outcome is null
           and exists (select 1 from holdfast_steps s where s.run_id = r.id and s.seq > :rows)) d
 where number > :rows
 order by id
 limit :limit;

-- runs_kinds: count the runs that are not over, by kind, and those of them that are due.
select j.kind, count(*), sum(case when j.state = 'pending' and j.available_at <= :now then 1 else 0 end)
  from holdfast_jobs j
 where j.followers is not null and j.followers & 128 <> 0
 group by j.kind
 order by j.kind;

-- runs_old: lock finished runs that were kept for long enough.
select id::text
  from holdfast_finished
 where outcome = :outcome and queue = :queue and finished_at < :now - :older_ms::bigint * interval '1 millisecond'
   and followers is not null and followers & 128 <> 0
 order by finished_at
 limit :limit
   for update skip locked;

-- runs_forget: delete what is left of runs: journals, inboxes, attributes, the runs themselves.
with steps as (delete from holdfast_steps where run_id = any ((select :ids::text::uuid[])::uuid[])),
signals as (delete from holdfast_signals where run_id = any ((select :ids::text::uuid[])::uuid[])),
attributes as (delete from holdfast_attributes where run_id = any ((select :ids::text::uuid[])::uuid[]))
delete from holdfast_runs where id = any ((select :ids::text::uuid[])::uuid[])
returning id::text;

-- runs_over: delete finished rows of runs that are forgotten.
delete from holdfast_finished where id = any ((select :ids::text::uuid[])::uuid[]);

-- runs_failures: read which step failed last in these runs, and whether something was undone since it did.
select s.run_id::text, s.key,
       case when exists (select 1 from holdfast_steps u where u.run_id = s.run_id and u.kind = 'undo') then 1 else 0 end
  from holdfast_steps s
 where s.run_id = any ((select :ids::text::uuid[])::uuid[]) and s.ok = 0 and s.kind <> 'attempt'
   and s.seq = (select max(l.seq) from holdfast_steps l where l.run_id = s.run_id and l.ok = 0 and l.kind <> 'attempt')
 order by s.run_id;

-- steps_pardon: delete the failure that ended a run, so that its step is made again.
delete from holdfast_steps where run_id = :id::text::uuid and key = :key and ok = 0;

-- steps_fork: note in the journal of a new run, before all else, whose it continues and what its chance follows from.
insert into holdfast_steps (run_id, seq, key, kind, ok, value, digest, attempt, worker, took_ms, ref, at)
select :id::text::uuid, 0, 'fork', 'fork', 1, null, null, 1, null, null, :seed, created_at
  from holdfast_runs where id = :source::text::uuid;

-- steps_copy: copy the first rows of a journal to that of a new run; digests are of the other run's arguments.
insert into holdfast_steps (run_id, seq, key, kind, ok, value, digest, attempt, worker, took_ms, ref, at)
select :id::text::uuid, seq, key, kind, ok, value, null, attempt, worker, took_ms, null, at
  from holdfast_steps where run_id = :source::text::uuid and seq between 1 and :last;
