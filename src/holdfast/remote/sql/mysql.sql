-- Holdfast's queries for MySQL and MariaDB: remote steps that runs wait for.
-- The files beside this one hold the same names in the same order: review them with diff.
-- Times: :now is the server's clock (utc_timestamp(6)), except where a test tells the time.
-- Locks are taken in this order: the run's row in holdfast_jobs, what belongs to it here, rows of the engine.
-- Differs throughout: a batch is one JSON text, an array of rows, in :batch; lists are JSON texts too. JSON_TABLE makes
-- a table of it, and STRAIGHT_JOIN from there reads every row by its primary key.
-- Differs throughout: nothing returns what it wrote.

-- dispatches_put: note what was sent, or is to be sent; a repeat of a step takes the place of what was noted of it.
insert into holdfast_dispatches (run_id, seq, `key`, engine, name, grp, input, attempt, lost, again, sent_at, look_at)
select u.run_id, u.seq, u.`key`, u.engine, u.name, u.grp, u.input, u.attempt, 0, 0, :now,
       :now + interval :look_ms * 1000 microsecond
  from json_table(:batch, '$[*]' columns (
        run_id char(36) character set ascii collate ascii_bin path '$[0]', seq integer path '$[1]',
        `key` varchar(300) character set utf8mb4 path '$[2]', engine varchar(100) character set utf8mb4 path '$[3]',
        name varchar(191) character set utf8mb4 path '$[4]', grp varchar(191) character set utf8mb4 path '$[5]',
        input longtext character set utf8mb4 path '$[6]', attempt integer path '$[7]')) u
on duplicate key update
       `key` = u.`key`, engine = u.engine, name = u.name, grp = u.grp, input = u.input,
       attempt = u.attempt, again = 0, sent_at = :now, look_at = :now + interval :look_ms * 1000 microsecond;

-- dispatches_of: read what runs wait for.
select d.run_id, d.seq, d.`key`, d.engine, d.name, d.grp, d.input, d.attempt, d.lost, d.again,
       case when d.look_at <= :now then 1 else 0 end
  from json_table(:ids, '$[*]' columns (id char(36) character set ascii collate ascii_bin path '$')) u
 straight_join holdfast_dispatches d force index (primary) on d.run_id = u.id
 where true
   and d.`key` = :key  -- when key
 order by d.run_id, d.seq;

-- dispatches_pending: tell which steps runs wait for.
select d.run_id, d.seq
  from json_table(:ids, '$[*]' columns (id char(36) character set ascii collate ascii_bin path '$')) u
 straight_join holdfast_dispatches d force index (primary) on d.run_id = u.id;

-- dispatches_drop: forget what nobody waits for any more.
delete d
  from json_table(:batch, '$[*]' columns (
        run_id char(36) character set ascii collate ascii_bin path '$[0]', seq integer path '$[1]')) u
 straight_join holdfast_dispatches d force index (primary) on d.run_id = u.run_id and d.seq = u.seq;

-- dispatches_due: read of which dispatches it is time to see whether they are lost.
select run_id, seq
  from holdfast_dispatches
 where engine = :engine and look_at <= :now
 order by look_at
 limit :limit;

-- dispatches_looked: note that somebody has looked, and when to look again.
-- That is after as long as it has been waiting by then, between the two bounds.
update json_table(:batch, '$[*]' columns (
        run_id char(36) character set ascii collate ascii_bin path '$[0]', seq integer path '$[1]',
        lost integer path '$[2]')) u
 straight_join holdfast_dispatches d force index (primary) on d.run_id = u.run_id and d.seq = u.seq
   set d.look_at = :now + interval least(greatest(timestampdiff(microsecond, d.sent_at, :now), :least_ms * 1000),
                                         :most_ms * 1000) microsecond,
       d.lost = d.lost + u.lost, d.again = 0;

-- dispatches_again: ask for a run's dispatches to be sent again.
-- Differs: nothing to return, so the rows are read first.
select `key` from holdfast_dispatches
 where run_id = :id
   and `key` = :key  -- when key
 order by seq;
update holdfast_dispatches set again = 1, look_at = :now
 where run_id = :id
   and `key` = :key  -- when key
;

-- dispatches_sent: note that messages were sent, so that nobody sends them again.
update json_table(:batch, '$[*]' columns (
        run_id char(36) character set ascii collate ascii_bin path '$[0]', seq integer path '$[1]',
        attempt integer path '$[2]')) u
 straight_join holdfast_dispatches d force index (primary) on d.run_id = u.run_id and d.seq = u.seq
   set d.look_at = null, d.again = 0, d.sent_at = :now
 where d.attempt = u.attempt;

-- dispatches_over: forget what was sent by messages for runs that are over.
delete d
  from holdfast_dispatches d
 where d.engine = :engine and d.look_at is null
   and not exists (select 1 from holdfast_jobs j where j.id = d.run_id);

-- dispatches_open: read dispatches that nobody looks after, or that were lost again and again, with their runs.
select r.run_key, d.`key`, d.engine, d.name, d.lost, d.sent_at, d.look_at < :now - interval :late_ms * 1000 microsecond
  from holdfast_dispatches d
  join holdfast_runs r on r.id = d.run_id
 where d.look_at < :now - interval :late_ms * 1000 microsecond or d.lost >= :losses
 order by d.sent_at
 limit :limit;
