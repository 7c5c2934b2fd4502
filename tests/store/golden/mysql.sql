-- enqueue
insert into holdfast_jobs
    (id, queue, kind, payload, available_at, created_at, max_attempts
    )
values (%s, %s, %s, %s,
    utc_timestamp(6)
    , utc_timestamp(6), %s
    )
on duplicate key update id = holdfast_jobs.id;

-- enqueue (given: priority, key, bucket)
insert into holdfast_jobs
    (id, queue, kind, payload, available_at, created_at, max_attempts
    , priority
    , `key`
    , bucket
    )
values (%s, %s, %s, %s,
    utc_timestamp(6)
    , utc_timestamp(6), %s
    , %s
    , %s
    , %s
    )
on duplicate key update id = holdfast_jobs.id;

-- claim (given: queues)
select k.queue, count(*), sum(k.state = 'pending' and k.available_at <= utc_timestamp(6))
  from (select queue, state, available_at from holdfast_jobs force index (holdfast_jobs_unique_idx)
         where true
         limit 1000) k
 group by k.queue;
select e.queue, e.first, e.first_at, e.first_at <= utc_timestamp(6), e.last
  from (select q.queue,
               (select n.urgency from holdfast_jobs n force index (holdfast_jobs_claim_idx)
                 where n.state = 'pending' and n.queue = q.queue
                 order by n.state, n.queue, n.urgency, n.available_at, n.id limit 1) as first,
               (select n.available_at from holdfast_jobs n force index (holdfast_jobs_claim_idx)
                 where n.state = 'pending' and n.queue = q.queue
                 order by n.state, n.queue, n.urgency, n.available_at, n.id limit 1) as first_at,
               (select n.urgency from holdfast_jobs n force index (holdfast_jobs_claim_idx)
                 where n.state = 'pending' and n.queue = q.queue
                 order by n.state desc, n.queue desc, n.urgency desc, n.available_at desc, n.id desc limit 1) as last
          from json_table(%s, '$[*]' columns (
                queue varchar(100) character set utf8mb4 collate /*M! utf8mb4_nopad_bin */ /*!80017 utf8mb4_0900_bin */ path '$')) q) e
 where e.first is not null;
select urgency, available_at, available_at <= utc_timestamp(6)
  from holdfast_jobs force index (holdfast_jobs_claim_idx)
 where state = 'pending' and queue = %s and urgency > %s
 order by urgency, available_at
 limit 1;
select id
  from holdfast_jobs force index (holdfast_jobs_claim_idx)
 where state = 'pending' and queue = %s and urgency = %s
   and available_at <= utc_timestamp(6)
 order by available_at, id
 limit %s
   for update skip locked;
select j.id, j.queue, j.kind, j.payload, j.headers, j.`key`, j.priority, least(j.attempts, 2147483646) + 1,
       j.max_attempts, least(j.fence, 9223372036854775806) + 1,
       coalesce(nullif(greatest(j.lease_ms, 0), 0),
           %s),
       j.available_at, j.created_at, j.cancel_requested, j.lapses
  from json_table(%s, '$[*]' columns (id char(36) character set ascii collate ascii_bin path '$')) u
 straight_join holdfast_jobs j force index (primary) on j.id = u.id;
update json_table(%s, '$[*]' columns (id char(36) character set ascii collate ascii_bin path '$')) u
 straight_join holdfast_jobs j force index (primary) on j.id = u.id
   set j.state = 'leased', j.fence = least(j.fence, 9223372036854775806) + 1,
       j.attempts = least(j.attempts, 2147483646) + 1, j.began = false, j.leased_by = %s,
       j.leased_at = utc_timestamp(6),
       j.lease_expires_at = utc_timestamp(6) + interval 1000 * coalesce(nullif(greatest(j.lease_ms, 0), 0),
           %s) microsecond;

-- claim (given: lane_queues, leases, unsuspected)
select k.queue, count(*), sum(k.state = 'pending' and k.available_at <= utc_timestamp(6))
  from (select queue, state, available_at from holdfast_jobs force index (holdfast_jobs_unique_idx)
         where true
         limit 1000) k
 group by k.queue;
select e.queue, e.first, e.first_at, e.first_at <= utc_timestamp(6), e.last
  from (select q.queue,
               (select n.urgency from holdfast_jobs n force index (holdfast_jobs_claim_idx)
                 where n.state = 'pending' and n.queue = q.queue
                 order by n.state, n.queue, n.urgency, n.available_at, n.id limit 1) as first,
               (select n.available_at from holdfast_jobs n force index (holdfast_jobs_claim_idx)
                 where n.state = 'pending' and n.queue = q.queue
                 order by n.state, n.queue, n.urgency, n.available_at, n.id limit 1) as first_at,
               (select n.urgency from holdfast_jobs n force index (holdfast_jobs_claim_idx)
                 where n.state = 'pending' and n.queue = q.queue
                 order by n.state desc, n.queue desc, n.urgency desc, n.available_at desc, n.id desc limit 1) as last
          from json_table(%s, '$[*]' columns (
                queue varchar(100) character set utf8mb4 collate /*M! utf8mb4_nopad_bin */ /*!80017 utf8mb4_0900_bin */ path '$')) q) e
 where e.first is not null;
select urgency, available_at, available_at <= utc_timestamp(6)
  from holdfast_jobs force index (holdfast_jobs_claim_idx)
 where state = 'pending' and queue = %s and urgency > %s
   and urgency < %s
 order by urgency, available_at
 limit 1;
select id
  from holdfast_jobs force index (holdfast_jobs_claim_idx)
 where state = 'pending' and queue = %s and urgency = %s
   and available_at <= utc_timestamp(6)
   and available_at between %s and %s
   and lapses = 0
 order by available_at, id
 limit %s
   for update skip locked;
select j.id, j.queue, j.kind, j.payload, j.headers, j.`key`, j.priority, least(j.attempts, 2147483646) + 1,
       j.max_attempts, least(j.fence, 9223372036854775806) + 1,
       coalesce(nullif(greatest(j.lease_ms, 0), 0),
           cast(elt(field(j.kind, %s), %s) as signed),
           %s),
       j.available_at, j.created_at, j.cancel_requested, j.lapses
  from json_table(%s, '$[*]' columns (id char(36) character set ascii collate ascii_bin path '$')) u
 straight_join holdfast_jobs j force index (primary) on j.id = u.id;
update json_table(%s, '$[*]' columns (id char(36) character set ascii collate ascii_bin path '$')) u
 straight_join holdfast_jobs j force index (primary) on j.id = u.id
   set j.state = 'leased', j.fence = least(j.fence, 9223372036854775806) + 1,
       j.attempts = least(j.attempts, 2147483646) + 1, j.began = false, j.leased_by = %s,
       j.leased_at = utc_timestamp(6),
       j.lease_expires_at = utc_timestamp(6) + interval 1000 * coalesce(nullif(greatest(j.lease_ms, 0), 0),
           cast(elt(field(j.kind, %s), %s) as signed),
           %s) microsecond;

-- renew
select j.id, j.cancel_requested
  from json_table(%s, '$[*]' columns (
        id char(36) character set ascii collate ascii_bin path '$[0]', fence bigint path '$[1]')) u
 straight_join holdfast_jobs j force index (primary) on j.id = u.id and j.fence = u.fence
   for update /*!80001 of j */;
update json_table(%s, '$[*]' columns (
        id char(36) character set ascii collate ascii_bin path '$[0]', fence bigint path '$[1]',
        lease_ms integer path '$[2]', began integer path '$[3]')) u
 straight_join holdfast_jobs j force index (primary) on j.id = u.id and j.fence = u.fence
   set j.lease_expires_at = utc_timestamp(6) + interval u.lease_ms * 1000 microsecond,
       j.began = j.began or u.began;

-- put_back
select j.id
  from json_table(%s, '$[*]' columns (
        id char(36) character set ascii collate ascii_bin path '$[0]', fence bigint path '$[1]')) u
 straight_join holdfast_jobs j force index (primary) on j.id = u.id and j.fence = u.fence
   for update /*!80001 of j */;
update json_table(%s, '$[*]' columns (
        id char(36) character set ascii collate ascii_bin path '$[0]', fence bigint path '$[1]',
        delay_ms bigint path '$[2]', attempts_back integer path '$[3]',
        error longtext character set utf8mb4 path '$[4]', lapses integer path '$[5]',
        waits_for varchar(200) character set utf8mb4 path '$[6]')) u
 straight_join holdfast_jobs j force index (primary) on j.id = u.id and j.fence = u.fence
   set j.state = case when u.delay_ms is null and u.waits_for is not null and not j.cancel_requested
           then 'waiting' else 'pending' end,
       j.waits_for = u.waits_for,
       j.fence = least(j.fence, 9223372036854775806) + 1,
       j.attempts = greatest(j.attempts, 1) - u.attempts_back, j.lapses = coalesce(u.lapses, j.lapses),
       j.available_at = coalesce(utc_timestamp(6) + interval u.delay_ms * 1000 microsecond, j.available_at),
       j.leased_by = null, j.leased_at = null, j.lease_expires_at = null,
       j.errors = case when u.error is null then j.errors
                       when j.errors is null then concat('[', u.error, ']')
                       when not json_valid(j.errors) then concat('[', json_quote(j.errors), ',', u.error, ']')
                       when json_type(j.errors) <> 'ARRAY' then concat('[', j.errors, ',', u.error, ']')
                       when json_length(j.errors) = 0 then concat('[', u.error, ']')
                       else concat(left(j.errors, char_length(j.errors) - 1), ',', u.error, ']') end;

-- finish (given: whole)
select j.id
  from json_table(%s, '$[*]' columns (
        id char(36) character set ascii collate ascii_bin path '$[0]', fence bigint path '$[1]')) u
 straight_join holdfast_jobs j force index (primary) on j.id = u.id and j.fence = u.fence
   for update /*!80001 of j */;
insert into holdfast_finished
    (id, fence, available_at, created_at, leased_at, finished_at, attempts, max_attempts, lease_ms, replays, priority,
     bucket, outcome, queue, kind, `key`, unique_key, leased_by, fingerprint, payload, headers, progress, result,
     errors, followers)
select j.id, j.fence, j.available_at, j.created_at, j.leased_at, utc_timestamp(6), j.attempts,
       j.max_attempts, j.lease_ms, j.replays, j.priority, j.bucket, u.outcome, j.queue, j.kind, j.`key`, j.unique_key,
       j.leased_by, u.fingerprint, j.payload, j.headers, j.progress, u.result,
       case when u.error is null then j.errors
            when j.errors is null then concat('[', u.error, ']')
            when not json_valid(j.errors) then concat('[', json_quote(j.errors), ',', u.error, ']')
            when json_type(j.errors) <> 'ARRAY' then concat('[', j.errors, ',', u.error, ']')
            when json_length(j.errors) = 0 then concat('[', u.error, ']')
            else concat(left(j.errors, char_length(j.errors) - 1), ',', u.error, ']') end,
       j.followers
  from json_table(%s, '$[*]' columns (
        id char(36) character set ascii collate ascii_bin path '$[0]', fence bigint path '$[1]',
        outcome varchar(10) path '$[2]', result longtext character set utf8mb4 path '$[3]',
        error longtext character set utf8mb4 path '$[4]', fingerprint varchar(64) character set utf8mb4 path '$[5]')) u
 straight_join holdfast_jobs j force index (primary) on j.id = u.id and j.fence = u.fence
;
delete j
  from json_table(%s, '$[*]' columns (id char(36) character set ascii collate ascii_bin path '$')) u
 straight_join holdfast_jobs j force index (primary) on j.id = u.id;

-- drop (given: whole)
select j.id
  from json_table(%s, '$[*]' columns (
        id char(36) character set ascii collate ascii_bin path '$[0]', fence bigint path '$[1]')) u
 straight_join holdfast_jobs j force index (primary) on j.id = u.id and j.fence = u.fence
   for update /*!80001 of j */;
insert into holdfast_dropped (at, ids) values (utc_timestamp(6), %s);
delete j
  from json_table(%s, '$[*]' columns (id char(36) character set ascii collate ascii_bin path '$')) u
 straight_join holdfast_jobs j force index (primary) on j.id = u.id;

-- finish_one
insert into holdfast_finished
    (id, fence, available_at, created_at, leased_at, finished_at, attempts, max_attempts, lease_ms, replays, priority,
     bucket, outcome, queue, kind, `key`, unique_key, leased_by, payload, headers, progress, result, errors)
select id, fence, available_at, created_at, leased_at, utc_timestamp(6), attempts, max_attempts, lease_ms, replays, priority,
       bucket, 'done', queue, kind, `key`, unique_key, leased_by, payload, headers, progress, %s, errors
  from holdfast_jobs
 where id = %s and fence = %s and followers is null
   for update;
delete from holdfast_jobs where id = %s;

-- drop_one
delete from holdfast_jobs where id = %s and fence = %s and followers is null;
insert into holdfast_dropped (at, ids) values (utc_timestamp(6), json_array(%s));
