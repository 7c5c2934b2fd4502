-- enqueue
insert into holdfast_jobs
    (id, queue, kind, payload, available_at, created_at, max_attempts
    )
    values (?, ?, ?, ?,
    ?
    , ?, ?
    )
on conflict do nothing;

-- enqueue (given: priority, key, bucket)
insert into holdfast_jobs
    (id, queue, kind, payload, available_at, created_at, max_attempts
    , priority
    , key
    , bucket
    )
    values (?, ?, ?, ?,
    ?
    , ?, ?
    , ?
    , ?
    , ?
    )
on conflict do nothing;

-- claim (given: queues)
with recursive level (queue, priority) as (
    select q.value, (select priority from holdfast_jobs where queue = q.value and state = 'pending'
                      order by priority desc limit 1)
      from json_each(?) q
    union all
    select level.queue, (select n.priority from holdfast_jobs n
                          where n.queue = level.queue and n.state = 'pending' and n.priority < level.priority
                          order by n.priority desc limit 1)
      from level where level.priority is not null)
select d.id, d.queue, d.kind, d.payload, d.headers, d.key, cast(d.priority as integer), cast(d.attempts as integer) + 1,
       cast(d.max_attempts as integer), min(cast(d.fence as integer), 9223372036854775806) + 1,
       coalesce(nullif(max(cast(d.lease_ms as integer), 0), 0),
           ?),
       d.available_at, d.created_at, d.cancel_requested, cast(d.lapses as integer)
  from level
  join holdfast_jobs d on d.id in (
    select id
      from holdfast_jobs
     where queue = level.queue and state = 'pending' and priority = level.priority
       and available_at <= ? and typeof(id) = 'text'
       and (? is null or kind in (select value from json_each(?)))
     order by available_at, id
     limit ?)
 order by d.priority desc, d.available_at, d.id
 limit ?;
update holdfast_jobs
   set state = 'leased', fence = min(cast(fence as integer), 9223372036854775806) + 1,
       attempts = cast(attempts as integer) + 1, began = false, leased_by = ?, leased_at = ?,
       lease_expires_at = ? + 1000 * coalesce(nullif(max(cast(lease_ms as integer), 0), 0),
           ?)
 where id in (select value from json_each(?));

-- claim (given: lane_queues, leases, unsuspected)
with recursive level (queue, priority) as (
    select q.value, (select priority from holdfast_jobs where queue = q.value and state = 'pending'
                      order by priority desc limit 1)
      from json_each(?) q
    union all
    select level.queue, (select n.priority from holdfast_jobs n
                          where n.queue = level.queue and n.state = 'pending' and n.priority < level.priority
                          order by n.priority desc limit 1)
      from level where level.priority is not null)
select d.id, d.queue, d.kind, d.payload, d.headers, d.key, cast(d.priority as integer), cast(d.attempts as integer) + 1,
       cast(d.max_attempts as integer), min(cast(d.fence as integer), 9223372036854775806) + 1,
       coalesce(nullif(max(cast(d.lease_ms as integer), 0), 0),
           (select l.value from json_each(?) k join json_each(?) l on l.key = k.key
             where k.value = d.kind),
           ?),
       d.available_at, d.created_at, d.cancel_requested, cast(d.lapses as integer)
  from level
  join holdfast_jobs d on d.id in (
    select id
      from holdfast_jobs
     where queue = level.queue and state = 'pending' and priority = level.priority
       and available_at <= ? and typeof(id) = 'text'
       and (? is null or kind in (select value from json_each(?)))
       and lapses = 0
     order by available_at, id
     limit ?)
 order by d.priority desc, d.available_at, d.id
 limit ?;
update holdfast_jobs
   set state = 'leased', fence = min(cast(fence as integer), 9223372036854775806) + 1,
       attempts = cast(attempts as integer) + 1, began = false, leased_by = ?, leased_at = ?,
       lease_expires_at = ? + 1000 * coalesce(nullif(max(cast(lease_ms as integer), 0), 0),
           (select l.value from json_each(?) k join json_each(?) l on l.key = k.key
             where k.value = kind),
           ?)
 where id in (select value from json_each(?));

-- renew
update holdfast_jobs
   set lease_expires_at = ? + coalesce(u.lease_ms, 0) * 1000, began = holdfast_jobs.began or u.began
  from (select key as id, json_extract(value, '$[0]') as fence, json_extract(value, '$[1]') as lease_ms,
               json_extract(value, '$[2]') as began
          from json_each(?)) u
 where holdfast_jobs.id = u.id and holdfast_jobs.fence = u.fence
returning id, cancel_requested;

-- put_back
update holdfast_jobs
   set state = case when u.delay_ms is null
           and u.waits_for is not null
           and not cancel_requested
           then 'waiting' else 'pending' end,
       waits_for = u.waits_for,
       fence = min(cast(holdfast_jobs.fence as integer), 9223372036854775806) + 1,
       attempts = max(cast(attempts as integer), 1) - u.attempts_back,
       lapses = coalesce(u.lapses, holdfast_jobs.lapses),
       available_at = coalesce(? + u.delay_ms * 1000, available_at),
       leased_by = null, leased_at = null, lease_expires_at = null,
       errors = case when u.error is null then errors else json_insert(
           case when errors is null then '[]'
                when json_valid(errors) and json_type(errors) = 'array' then errors
                else json_array(cast(errors as text)) end, '$[#]', json(u.error)) end
  from (select key as id, json_extract(value, '$[0]') as fence, json_extract(value, '$[1]') as delay_ms,
               json_extract(value, '$[2]') as attempts_back, json_extract(value, '$[3]') as error,
               json_extract(value, '$[4]') as lapses, json_extract(value, '$[5]') as waits_for
          from json_each(?)) u
 where holdfast_jobs.id = u.id and holdfast_jobs.fence = u.fence
returning id;

-- finish (given: whole)
insert into holdfast_finished
    (id, fence, available_at, created_at, leased_at, finished_at, attempts, max_attempts, lease_ms, replays, priority,
     bucket, outcome, queue, kind, key, unique_key, leased_by, fingerprint, payload, headers, progress, result, errors,
     followers)
select j.id, j.fence, available_at, created_at, leased_at, ?, attempts, max_attempts,
       lease_ms, replays, priority, bucket, u.outcome, queue, kind, key, unique_key, leased_by, u.fingerprint, payload,
       headers, progress, u.result, case when u.error is null then errors else json_insert(
           case when errors is null then '[]'
                when json_valid(errors) and json_type(errors) = 'array' then errors
                else json_array(cast(errors as text)) end, '$[#]', json(u.error)) end, followers
  from (select key as id, value as fence, ? as outcome, null as result, null as error, null as fingerprint
          from json_each(?)
         where ? is null
         union all
        select key as id, json_extract(value, '$[0]') as fence, json_extract(value, '$[1]') as outcome,
               json_extract(value, '$[2]') as result, json_extract(value, '$[3]') as error,
               json_extract(value, '$[4]') as fingerprint
          from json_each(?)) u
  join holdfast_jobs j on j.id = u.id and j.fence = u.fence
;
delete from holdfast_jobs where (id, fence) in (select key, value from json_each(?))
;
select null where changes() = ?;

-- drop (given: whole)
insert into holdfast_dropped (at, ids) values (?, ?);
delete from holdfast_jobs where (id, fence) in (select key, value from json_each(?))
;
select null where changes() = ?;

-- finish_one
insert into holdfast_finished
    (id, fence, available_at, created_at, leased_at, finished_at, attempts, max_attempts, lease_ms, replays, priority,
     bucket, outcome, queue, kind, key, unique_key, leased_by, payload, headers, progress, result, errors)
select id, fence, available_at, created_at, leased_at, ?, attempts, max_attempts, lease_ms, replays, priority,
       bucket, 'done', queue, kind, key, unique_key, leased_by, payload, headers, progress, ?, errors
  from holdfast_jobs
 where id = ? and fence = ? and followers is null;
delete from holdfast_jobs where id = ? and fence = ? and followers is null returning id;

-- drop_one
insert into holdfast_dropped (at, ids) values (?, json_array(?));
delete from holdfast_jobs where id = ? and fence = ? and followers is null returning id;
