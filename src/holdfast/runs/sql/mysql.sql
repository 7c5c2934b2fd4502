-- Holdfast's queries for MySQL and MariaDB: durable runs, their journals, what is sent to them, what they say.
-- The files beside this one hold the same names in the same order: review them with diff.
-- Times: :now is the server's clock (utc_timestamp(6)), except where a test tells the time. A journal gives its times
-- as microseconds since 1970: a replay must read them as the first run did, to the last digit.
-- Locks are taken in this order: the run's row in holdfast_jobs, its parent's, what belongs to them here.
-- Flags are numbers in a batch and in an answer: a caller's connection may show booleans in a way of its own.
-- Differs throughout: a batch is one JSON text, an array of rows, in :batch; lists are JSON texts too. JSON_TABLE makes
-- a table of it, and STRAIGHT_JOIN from there reads every row by its primary key.
-- Differs throughout: nothing returns what it wrote.

-- checkpoint: add rows to journals whose run is still held with its fence, and answer with those that were added.
-- The runs are locked for it, so that one that a reaper is taking back is waited for and then found with another fence:
-- a plain look at the fence would let the row slip in behind the reaper's back.
-- Differs: it has no answer, and the flow looks: so it is one statement, which commits by itself.
insert into holdfast_steps (run_id, seq, `key`, kind, ok, value, digest, attempt, worker, took_ms, ref, at)
select u.run_id, u.seq, u.`key`, u.kind, u.ok, u.value, u.digest, u.attempt, :worker, u.took_ms, u.ref, :now
  from json_table(:batch, '$[*]' columns (
        run_id char(36) character set ascii collate ascii_bin path '$[0]', fence bigint path '$[1]',
        seq integer path '$[2]', `key` varchar(300) character set utf8mb4 path '$[3]',
        kind varchar(20) character set ascii path '$[4]', ok integer path '$[5]',
        value longtext character set utf8mb4 path '$[6]', digest bigint path '$[7]', attempt integer path '$[8]',
        took_ms integer path '$[9]', ref varchar(100) character set ascii path '$[10]')) u
 straight_join holdfast_jobs j force index (primary) on j.id = u.run_id and j.fence = u.fence
 where true
   /*!80001 for share of j */ /*M! lock in share mode */
on duplicate key update seq = holdfast_steps.seq;

-- checkpoint_one: as checkpoint, for one row.
-- Differs: as in checkpoint.
insert into holdfast_steps (run_id, seq, `key`, kind, ok, value, digest, attempt, worker, took_ms, ref, at)
select j.id, :seq, :key, :kind, :ok, :value, :digest, :attempt, :worker, :took_ms, :ref, :now
  from holdfast_jobs j
 where j.id = :id and j.fence = :fence
   /*!80001 for share of j */ /*M! lock in share mode */
on duplicate key update seq = holdfast_steps.seq;

-- checkpoint_look: tell which of these rows an earlier try has added, of runs that are still held with their fence.
select s.run_id, s.seq, timestampdiff(microsecond, '1970-01-01', s.at)
  from json_table(:batch, '$[*]' columns (
        run_id char(36) character set ascii collate ascii_bin path '$[0]', fence bigint path '$[1]',
        seq integer path '$[2]')) u
 straight_join holdfast_steps s force index (primary) on s.run_id = u.run_id and s.seq = u.seq
 straight_join holdfast_jobs j force index (primary) on j.id = u.run_id and j.fence = u.fence;

-- journal_read: read a run's journal, from a place on, in its order.
select seq, `key`, kind, ok, value, digest, attempt, worker, took_ms, ref, timestampdiff(microsecond, '1970-01-01', at)
  from holdfast_steps
 where run_id = :id and seq >= :first
   and seq <= :last  -- when last
 order by seq;

-- journal_at: read what stands at a place of a run that is still held with its fence.
-- Differs: a locking read sees what was committed after this transaction's snapshot, as the insert did.
select s.seq, s.`key`, s.kind, s.ok, s.value, s.digest, s.attempt, s.worker, s.took_ms, s.ref,
       timestampdiff(microsecond, '1970-01-01', s.at)
  from holdfast_steps s
  join holdfast_jobs j on j.id = s.run_id and j.fence = :fence
 where s.run_id = :id and s.seq = :seq
   /*!80001 for share */ /*M! lock in share mode */;

-- run_read: read what is known of a run beside its journal.
select id, workflow, run_key, parent_id, parent_key, outcome, stuck
  from holdfast_runs where id = :id;

-- run_hold: lock a run that is held with this fence.
select id from holdfast_jobs where id = :id and fence = :fence for update;

-- run_free: lock a run that nobody holds, unless somebody else has locked it; in a caller's transaction.
-- A worker renews what it holds, and must not wait for a caller: a run that is held is left alone.
-- Differs: a row that is read and not meant stays locked in REPEATABLE READ, so nothing is read there, and not in READ
-- COMMITTED either before it is known, without a lock, that nobody holds it. One that is claimed in between is locked
-- for as long as the caller's transaction lasts, as the row of a job is that a handler completes in one of its own.
select j.id
  from holdfast_jobs j
 where j.id = (select id from (select id from holdfast_jobs where id = :id and state <> 'leased') free)
   and j.state <> 'leased'
   and /*!80001 @@session.transaction_isolation */ /*M! @@session.tx_isolation */ like 'READ%'
   for update skip locked;

-- run_calm: note that a request to cancel has reached the run.
update holdfast_jobs set cancel_requested = false where id = :id and fence = :fence;

-- runs_asked: note that runs are asked to stop: the next to claim one of them looks for the request first.
update json_table(:ids, '$[*]' columns (id char(36) character set ascii collate ascii_bin path '$')) u
 straight_join holdfast_jobs j force index (primary) on j.id = u.id
   set j.cancel_requested = true;

-- run_migrate: let a run that is locked and that nobody holds go on as another version, at once.
update holdfast_jobs set kind = :kind, state = 'pending', waits_for = null, available_at = least(available_at, :now)
 where id = :id;

-- runs_add: note new runs, except where a run of this workflow has the key; the flow reads who has it.
insert into holdfast_runs (id, workflow, run_key, digest, parent_id, parent_key, created_at)
select u.id, u.workflow, u.run_key, u.digest, u.parent_id, u.parent_key, :now
  from json_table(:batch, '$[*]' columns (
        id char(36) character set ascii collate ascii_bin path '$[0]',
        workflow varchar(100) character set utf8mb4 path '$[1]',
        run_key varchar(300) character set utf8mb4 path '$[2]', digest bigint path '$[3]',
        parent_id char(36) character set ascii collate ascii_bin path '$[4]',
        parent_key varchar(300) character set utf8mb4 path '$[5]')) u
on duplicate key update run_key = holdfast_runs.run_key;

-- runs_find: read the runs that have these keys, with the place of each in the batch.
-- Differs: a locking read: in a caller's REPEATABLE READ it sees what was committed since that began.
select u.n, r.id, r.digest, r.outcome, r.parent_id
  from json_table(:batch, '$[*]' columns (
        n for ordinality, workflow varchar(100) character set utf8mb4 collate holdfast_text path '$[0]',
        run_key varchar(300) character set utf8mb4 collate holdfast_text path '$[1]')) u
 straight_join holdfast_runs r force index (holdfast_runs_key_idx) on r.run_key = u.run_key and r.workflow = u.workflow
   /*!80001 for share of r */ /*M! lock in share mode */;

-- runs_named: read the runs with this key, of one workflow or of any.
select id, workflow, outcome
  from holdfast_runs
 where run_key = :run_key
   and workflow = :workflow  -- when workflow
 order by id
 limit 2;

-- runs_keyed: read the runs that have these keys.
select r.run_key, r.id, r.workflow
  from json_table(:keys, '$[*]' columns (run_key varchar(300) character set utf8mb4 collate holdfast_text path '$')) u
 straight_join holdfast_runs r force index (holdfast_runs_key_idx) on r.run_key = u.run_key
 order by r.id;

-- runs_unbegun: tell which of these runs have nothing behind them; one that continues another has no digest.
select r.id
  from json_table(:ids, '$[*]' columns (id char(36) character set ascii collate ascii_bin path '$')) u
 straight_join holdfast_runs r force index (primary) on r.id = u.id
 where r.digest is not null;

-- runs_rename: let a run that is over give its key away.
-- Differs: nothing to return, so the rows are read first.
select r.id
  from json_table(:ids, '$[*]' columns (id char(36) character set ascii collate ascii_bin path '$')) u
 straight_join holdfast_runs r force index (primary) on r.id = u.id;
update json_table(:found, '$[*]' columns (id char(36) character set ascii collate ascii_bin path '$')) u
 straight_join holdfast_runs r force index (primary) on r.id = u.id
   set r.run_key = concat(left(r.run_key, 250), '~', r.id);

-- runs_follow_on: note the runs that continue others, under the keys of these, which are renamed already.
insert into holdfast_runs (id, workflow, run_key, digest, parent_id, parent_key, created_at)
select u.next, r.workflow, left(r.run_key, char_length(r.run_key) - 37), null, r.parent_id, r.parent_key, :now
  from json_table(:batch, '$[*]' columns (
        id char(36) character set ascii collate ascii_bin path '$[0]',
        next char(36) character set ascii collate ascii_bin path '$[1]')) u
 straight_join holdfast_runs r force index (primary) on r.id = u.id
 where true
on duplicate key update run_key = holdfast_runs.run_key;

-- runs_ended: note how runs ended, or that they go on.
update json_table(:batch, '$[*]' columns (
        id char(36) character set ascii collate ascii_bin path '$[0]',
        outcome varchar(10) character set ascii collate ascii_bin path '$[1]')) u
 straight_join holdfast_runs r force index (primary) on r.id = u.id
   set r.outcome = u.outcome, r.ended_at = case when u.outcome is null then null else :now end,
       r.stuck = null, r.stuck_at = null;

-- runs_parents: read whose children these runs are, and under which key.
select r.id, r.parent_id, r.parent_key
  from json_table(:ids, '$[*]' columns (id char(36) character set ascii collate ascii_bin path '$')) u
 straight_join holdfast_runs r force index (primary) on r.id = u.id
 where r.parent_id is not null
 order by r.parent_id, r.id;

-- runs_children: read the children of these runs that are not over.
select r.id
  from json_table(:ids, '$[*]' columns (id char(36) character set ascii collate ascii_bin path '$')) u
 straight_join holdfast_runs r force index (holdfast_runs_parent_idx) on r.parent_id = u.id
 where r.outcome is null
 order by r.id;

-- runs_children_over: read how children of these runs ended, where their parents' journals do not tell of it.
-- One that was continued has not ended: its followers hold 64.
select r.id, r.parent_id, r.parent_key, f.outcome, f.result
  from json_table(:ids, '$[*]' columns (id char(36) character set ascii collate ascii_bin path '$')) u
 straight_join holdfast_runs r force index (holdfast_runs_parent_idx) on r.parent_id = u.id
 straight_join holdfast_finished f force index (primary) on f.id = r.id
 where r.outcome is not null and coalesce(f.followers, 0) & 64 = 0
   and not exists (select 1 from holdfast_steps s
                    where s.run_id = r.parent_id and s.kind = 'child' and s.`key` = r.parent_key)
 order by r.id;

-- runs_adopt: make runs that were started by themselves the children of one that asks for them.
update json_table(:batch, '$[*]' columns (
        id char(36) character set ascii collate ascii_bin path '$[0]',
        parent_id char(36) character set ascii collate ascii_bin path '$[1]',
        parent_key varchar(300) character set utf8mb4 path '$[2]')) u
 straight_join holdfast_runs r force index (primary) on r.id = u.id
   set r.parent_id = u.parent_id, r.parent_key = u.parent_key
 where r.parent_id is null;

-- runs_ends: read how these children ended, where it is not in their parents' inboxes.
select r.id, r.parent_id, r.parent_key, f.outcome, f.result
  from json_table(:ids, '$[*]' columns (id char(36) character set ascii collate ascii_bin path '$')) u
 straight_join holdfast_runs r force index (primary) on r.id = u.id
 straight_join holdfast_finished f force index (primary) on f.id = r.id
 where r.outcome is not null and coalesce(f.followers, 0) & 64 = 0
   and not exists (select 1 from holdfast_signals s where s.id = r.id)
 order by r.id;

-- run_stuck: note why a held run cannot go on, or that it can; since when stays as it was.
update holdfast_runs
   set stuck = :reason, stuck_at = case when :reason is null then null else coalesce(stuck_at, :now) end
 where id = :id
   and exists (select 1 from holdfast_jobs j where j.id = :id and j.fence = :fence);

-- runs_progressed: tell which of these leases have seen a row in the journal of their run.
select j.id
  from json_table(:ids, '$[*]' columns (id char(36) character set ascii collate ascii_bin path '$')) u
 straight_join holdfast_jobs j force index (primary) on j.id = u.id
 where (select s.at from holdfast_steps s where s.run_id = j.id order by s.seq desc limit 1) >= j.leased_at;

-- signals_add: put something into the inboxes of runs.
insert into holdfast_signals (id, run_id, name, payload, told, created_at)
select u.id, u.run_id, u.name, u.payload, :told, :now
  from json_table(:batch, '$[*]' columns (
        id char(36) character set ascii collate ascii_bin path '$[0]',
        run_id char(36) character set ascii collate ascii_bin path '$[1]',
        name varchar(310) character set utf8mb4 path '$[2]',
        payload longtext character set utf8mb4 path '$[3]')) u
on duplicate key update id = holdfast_signals.id;

-- signals_next: read the oldest that a run has got by a name.
select id, name, payload
  from holdfast_signals force index (holdfast_signals_run_idx)
 where run_id = :id and name = :name
 order by created_at, id
 limit :limit;

-- signals_first: read the oldest that a run has got by each of these names.
-- Differs: MariaDB has no lateral joins. The order names the whole index: else MySQL sorts all that has the name.
select s.id, s.name, s.payload
  from json_table(:names, '$[*]' columns (
        name varchar(310) character set utf8mb4 collate holdfast_text path '$')) u
 straight_join holdfast_signals s force index (primary)
    on s.id = (select o.id
                 from holdfast_signals o force index (holdfast_signals_run_idx)
                where o.run_id = :id and o.name = u.name
                order by o.run_id, o.name, o.created_at, o.id
                limit 1);

-- signals_read: read what is in inboxes under these ids.
select s.id, s.payload
  from json_table(:ids, '$[*]' columns (id char(36) character set ascii collate ascii_bin path '$')) u
 straight_join holdfast_signals s force index (primary) on s.id = u.id;

-- signals_drop: delete what a run has taken.
delete s
  from json_table(:ids, '$[*]' columns (id char(36) character set ascii collate ascii_bin path '$')) u
 straight_join holdfast_signals s force index (primary) on s.id = u.id;

-- signals_known: tell whether a signal was sent before: it is there, or was taken.
select 1 from holdfast_signals where id = :id
union all
select 1 from holdfast_steps where run_id = :run and ref = :id;

-- signals_move: hand over to the next run of a chain what the one before has not taken.
-- Not what is of its own children and steps: the next run has others, by the same keys.
update json_table(:batch, '$[*]' columns (
        id char(36) character set ascii collate ascii_bin path '$[0]',
        next char(36) character set ascii collate ascii_bin path '$[1]')) u
 straight_join holdfast_signals s force index (holdfast_signals_run_idx) on s.run_id = u.id
   set s.run_id = u.next
 where s.name not in ('!child', '!remote');

-- signals_there: tell for which of these runs and names there is something.
-- Differs: MariaDB has no lateral joins. With exists instead, both might read the inboxes first, and all of them.
select u.run_id, u.name
  from json_table(:batch, '$[*]' columns (
        run_id char(36) character set ascii collate ascii_bin path '$[0]',
        name varchar(310) character set utf8mb4 collate holdfast_text path '$[1]')) u
 where (select 1
          from holdfast_signals s force index (holdfast_signals_run_idx)
         where s.run_id = u.run_id and s.name = u.name
         limit 1) = 1;

-- runs_waits: read what runs wait for that are locked and that nobody holds.
-- It sees them as they are: nothing is locked in REPEATABLE READ (`run_free`), and then nobody is told here.
select j.id, j.waits_for
  from json_table(:ids, '$[*]' columns (id char(36) character set ascii collate ascii_bin path '$')) u
 straight_join holdfast_jobs j force index (primary) on j.id = u.id
 where j.state <> 'leased' and j.waits_for is not null;

-- signals_untold: read signals of which nobody has told the run.
select id, run_id, name from holdfast_signals where told = 0 order by created_at limit :limit;

-- signals_told: note that runs were told of signals.
update json_table(:ids, '$[*]' columns (id char(36) character set ascii collate ascii_bin path '$')) u
 straight_join holdfast_signals s force index (primary) on s.id = u.id
   set s.told = 1;

-- attributes_set: write what runs say of themselves.
insert into holdfast_attributes (run_id, name, value)
select u.run_id, u.name, u.value
  from json_table(:batch, '$[*]' columns (
        run_id char(36) character set ascii collate ascii_bin path '$[0]',
        name varchar(100) character set utf8mb4 path '$[1]', value varchar(500) character set utf8mb4 path '$[2]')) u
on duplicate key update value = u.value;

-- attributes_read: read what runs say of themselves.
select a.run_id, a.name, a.value
  from json_table(:ids, '$[*]' columns (id char(36) character set ascii collate ascii_bin path '$')) u
 straight_join holdfast_attributes a force index (primary) on a.run_id = u.id
 order by a.run_id, a.name;

-- runs_list: read runs with the state of their jobs, the newest first.
-- What runs say of themselves is read of each run as a value, of which no planner makes a join, because very many may
-- say the same. With `few`, no more of them do than a look may read, and it begins with those.
-- Differs: the index for an outcome is named, because MySQL may walk over all runs by their id instead, in the hope of
-- a match before long; MariaDB would sort for an order that begins with the outcome.
select r.id, r.workflow, r.run_key, coalesce(j.kind, f.kind), coalesce(j.state, f.outcome, r.outcome),
       j.waits_for, r.stuck, r.parent_id, r.created_at, r.ended_at, coalesce(j.attempts, f.attempts, 0),
       j.available_at, r.stuck_at
  from
       holdfast_attributes a force index (holdfast_attributes_value_idx) straight_join  -- when few
       holdfast_runs r
       force index (holdfast_runs_outcome_idx)  -- when outcome
  left join holdfast_jobs j on j.id = r.id
  left join holdfast_finished f on f.id = r.id
 where true
   and a.name = :attribute and a.value = :value and r.id = a.run_id  -- when few
   and r.id = :id  -- when id
   and r.run_key = :run_key  -- when run_key
   and r.workflow = :workflow  -- when workflow
   and r.parent_id = :parent  -- when parent
   and coalesce(j.kind, f.kind) = :kind  -- when kind
   and r.outcome = :outcome  -- when outcome
   and r.stuck_at is not null  -- when stuck
   -- when attribute:
   and (select s.value from holdfast_attributes s where s.run_id = r.id and s.name = :attribute) = :value
   -- end
   and r.id < :older_than  -- when older_than
   and r.id >= :from_id  -- when from_id
 order by r.id desc
 limit :limit;

-- runs_horizon: name the run that is the last of this many, the newest first, and the one behind it, if there is one.
-- With `outcome`, among those that ended so.
-- Differs: the index for an outcome is named; see runs_list.
select r.id
  from holdfast_runs r
       force index (holdfast_runs_outcome_idx)  -- when outcome
 where true
   and r.outcome = :outcome  -- when outcome
   and r.id < :older_than  -- when older_than
 order by r.id desc
 limit 2 offset :skipped;

-- attributes_count: count the runs that say this of themselves, no more than :most.
select count(*)
  from (select 1
          from holdfast_attributes
         where name = :attribute and value = :value
         limit :most) c;

-- runs_live: read runs whose jobs are live, as runs_list. By the jobs: runs that are over may be very many.
-- Differs: the order of the tables is said.
select r.id, r.workflow, r.run_key, j.kind, j.state, j.waits_for, r.stuck, r.parent_id, r.created_at,
       r.ended_at, j.attempts, j.available_at, r.stuck_at
  from holdfast_jobs j force index (primary)
 straight_join holdfast_runs r force index (primary) on r.id = j.id
 where j.followers is not null and j.followers & 128 <> 0
   and r.workflow = :workflow  -- when workflow
   and r.parent_id = :parent  -- when parent
   -- when attribute:
   and (select s.value from holdfast_attributes s where s.run_id = r.id and s.name = :attribute) = :value
   -- end
   and j.state in (:states)  -- when states
   and j.kind = :kind  -- when kind
   and j.waits_for like concat('%', :waits_for, '%')  -- when waits_for
   and j.id < :older_than  -- when older_than
 order by j.id desc
 limit :limit;

-- runs_long: read runs that are not over and whose journal has become long, with the number of its rows.
-- By their live jobs: those that are over may be very many.
-- Differs: the order of the tables is said.
-- Places may be left out, so that the last one is at least that number: rows are counted where it is high enough only.
select id, run_key, number
  from (select r.id as id, r.run_key, (select count(*) from holdfast_steps s where s.run_id = r.id) as number
          from holdfast_jobs j
 straight_join holdfast_runs r on r.id = j.id
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
select id
  from holdfast_finished
 where outcome = :outcome and queue = :queue and finished_at < :now - interval :older_ms * 1000 microsecond
   and followers is not null and followers & 128 <> 0
 order by finished_at
 limit :limit
   for update skip locked;

-- runs_forget: delete what is left of runs: journals, inboxes, attributes, the runs themselves.
-- Differs: no writing CTE.
delete s
  from json_table(:ids, '$[*]' columns (id char(36) character set ascii collate ascii_bin path '$')) u
 straight_join holdfast_steps s force index (primary) on s.run_id = u.id;
delete s
  from json_table(:ids, '$[*]' columns (id char(36) character set ascii collate ascii_bin path '$')) u
 straight_join holdfast_signals s force index (holdfast_signals_run_idx) on s.run_id = u.id;
delete a
  from json_table(:ids, '$[*]' columns (id char(36) character set ascii collate ascii_bin path '$')) u
 straight_join holdfast_attributes a force index (primary) on a.run_id = u.id;
delete r
  from json_table(:ids, '$[*]' columns (id char(36) character set ascii collate ascii_bin path '$')) u
 straight_join holdfast_runs r force index (primary) on r.id = u.id;

-- runs_over: delete finished rows of runs that are forgotten.
delete f
  from json_table(:ids, '$[*]' columns (id char(36) character set ascii collate ascii_bin path '$')) u
 straight_join holdfast_finished f force index (primary) on f.id = u.id;

-- runs_failures: read which step failed last in these runs, and whether something was undone since it did.
select s.run_id, s.`key`,
       case when exists (select 1 from holdfast_steps u where u.run_id = s.run_id and u.kind = 'undo') then 1 else 0 end
  from json_table(:ids, '$[*]' columns (id char(36) character set ascii collate ascii_bin path '$')) i
 straight_join holdfast_steps s force index (primary) on s.run_id = i.id
 where s.ok = 0 and s.kind <> 'attempt'
   and s.seq = (select max(l.seq) from holdfast_steps l where l.run_id = s.run_id and l.ok = 0 and l.kind <> 'attempt')
 order by s.run_id;

-- steps_pardon: delete the failure that ended a run, so that its step is made again.
delete from holdfast_steps where run_id = :id and `key` = :key and ok = 0;

-- steps_fork: note in the journal of a new run, before all else, whose it continues and what its chance follows from.
insert into holdfast_steps (run_id, seq, `key`, kind, ok, value, digest, attempt, worker, took_ms, ref, at)
select :id, 0, 'fork', 'fork', 1, null, null, 1, null, null, :seed, created_at
  from holdfast_runs where id = :source;

-- steps_copy: copy the first rows of a journal to that of a new run; digests are of the other run's arguments.
insert into holdfast_steps (run_id, seq, `key`, kind, ok, value, digest, attempt, worker, took_ms, ref, at)
select :id, seq, `key`, kind, ok, value, null, attempt, worker, took_ms, null, at
  from holdfast_steps where run_id = :source and seq between 1 and :last;
