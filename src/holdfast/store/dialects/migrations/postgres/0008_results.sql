-- What a done job gave, for those who waited for it when it ended, where its queue keeps nothing of done jobs; deleted after some
-- minutes.
create table holdfast_results (
    job_id uuid primary key,
    at timestamptz not null,
    queue text not null,
    kind text not null,
    result json
);

create index holdfast_results_at_idx on holdfast_results (at);
